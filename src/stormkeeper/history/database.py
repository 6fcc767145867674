"""``HistoryDatabase``: a pipeline's tables, queried with SQL through DuckDB.

Neither Spark nor pyarrow is loaded: an answer takes a fraction of a second. Rows of Storm's own
workers have tasks instead of components, named where Nimbus has listed the tasks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import duckdb

from stormkeeper.errors import TableError
from stormkeeper.history import manifest
from stormkeeper.history.manifest import read_error
from stormkeeper.history.table_reader import SPARK_TYPES, Tables
from stormkeeper.names import topology_name

_TYPES: Final = SPARK_TYPES | {"timestamp[us, tz=UTC]": "timestamptz"}

_FOLDERS: Final = ("liveness", "statistics", "names", "alerts")

_COMPONENTS: Final = "components"

#: More cores make answers no quicker.
_THREADS: Final = 2

_PATTERN: Final = re.compile(r"[][*?]")


class HistoryDatabase:
    """A pipeline's present tables in ``pipeline.tables.dir``; a context manager.

    Raises `TableError` if tables are missing or unreadable.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._tables = [Tables(place) for place in self._places()]
        if not self._tables:
            raise TableError(
                f"there are no tables in {folder} (pipeline.tables.dir); has `storm pipeline` run?"
            )
        self._database = duckdb.connect(config={"threads": _THREADS})
        # DuckDB may not know the machine's time zone, such as GMT+5.
        self._database.execute("SET TimeZone = 'UTC'")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def _places(self) -> list[Path]:
        found = []
        for place in [self._folder / name for name in _FOLDERS]:
            try:
                if (place / manifest.NAME).exists():
                    found.append(place)
            except OSError as error:
                raise read_error(place, error) from error
        return found

    def table(self, name: str, since: datetime | None = None, until: datetime | None = None) -> str:
        """Return a table for FROM in SQL, with all columns and named components.

        With `since` or `until`, only of files that may have rows of this time.
        """
        rows, columns = self._rows(name, since, until)
        if "component" not in columns or name == _COMPONENTS or not self._has_names():
            return f"({rows})"
        return f"({named(f'({rows})', f'({self._rows(_COMPONENTS)[0]})', columns)})"

    def _has_names(self) -> bool:
        return any(
            tables.files(_COMPONENTS)
            for tables in self._tables
            if _COMPONENTS in tables.manifest.tables
        )

    def _rows(
        self, name: str, since: datetime | None = None, until: datetime | None = None
    ) -> tuple[str, Sequence[str]]:
        tables = self._with(name)
        columns = tables.manifest.tables[name].columns
        empty = ", ".join(f'NULL::{_TYPES[kind]} AS "{column}"' for column, kind in columns.items())
        rows = f"SELECT {empty} WHERE false"
        if files := tables.files(name, since, until):
            paths = ", ".join(f"'{_quoted(file)}'" for file in files)
            rows += (
                f" UNION ALL BY NAME SELECT * FROM read_parquet([{paths}], union_by_name=true,"
                " hive_partitioning=false)"
            )
        return rows, [*columns]

    def has(self, name: str) -> bool:
        return any(name in tables.manifest.tables for tables in self._tables)

    def interval_secs(self, name: str) -> float:
        return self._with(name).manifest.interval_secs

    def latest(self, name: str) -> datetime | None:
        """Return the time of a table's newest row, by the manifest; None without rows."""
        files = self._with(name).manifest.tables[name].files
        return max((file.latest for file in files if file.latest is not None), default=None)

    def written_at(self, name: str) -> datetime:
        return self._with(name).manifest.written_at

    def query(self, question: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of a SELECT in DuckDB's SQL, by column; times are in UTC.

        `values` stand for ``?``. Raises `TableError` if DuckDB refuses.
        """
        try:
            answer = self._database.execute(question, list(values))
            columns = [column[0] for column in answer.description]
            return [dict(zip(columns, map(_in_utc, row), strict=True)) for row in answer.fetchall()]
        except duckdb.Error as error:
            for tables in self._tables:
                tables.check_access()  # DuckDB takes what it may not read for what is not there
            raise TableError(f"the tables in {self._folder} cannot be read: {error}") from error

    def _with(self, name: str) -> Tables:
        for tables in self._tables:
            if name in tables.manifest.tables:
                return tables
        known = ", ".join(sorted(each for tables in self._tables for each in tables.names()))
        raise TableError(f"there is no table {name!r} in {self._folder}; these are there: {known}")


def of_id(storm_id: str) -> tuple[str, list[str]]:
    """Return a condition on rows of a topology, and the values.

    Files are sorted by name: a condition on the id alone would read all of them.
    """
    return "topology = ? AND storm_id = ?", [topology_name(storm_id), storm_id]


def is_id(given: str) -> bool:
    return topology_name(given) != given


def of_topology(given: str) -> list[tuple[str, list[str]]]:
    """Return conditions on rows of a topology, in the order to try: by name, then by id."""
    by_name = "topology = ?", [given]
    return [by_name, of_id(given)] if is_id(given) else [by_name]


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _quoted(path: str) -> str:
    """Escape a path for a SQL string, without patterns."""
    return _PATTERN.sub(lambda found: f"[{found[0]}]", path).replace("'", "''")


NO_HEARTBEATS: Final = (
    "does `storm pipeline` run, and do workers send their heartbeats to its Pacemakers?"
)

_NAMED: Final = 8


def meant(given: str, there: Sequence[str]) -> str:
    """Return a suggestion of existing names for an unknown name, or a part of a name.

    >>> meant("WC2", ["clicks", "wc"]), meant("10.0.0.6", ["c1-10.0.0.5", "c1-10.0.0.6"])
    ('did you mean wc?', 'did you mean c1-10.0.0.6?')
    """
    near = [name for name in there if given in name] or _alike(given, there)
    if near:
        return f"did you mean {' or '.join(near[:_NAMED])}?"
    more = f", and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    return f"these are there: {', '.join(there[:_NAMED])}{more}"


def _alike(given: str, there: Sequence[str]) -> list[str]:
    cases = {name.casefold(): name for name in there}
    return [cases[name] for name in difflib.get_close_matches(given.casefold(), cases)]


#: A component of which only tasks are known.
_TASKS: Final = r"tasks ([0-9]+)-([0-9]+)"

_KEYS: Final = ("read_at", "bucket", "storm_id", "topology", "kind", "window", "node", "port")

_SUMS: Final = (
    *("executors", "tasks", "emitted", "transferred", "emitted_all", "transferred_all"),
    *("executed", "acked", "failed"),
)

_WEIGHTS: Final = {
    **dict.fromkeys(("complete_ms_avg", "complete_ms_page"), "acked"),
    **dict.fromkeys(("execute_ms_avg", "execute_ms_page"), "executed"),
    **dict.fromkeys(("process_ms_avg", "process_ms_page"), "executed"),
    **dict.fromkeys(("capacity_mean", "heartbeat_bytes"), "readings"),
}

_LARGEST: Final = 2**63 - 1

#: Tuples of which executors have shares.
_DONE: Final = "CASE kind WHEN 'spout' THEN emitted ELSE executed END"

_SQUARES: Final = "executed::DOUBLE * executed / executors * (1 + pow(coalesce(executed_cv, 0), 2))"
_SPREAD: Final = f"sum(executors) * sum({_SQUARES}) - pow(sum(executed), 2)"

_OTHERS: Final = {
    "workers": "CASE WHEN count(*) = 1 THEN max(workers) END",
    "partial": "bool_or(partial)",
    "largest_share": f"max(largest_share * {_DONE}) / nullif(sum({_DONE}), 0)",
    "executed_cv": f"sqrt(greatest({_SPREAD}, 0)) / nullif(sum(executed), 0)",
}

#: A new column of `component_stats` or a roll-up must be added here, or its rows are no longer
#: merged; `executor_stats` is not merged, on purpose. Without a rule above, a column gets its
#: largest value.
_SUMMED_UP: Final = {
    *(*_KEYS, *_SUMS, *_WEIGHTS, *_OTHERS),
    *("component", "capacity", "interval_secs", "restarts", "readings", "skipped"),
}


def named(rows: str, components: str, columns: Sequence[str]) -> str:
    """Return a SELECT of rows with names of components instead of tasks.

    Executors of a component become one row. They may share workers, so the number of workers is
    unknown, and restarts, readings and skipped are the largest.
    """
    whole = f"SELECT r.* FROM {rows} r ANTI JOIN {components} n ON n.storm_id = r.storm_id"
    first, last = (
        f"try_cast(regexp_extract(r.component, '^{_TASKS}$', {group}) AS INTEGER)"
        for group in (1, 2)
    )
    found = (
        "SELECT r.* REPLACE (coalesce(n.component, r.component) AS component)"
        f" FROM (SELECT r.* FROM {rows} r SEMI JOIN {components} n ON n.storm_id = r.storm_id) r"
        f" LEFT JOIN {components} n ON n.storm_id = r.storm_id"
        f" AND n.task_start <= {first} AND {last} <= n.task_end"
    )
    if set(columns) <= _SUMMED_UP:
        keys = [column for column in columns if column in {*_KEYS, "component"}]
        chosen = [f'"{column}"' for column in keys]
        chosen += [f'{_of(column)} AS "{column}"' for column in columns if column not in keys]
        by = ", ".join(f'"{column}"' for column in keys)
        found = f"SELECT {', '.join(chosen)} FROM ({found}) GROUP BY {by}"
    return f"{whole} UNION ALL BY NAME {found}"


def held(total: str) -> str:
    """Return a sum in SQL, clamped to 64 bits as all counts are."""
    most = f"CASE WHEN {total} > 0 THEN {_LARGEST} WHEN {total} < 0 THEN -{_LARGEST} END"
    return f"coalesce(try_cast({total} AS BIGINT), {most})"


def mean(average: str, weight: str, only: str = "") -> str:
    """Return the mean of averages in SQL, by their weights, of the rows of a FILTER."""
    known = f"CASE WHEN {average} IS NOT NULL THEN {weight} END"
    return f"sum({average} * {weight}){only} / nullif(sum({known}){only}, 0)"


def _of(column: str) -> str:
    if column in _SUMS:
        return held(f"sum({column})")
    if column in _WEIGHTS:
        return mean(column, _WEIGHTS[column])
    return _OTHERS.get(column, f'max("{column}")')


#: The address behind the UUID in a supervisor's id, or the whole id.
_ADDRESS: Final = "regexp_replace(node, '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-(.+)$', '\\2')"

_SILENCES: Final = ("late", "dead", "gone")


def events(
    database: HistoryDatabase,
    subject: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 1000,
) -> list[dict[str, Any]]:
    """Return the newest rows of ``worker_events`` of a subject, oldest first.

    `subject` is a node, host, topology's name or id: the first of these with events. The silence of
    a worker since its topology was killed is one event, ``killed``.
    """
    named = [node for node, host in hosts(database).items() if host == subject]
    marks = ", ".join("?" for _ in [subject, *named])
    of_host = f"(node IN ({marks}) OR {_ADDRESS} = ?)", [subject, *named, subject]
    for which, values in [of_host, *of_topology(subject)]:
        only, times = "", []
        for sign, at in ((">=", since), ("<", until)):
            if at is not None:
                only += f' AND "at" {sign} ?'
                times.append(at)
        found = database.query(
            f"SELECT * FROM {database.table('worker_events', since, until)}"
            f' WHERE {which}{only} ORDER BY "at" DESC, node DESC, port DESC LIMIT ?',
            [*values, *times, limit],
        )
        if found:
            return list(_with_kills(database, found[::-1]))
    return []


def _with_kills(database: HistoryDatabase, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    killed = {}
    if database.has("killed_topologies"):
        rows = database.query(
            "SELECT storm_id, killed_at AS at"
            f" FROM {database.table('killed_topologies')} WHERE killed_at IS NOT NULL"
        )
        killed = {row["storm_id"]: row["at"] for row in rows}
    yielded = set()
    for event in found:
        at = killed.get(event["storm_id"])
        if at is None or event["event"] not in _SILENCES or event["at"] < at:
            yield event
            continue
        worker = (event["storm_id"], event["node"], event["port"])
        if worker not in yielded:
            yielded.add(worker)
            yield {**event, "event": "killed", "evidence": "its topology was killed"}


def check_known(database: HistoryDatabase, subject: str) -> None:
    """Raise `TableError` with a suggestion if a node or topology is unknown."""
    of_each = [
        f"SELECT DISTINCT node, {_ADDRESS} AS address, topology, storm_id"
        f" FROM {database.table(name)}"
        for name in ("worker_liveness", "worker_events")
        if database.has(name)
    ]
    found = database.query(" UNION ".join(of_each))
    if not found:
        raise TableError(f"no worker is known yet: {NO_HEARTBEATS}")
    if any(subject in row.values() for row in found):
        return
    named = hosts(database)
    names = {named.get(row["node"]) or row["address"] for row in found}
    names |= {row["storm_id" if is_id(subject) else "topology"] for row in found}
    if subject not in names:
        there = sorted(name for name in names if name is not None)
        raise TableError(f"nothing is known of {subject!r}; {meant(subject, there)}")


def hosts(database: HistoryDatabase) -> dict[str, str]:
    """By supervisor id, as listed by Nimbus."""
    if not database.has("supervisors"):
        return {}
    rows = database.query(f"SELECT node, host FROM {database.table('supervisors')}")
    return {row["node"]: row["host"] for row in rows}


def alerts(
    database: HistoryDatabase, *, ended: bool = False, severity: str | None = None
) -> list[dict[str, Any]]:
    """Return open alerts, with `ended` also the last day's, the severest and newest first."""
    return database.query(
        f"SELECT * FROM {database.table('alerts')}"
        " WHERE (until IS NULL OR ?) AND (? IS NULL OR severity = ?)"
        " ORDER BY until IS NOT NULL, severity, since DESC, id",
        [ended, severity, severity],
    )


def changes(database: HistoryDatabase, after: datetime) -> list[dict[str, Any]]:
    """Return rows of ``alert_history`` noticed after a time."""
    return database.query(
        f"SELECT * FROM {database.table('alert_history', after)}"
        ' WHERE "at" > ? ORDER BY "at", severity, since, id',
        [after],
    )
