"""Small tables, and what is in a folder of them."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stormkeeper.history import manifest
from stormkeeper.history.manifest import Origin
from stormkeeper.history.parquet import TIME, Retention, TableSpec
from stormkeeper.history.table_reader import Tables
from stormkeeper.history.table_store import TableStore

#: Seconds since the epoch at which the tests' clocks begin.
BEGAN = 1_800_000_000.0

STATE = TableSpec("state", pa.schema([("x", pa.int64())]), "current")
EVENTS = TableSpec(
    "events",
    pa.schema([("at", TIME), ("subject", pa.string()), ("x", pa.int64())]),
    "log",
    time="at",
    sort=("subject", "at"),
)
SHORT = TableSpec("short", EVENTS.schema, "log", time="at", retention=Retention(hours=1))


def at(secs: float) -> datetime:
    """The time so many seconds after the beginning."""
    return datetime.fromtimestamp(BEGAN, UTC) + timedelta(seconds=secs)


def state(*values: int) -> pa.Table:
    """Rows of `STATE`."""
    return pa.table({"x": pa.array(values, pa.int64())})


def events(*values: int, secs: float | None = None) -> pa.Table:
    """Rows of `EVENTS`, one a second unless all are of one."""
    times = [at(value if secs is None else secs) for value in values]
    columns = {"at": pa.array(times, TIME), "subject": [str(value % 3) for value in values]}
    return pa.table({**columns, "x": pa.array(values, pa.int64())})


def origin(batch: int, query: str = "q") -> Origin:
    return Origin(query, batch)


def values(folder: Path, name: str) -> list[int]:
    """The values of a table as it is now, sorted."""
    return sorted(Tables(folder).arrow(name)["x"].to_pylist())


def data_files(folder: Path) -> set[str]:
    """The Parquet files that are on the disk."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")}


def store(folder: Path, *specs: TableSpec, **settings: object) -> TableStore:
    """A store of `STATE` and `EVENTS`, or of other tables. A clock that is given is not set."""
    if "clock" in settings:
        settings = {"steady": settings["clock"], **settings}
    return TableStore(folder, specs or (STATE, EVENTS), **{"interval_secs": 15.0, **settings})


def present(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table as it is now; none before the first commit."""
    return Tables(folder).arrow(name).to_pylist() if manifest.load(folder) else []


def past(folder: Path, name: str) -> list[list[dict[str, Any]]]:
    """The rows of a present table by commit, for as long as its files stay."""
    found = []
    for path in sorted((folder / name).glob("*.parquet")):
        with suppress(pa.ArrowInvalid):  # it is being written
            found.append(pq.read_table(path).to_pylist())
    return found
