"""The configuration of a worker: layers, the topology's saved values, and the settings of Spark.

From the lowest to the highest layer: the cluster's files, the topology's own conf, the values that
were saved when it was submitted, the command line, and the topology's credentials.
"""

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
from stormkeeper.state import backends
from stormkeeper.topology.topology import Topology

log = logging.getLogger(__name__)

#: How long Spark waits for a stopped query's thread; Spark's default is for ever.
_STOP_TIMEOUT = "20s"

#: Smallest heap with which Spark starts: 1.5 times its reserve of 300 MB.
LEAST_HEAP_MB: Final = 512

#: Memory of a worker besides the heap, measured with 1.3 million rows through a Python function:
#: 250 MB for the JVM and 165 MB for the driver's Python, and 100 MB for each core's Python worker.
BESIDE_MB: Final = 415
CORE_MB: Final = 100


def merged(
    topology: Topology | None,
    *,
    files: Sequence[Path] | None = None,
    overrides: Sequence[str] = (),
    strict: bool = False,
    saved: Mapping[str, Any] | None = None,
) -> Conf:
    """Return the configuration of all layers but the credentials.

    `files`, `overrides` and `strict` are as for `stormkeeper.conf.load`; `saved` are the values
    that were saved when the topology was submitted. Raises `ConfigError` for an invalid layer.
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
    """Return `conf` with the topology's own values, except for the keys to `keep`."""
    if topology is None:
        return conf
    values = {key: value for key, value in topology.conf.items() if key not in keep}
    try:
        return conf.with_values({"topology.name": topology.name} | values)
    except ConfigError as error:
        what = str(error).removeprefix("with_values: ")
        raise ConfigError(f"the conf of the topology {topology.name!r}: {what}") from error


def read_overrides(file: Path) -> dict[str, Any]:
    """Read a file of saved values, by key; errors leave out the content, which may be secret."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: expected a JSON object with a value for each key") from error


def with_overrides(conf: Conf, values: Mapping[str, Any], *, keep: Collection[str] = ()) -> Conf:
    """Return `conf` with saved values, except for the keys to `keep`."""
    try:
        return conf.with_values({key: value for key, value in values.items() if key not in keep})
    except ConfigError as error:
        raise ConfigError(f"the topology's saved configuration: {error}") from error


def with_credentials(conf: Conf, credentials: Mapping[str, str]) -> Conf:
    """Return `conf` with a topology's credentials; errors leave out the value."""
    try:
        return conf.with_values(credentials)
    except ConfigError:
        raise ConfigError(
            "a credential of the topology has the name of a key, and a value that the key does not"
            " allow: rename the credential by `storm upload-credentials`"
        ) from None


def warn_of_silent_pacemakers(conf: Conf) -> None:
    """Warn if Pacemakers are configured but heartbeats go to ZooKeeper."""
    store = conf["storm.cluster.state.store"]
    if store == backends.ZOOKEEPER_STORE and conf["pacemaker.servers"]:
        log.warning(
            "heartbeats go to ZooKeeper, and not to pacemaker.servers; to send them there, set "
            "storm.cluster.state.store=%s",
            backends.PACEMAKER_STORES[0],
        )


def warn_of_own_checkpoints(conf: Mapping[str, Any]) -> None:
    """Warn if executors on other machines would keep state on their own disks."""
    root = checkpoint_root(conf)
    if is_local(root) and not conf["topology.checkpoint.shared"]:
        log.warning(
            "executors on other machines would keep the state of queries in a %s of their own,"
            " where the others do not find it: set topology.checkpoint.dir to a folder that all"
            " machines share, and topology.checkpoint.shared to true",
            root,
        )


def spark_values(
    conf: Mapping[str, Any], script: Mapping[str, Any], share: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the ``spark.*`` settings of a session; `conf` beats `script`, which beats `share`."""
    chosen: dict[str, Any] = {
        "spark.sql.streaming.stopTimeout": _STOP_TIMEOUT,
        # Plans of finished actions tell whether they read a batch to its end.
        "spark.sql.ui.retainedExecutions": "200",
    }
    if is_local(checkpoint_root(conf)):
        chosen |= LOCAL_CHECKPOINTS
    chosen |= {**(share or {}), **script}
    return chosen | {key: value for key, value in conf.items() if key.startswith("spark.")}


def checkpoint(conf: Mapping[str, Any], storm_id: str, query: str) -> str:
    """Return the location of a query's checkpoint, the same at every start of the topology.

    A topology that continues from another one's checkpoints uses that topology's folder.
    """
    folder = conf["topology.checkpoint.from"] or storm_id
    return f"{checkpoint_root(conf).rstrip('/')}/{folder}/{query}"


def slot_share(conf: Mapping[str, Any], cores: int) -> dict[str, str]:
    """Return the Spark settings for a slot of a machine with so many cores.

    Half of ``topology.worker.memory.mb`` is the JVM's heap; the rest is for the JVM besides, the
    driver's Python, and Python workers, which limit the slot's cores.
    """
    memory_mb = int(conf["topology.worker.memory.mb"])
    heap_mb = max(LEAST_HEAP_MB, memory_mb // 2)
    with_room = (memory_mb - heap_mb - BESIDE_MB) // CORE_MB
    return {
        "spark.master": f"local[{max(1, min(slot_cores(conf, cores), with_room))}]",
        "spark.driver.memory": f"{heap_mb}m",
    }


def slot_cores(conf: Mapping[str, Any], cores: int) -> int:
    """Return the cores of each of a machine's slots, at least 1."""
    return max(1, cores // max(1, len(conf["supervisor.slots.ports"])))
