"""Names and folders of the pipeline's tables and checkpoints.

A checkpoint says what was read, the tables hold the results: the newest batch of both must match,
or pulses that were read before a loss of tables would never be in them. Without a checkpoint, or
with a file that a power failure has truncated (Spark does not sync), the Pacemakers are read from
their beginning.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Final

from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder
from stormkeeper.errors import ConfigError, TableError
from stormkeeper.history import manifest
from stormkeeper.history.manifest import Origin

#: The queries, and their folders.
LIVENESS: Final = "liveness"
STATISTICS: Final = "statistics"

#: The folder of the analyses, and its first table.
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

#: Tables from which the next batch continues the roll-ups.
EXECUTOR_COUNTERS: Final = "executor_counters"
ROLLUP_OPEN: Final = "rollup_open"
ROLLUP_PARTS: Final = "rollup_parts"

#: The folder of Nimbus's answers, and its tables.
NAMING: Final = "names"
COMPONENTS: Final = "components"
TOPOLOGIES: Final = "topologies"

#: Tables for readers, by folder.
NAMES: Final = {
    LIVENESS: (WORKER_LIVENESS, WORKER_EVENTS, SERVERS),
    STATISTICS: (
        *(WORKER_REPORTS, WORKER_STATS, EXECUTOR_STATS, COMPONENT_STATS, TOPOLOGY_STATS),
        *(ROLLUP_1M, ROLLUP_10M, ROLLUP_60M, REJECTED),
    ),
    ALERTS: (ALERTS, ALERT_HISTORY, KILLED_TOPOLOGIES, SUPERVISORS),
}


log = logging.getLogger(__name__)

#: Below the tables, so that both are moved together.
WITHIN_TABLES: Final = ".checkpoint"

#: Spark reads the files of so many newest batches first.
_READ_FIRST: Final = 2


def tables_folder(conf: Conf) -> Path:
    """Raise `ConfigError` for a URL, as `checkpoints_folder`."""
    given = _given(conf, "pipeline.tables.dir")
    return given or folder("storm.local.dir", conf["storm.local.dir"]) / "tables"


def checkpoints_folder(conf: Conf) -> Path | None:
    return _given(conf, "pipeline.checkpoint.dir")


def query_folders(conf: Conf, query: str) -> tuple[Path, Path]:
    tables, checkpoints = tables_folder(conf) / query, checkpoints_folder(conf)
    return tables, default_checkpoint(tables) if checkpoints is None else checkpoints / query


def _given(conf: Conf, key: str) -> Path | None:
    given = conf[key]
    if given and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", given):
        raise ConfigError(
            f"{key} is a folder on a local or mounted file system, not a URL as {given!r}: the "
            "pipeline publishes its tables by renaming a file, which object stores cannot do in "
            f"one step; set {key} to a local folder, and copy its files from there"
        )
    return folder(key, given) if given else None


def default_checkpoint(directory: Path) -> Path:
    return directory / WITHIN_TABLES


def prepare_checkpoint(checkpoint: Path, directory: Path) -> None:
    """Let the next query continue from the checkpoint, or remove a checkpoint that does not match.

    A configured checkpoint may be another pipeline's: `TableError` is raised instead.
    """
    try:
        torn = _torn(checkpoint)
        if torn is None and _belongs(checkpoint, directory):
            return
        if checkpoint == default_checkpoint(directory):
            what = f"the checkpoint {checkpoint} does not belong to the tables in {directory}"
            log.warning("%s: the Pacemakers are read from their beginning", torn or what)
            _remove(checkpoint)
            return
    except OSError as error:
        raise TableError(
            f"the tables in {directory} and their checkpoint {checkpoint} cannot be used: {error}"
        ) from error
    if torn is not None:
        raise TableError(
            f"{torn}: delete the checkpoint {checkpoint}; nothing is lost: the Pacemakers are then "
            "read from their beginning"
        )
    raise TableError(
        f"pipeline.checkpoint.dir, {checkpoint}, does not belong to the tables in "
        f"{directory}: workers that are silent now would never be in them; set pipeline.tables.dir "
        "to the checkpoint's own tables, or delete the checkpoint; nothing is lost: the Pacemakers "
        "are then read from their beginning"
    )


def check_first_batch(batch: Origin, directory: Path) -> None:
    """Raise `TableError` unless a process's first micro-batch follows the newest of the tables."""
    if batch.batch == 0:
        return
    found = manifest.load(directory)
    done = Origin(batch.query, batch.batch - 1)
    if found is not None and found.origin in (done, batch):
        return
    what = "are not there" if found is None else "are of another query, or of an older batch"
    raise TableError(
        f"the query continues from its checkpoint with batch {batch.batch}, but its tables in "
        f"{directory} {what}: workers that are silent now would never be in them. If several "
        "machines share the checkpoint, pipeline.tables.dir must be a folder that they share, "
        "too. If the tables are lost, begin with a new checkpoint: the "
        "Pacemakers are then read from their beginning"
    )


def _belongs(checkpoint: Path, directory: Path) -> bool:
    done = _done(checkpoint)
    if done is None:
        return not _is_remains(checkpoint)
    found = manifest.load(directory)
    if found is None or found.origin.query != done.query:
        return False
    return found.origin.batch >= done.batch


def _torn(checkpoint: Path) -> str | None:
    """Return a message about a truncated file among the files that Spark reads first, if any."""
    for name in ("offsets", "commits"):
        batches = [path for path in (checkpoint / name).glob("*") if path.name.isdecimal()]
        for path in sorted(batches, key=lambda path: int(path.name))[-_READ_FIRST:]:
            with path.open("rb") as file:
                if file.read(1) != b"v":  # each file begins with its version
                    return f"{path} was not written whole, as after a power failure"
    return None


def _is_remains(checkpoint: Path) -> bool:
    """Return whether a folder moved away under a pipeline left batches that Spark refuses."""
    begun = any(path.name.isdecimal() for path in (checkpoint / "offsets").glob("*"))
    return begun and not (checkpoint / "metadata").exists()


def _remove(checkpoint: Path) -> None:
    # In one step: half a checkpoint may look like a matching one.
    aside = checkpoint.with_name(f"{checkpoint.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(checkpoint.rename(aside), ignore_errors=True)


def _done(checkpoint: Path) -> Origin | None:
    """Return the newest micro-batch that Spark has marked as done, if any."""
    commits = checkpoint / "commits"
    if not commits.is_dir():
        return None
    numbers = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()]
    return Origin(_query(checkpoint), max(numbers)) if numbers else None


def _query(checkpoint: Path) -> str:
    """Return the query's id, or "": then Spark takes a new id."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""
