"""The configuration that a topology runs with, and what of it goes to Spark."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from stormkeeper.conf import Conf, load
from stormkeeper.conf.folders import checkpoint_root, is_local
from stormkeeper.daemon.spark import LOCAL_CHECKPOINTS
from stormkeeper.errors import ConfigError
from stormkeeper.state import factory
from stormkeeper.topology.topology import Topology

log = logging.getLogger(__name__)

#: How long Spark waits for a stopped query's thread; its default is for ever.
_STOP_TIMEOUT = "20s"


def merged(
    topology: Topology | None,
    *,
    files: Sequence[Path] | None = None,
    overrides: Sequence[str] = (),
    strict: bool = False,
    saved: Mapping[str, Any] | None = None,
) -> Conf:
    """Return the cluster's configuration, under the topology's own, under the command line's.

    Parameters
    ----------
    topology
        Its ``conf`` is taken, and its keys are known ones from then on.
    files, overrides, strict
        As in `stormkeeper.conf.load`.
    saved
        What was saved of the topology's when it was submitted (`stormkeeper.worker.worker_conf`):
        wins over its own, and over the cluster's.

    Raises
    ------
    ConfigError
        When a layer is wrong, or `strict` and a key is unknown.
    """
    saved = saved or {}
    own = {*(topology.conf if topology is not None else ()), *saved}
    conf = load(files=files, overrides=overrides, strict=strict, also_known=own)
    commanded = {override.partition("=")[0].strip() for override in overrides}
    conf = with_topology(conf, topology, keep=commanded | saved.keys())
    return with_overrides(conf, saved, keep=commanded)


def with_topology(
    conf: Conf, topology: Topology | None, *, keep: set[str] | frozenset[str] = frozenset()
) -> Conf:
    """Return `conf` with the topology's own values, but for the keys to `keep`.

    Raises
    ------
    ConfigError
        When one of them is not what its key may be.
    """
    if topology is None:
        return conf
    values = {key: value for key, value in topology.conf.items() if key not in keep}
    try:
        return conf.with_values({"topology.name": topology.name} | values)
    except ConfigError as error:
        what = str(error).removeprefix("with_values: ")
        raise ConfigError(f"the conf of the topology {topology.name!r}: {what}") from error


def warn_of_silent_pacemakers(conf: Conf) -> None:
    """Warn where Pacemakers are named and heartbeats go to ZooKeeper all the same."""
    store = conf["storm.cluster.state.store"]
    if store == factory.ZOOKEEPER and conf["pacemaker.servers"]:
        log.warning(
            "heartbeats go to ZooKeeper, and not to pacemaker.servers; if they are to go there, "
            "set storm.cluster.state.store=%s",
            factory.PACEMAKER[0],
        )


def warn_of_own_checkpoints(conf: Mapping[str, Any]) -> None:
    """Warn where executors on other machines would write their state to disks of their own."""
    root = checkpoint_root(conf)
    if is_local(root) and not conf["topology.checkpoint.shared"]:
        log.warning(
            "executors on other machines would keep the state of queries in a %s of their own,"
            " where no other one finds it: set topology.checkpoint.dir to a folder that all"
            " machines share, and topology.checkpoint.shared to true",
            root,
        )


def spark_values(
    conf: Mapping[str, Any], script: Mapping[str, Any], share: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the ``spark.*`` values that a session is asked for.

    Parameters
    ----------
    conf
        The configuration; wins over the others.
    script
        What a script of its own says in ``SparkSession.builder``.
    share
        What a slot has of its machine (`slot_share`), where neither says anything.
    """
    chosen: dict[str, Any] = {
        "spark.sql.streaming.stopTimeout": _STOP_TIMEOUT,
        # Their plans tell whether an action read a batch to its end, just after it was done.
        "spark.sql.ui.retainedExecutions": "200",
    }
    if is_local(checkpoint_root(conf)):
        chosen |= LOCAL_CHECKPOINTS
    chosen |= {**(share or {}), **script}
    return chosen | {key: value for key, value in conf.items() if key.startswith("spark.")}


def checkpoint(conf: Mapping[str, Any], storm_id: str, query: str) -> str:
    """Return where a query keeps its checkpoint: the same place at every start of the topology.

    A topology that goes on from another one's checkpoints has that one's folder.
    """
    folder = conf["topology.checkpoint.from"] or storm_id
    return f"{checkpoint_root(conf).rstrip('/')}/{folder}/{query}"


def read_overrides(file: Path) -> dict[str, Any]:
    """Return what a file of overrides says, by key.

    Raises
    ------
    ConfigError
        It cannot be read, or is no JSON object. What is in it is not in the message: it may be
        secret.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: expected a JSON object with a value for each key") from error


def with_overrides(conf: Conf, values: Mapping[str, Any], *, keep: Collection[str] = ()) -> Conf:
    """Return `conf` with the values of overrides, but for the keys to `keep`.

    Raises
    ------
    ConfigError
        When one of them is not what its key may be.
    """
    try:
        return conf.with_values({key: value for key, value in values.items() if key not in keep})
    except ConfigError as error:
        raise ConfigError(f"the topology's saved configuration: {error}") from error


def with_credentials(conf: Conf, credentials: Mapping[str, str]) -> Conf:
    """Return `conf` with a topology's credentials, which win.

    Raises
    ------
    ConfigError
        One has the name of a key and is not what that may be. It is not in the message.
    """
    try:
        return conf.with_values(credentials)
    except ConfigError:
        raise ConfigError(
            "a credential of the topology has the name of a key, and is not what that may be: "
            "give it another one by `storm upload-credentials`"
        ) from None


#: With less, Spark refuses to start (its reserve of 300 MB, one and a half times).
LEAST_HEAP_MB: Final = 512

#: What a worker takes beside the heap, as it was measured with 1.3 million rows through a Python
#: function: the JVM 250 MB and the driver's Python 165 MB, and 100 MB for each of Spark's Python
#: workers, of which a core has one.
BESIDE_MB: Final = 415
CORE_MB: Final = 100


def slot_share(conf: Mapping[str, Any], cores: int) -> dict[str, str]:
    """Return the settings of Spark that make the most of one slot, and no more.

    - The JVM's heap is half of ``topology.worker.memory.mb``. The other half is for what the JVM
      needs besides, for the driver's Python, and for Spark's Python workers.
    - The driver runs on as many cores as the machine has for each of its slots
      (``supervisor.slots.ports``), and as that other half has room for; one at least.

    Parameters
    ----------
    conf
        The configuration.
    cores
        What the machine has.
    """
    memory_mb = int(conf["topology.worker.memory.mb"])
    heap_mb = max(LEAST_HEAP_MB, memory_mb // 2)
    with_room = (memory_mb - heap_mb - BESIDE_MB) // CORE_MB
    return {
        "spark.master": f"local[{max(1, min(slot_cores(conf, cores), with_room))}]",
        "spark.driver.memory": f"{heap_mb}m",
    }


def slot_cores(conf: Mapping[str, Any], cores: int) -> int:
    """Return how many of a machine's `cores` each of its slots has: one at least."""
    return max(1, cores // max(1, len(conf["supervisor.slots.ports"])))
