"""The tables of the pipeline, by the folder that they are in; `stormkeeper.history` keeps them."""

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


log = logging.getLogger(__name__)

#: The checkpoint's folder where none is configured, within that of the tables: what is done to
#: these is done to it. Whoever reads the tables passes over such names.
WITHIN_TABLES: Final = ".checkpoint"

#: Of how many batches, the newest, Spark reads what was noted when a query begins.
_READ_FIRST: Final = 2


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
    return tables, default(tables) if checkpoints is None else checkpoints / query


def _given(conf: Conf, key: str) -> Path | None:
    given = conf[key]
    if given and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", given):
        raise ConfigError(
            f"{key} is a folder on a local or mounted file system, not a URL as {given!r}: the "
            "pipeline publishes its tables by renaming a file, which object stores cannot do in "
            f"one step; set {key} to a local folder, and copy its files from there"
        )
    return folder(key, given) if given else None


def default(directory: Path) -> Path:
    """Return the folder of the checkpoint that goes with the tables of a folder."""
    return directory / WITHIN_TABLES


def begin(checkpoint: Path, directory: Path) -> None:
    """Have the next query go on where the tables are, or begin anew where it cannot.

    It begins anew without the checkpoint within the tables' folder. One that is configured may be
    anybody's, and stays.

    Raises
    ------
    TableError
        When a checkpoint that is configured does not belong to the tables, or a folder cannot be
        read or written.
    """
    try:
        torn = _torn(checkpoint)
        if torn is None and _belongs(checkpoint, directory):
            return
        if checkpoint == default(directory):
            what = f"the tables in {directory} are not those that the checkpoint {checkpoint} is of"
            log.warning("%s: the Pacemakers are read from their beginning", torn or what)
            _remove(checkpoint)
            return
    except OSError as error:
        raise TableError(
            f"the tables in {directory} and their checkpoint {checkpoint} cannot be used: {error}"
        ) from error
    if torn is not None:
        raise TableError(
            f"{torn}: delete the checkpoint {checkpoint}, with which nothing is lost: the "
            "Pacemakers are then read from their beginning"
        )
    raise TableError(
        f"pipeline.checkpoint.dir, {checkpoint}, does not go with the tables in {directory}: "
        "workers that are silent now would never be in them; set pipeline.tables.dir to the "
        "checkpoint's own tables, or delete the checkpoint, with which nothing is lost: the "
        "Pacemakers are then read from their beginning"
    )


def check_next(batch: Origin, directory: Path) -> None:
    """See to it that the first micro-batch of a process is the one that follows the tables.

    For whoever does not know where the checkpoint is: this is said of any, on any file system.

    Raises
    ------
    TableError
        When what the batches before it had read is not in the tables.
    """
    if batch.batch == 0:
        return
    found = manifest.load(directory)
    done = Origin(batch.query, batch.batch - 1)
    if found is not None and found.origin in (done, batch):
        return
    what = "are not there" if found is None else "are of another query, or of an older batch"
    raise TableError(
        f"the query goes on from its checkpoint with batch {batch.batch}, and the tables in "
        f"{directory} that go with it {what}: workers that are silent now would never be in them. "
        "Where the checkpoint is shared by several machines, pipeline.tables.dir has to be a "
        "folder that they share, too. If the tables are lost, begin with a new checkpoint: the "
        "Pacemakers are then read from their beginning"
    )


def _belongs(checkpoint: Path, directory: Path) -> bool:
    """Whether all that a checkpoint says was read is in the tables of a folder."""
    done = _done(checkpoint)
    if done is None:
        return not _is_remains(checkpoint)
    found = manifest.load(directory)
    if found is None or found.origin.query != done.query:
        return False
    return found.origin.batch >= done.batch


def _torn(checkpoint: Path) -> str | None:
    """Say which of the files that Spark reads first was not written whole, if one was not."""
    for name in ("offsets", "commits"):
        batches = [path for path in (checkpoint / name).glob("*") if path.name.isdecimal()]
        for path in sorted(batches, key=lambda path: int(path.name))[-_READ_FIRST:]:
            with path.open("rb") as file:
                if file.read(1) != b"v":  # of its version
                    return f"{path} was not written whole, as after a power failure"
    return None


def _is_remains(checkpoint: Path) -> bool:
    """Whether batches were begun for a query that is not noted there, which Spark refuses.

    So it is where the folder was moved away under a pipeline: Spark makes it again for what it
    writes next.
    """
    begun = any(path.name.isdecimal() for path in (checkpoint / "offsets").glob("*"))
    return begun and not (checkpoint / "metadata").exists()


def _remove(checkpoint: Path) -> None:
    # By one step: half a checkpoint may look like one that belongs.
    aside = checkpoint.with_name(f"{checkpoint.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(checkpoint.rename(aside), ignore_errors=True)


def _done(checkpoint: Path) -> Origin | None:
    """Return the newest micro-batch that Spark has noted as done; None if there is none."""
    commits = checkpoint / "commits"
    if not commits.is_dir():
        return None
    numbers = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()]
    return Origin(_query(checkpoint), max(numbers)) if numbers else None


def _query(checkpoint: Path) -> str:
    """Return the query's id; Spark takes a new one where there is none."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""
