"""The configuration that a topology runs with, and what of it goes to Spark."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stormkeeper.conf import Conf, load
from stormkeeper.conf.folders import checkpoint_root, is_local
from stormkeeper.daemon.spark import LOCAL_CHECKPOINTS
from stormkeeper.errors import ConfigError
from stormkeeper.state import factory
from stormkeeper.topology.topology import Topology
from stormkeeper.worker.overrides import applied

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
        What was saved of the topology's when it was submitted (`stormkeeper.worker.overrides`):
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
    return applied(conf, saved, keep=commanded)


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
        What a slot has of its machine (`stormkeeper.worker.sizes`), where neither says anything.
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
