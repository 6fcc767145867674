"""The tables of the pipeline, by the folder that they are in; `stormkeeper.history` keeps them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder
from stormkeeper.errors import ConfigError
from stormkeeper.pipeline import checkpoint

#: The queries: each has a folder of this name, with its tables and its checkpoint.
LIVENESS: Final = "liveness"
STATISTICS: Final = "statistics"

#: The folder of what the analyses find, and the first of its tables.
ALERTS: Final = "alerts"
ALERT_HISTORY: Final = "alert_history"
KILLED_TOPOLOGIES: Final = "killed_topologies"
SUPERVISORS: Final = "supervisors"

WORKER_LIVENESS: Final = "worker_liveness"
WORKER_EVENTS: Final = "worker_events"
SERVERS: Final = "servers"
WORKER_REPORTS: Final = "worker_reports"
WORKER_STATS: Final = "worker_stats"
EXECUTOR_STATS: Final = "executor_stats"
COMPONENT_STATS: Final = "component_stats"
TOPOLOGY_STATS: Final = "topology_stats"
REJECTED: Final = "rejected"
ROLLUP_1M: Final = "rollup_1m"
ROLLUP_10M: Final = "rollup_10m"
ROLLUP_60M: Final = "rollup_60m"

#: What the roll-ups are made from in the next batch.
EXECUTOR_COUNTERS: Final = "executor_counters"
ROLLUP_OPEN: Final = "rollup_open"
ROLLUP_PARTS: Final = "rollup_parts"

#: The folder of what Nimbus says of topologies, and the tables in it.
NAMING: Final = "names"
COMPONENTS: Final = "components"
TOPOLOGIES: Final = "topologies"

#: All that are for readers, by folder.
NAMES: Final = {
    LIVENESS: (WORKER_LIVENESS, WORKER_EVENTS, SERVERS),
    STATISTICS: (
        *(WORKER_REPORTS, WORKER_STATS, EXECUTOR_STATS, COMPONENT_STATS, TOPOLOGY_STATS),
        *(ROLLUP_1M, ROLLUP_10M, ROLLUP_60M, REJECTED),
    ),
    ALERTS: (ALERTS, ALERT_HISTORY, KILLED_TOPOLOGIES, SUPERVISORS),
}


def tables_folder(conf: Conf) -> Path:
    """Return where the tables are: ``pipeline.tables.dir``.

    Raises
    ------
    ConfigError
        When that is a URL.
    """
    given = _given(conf, "pipeline.tables.dir")
    return given or folder("storm.local.dir", conf["storm.local.dir"]) / "tables"


def checkpoints_folder(conf: Conf) -> Path | None:
    """Return where the queries' checkpoints are, likewise, if ``pipeline.checkpoint.dir`` says."""
    return _given(conf, "pipeline.checkpoint.dir")


def query_folders(conf: Conf, query: str) -> tuple[Path, Path]:
    """Return the folders of a query's tables and of its checkpoint, likewise."""
    tables, checkpoints = tables_folder(conf) / query, checkpoints_folder(conf)
    return tables, checkpoint.default(tables) if checkpoints is None else checkpoints / query


def _given(conf: Conf, key: str) -> Path | None:
    given = conf[key]
    if given and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", given):
        raise ConfigError(
            f"{key} is a folder on a local or mounted file system, not a URL as {given!r}: the "
            "pipeline publishes its tables by renaming a file, which object stores cannot do in "
            f"one step; set {key} to a local folder, and copy its files from there"
        )
    return folder(key, given) if given else None
