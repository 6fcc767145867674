"""The components of rows that have tasks in their place, as those of Storm's own workers have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: What a component is called whose tasks alone are known.
_TASKS: Final = r"tasks ([0-9]+)-([0-9]+)"

#: What tells rows of one component apart.
_KEYS: Final = ("read_at", "bucket", "storm_id", "topology", "kind", "window", "node", "port")

_SUMS: Final = (
    *("executors", "tasks", "emitted", "transferred", "emitted_all", "transferred_all"),
    *("executed", "acked", "failed"),
)

#: Averages, each with what it is weighed by.
_WEIGHTS: Final = {
    **dict.fromkeys(("complete_ms_avg", "complete_ms_page"), "acked"),
    **dict.fromkeys(("execute_ms_avg", "execute_ms_page"), "executed"),
    **dict.fromkeys(("process_ms_avg", "process_ms_page"), "executed"),
    **dict.fromkeys(("capacity_mean", "heartbeat_bytes"), "readings"),
}

_LARGEST: Final = 2**63 - 1

#: What a spout or a bolt has done, of which executors have shares.
_DONE: Final = "CASE kind WHEN 'spout' THEN emitted ELSE executed END"

_SQUARES: Final = "executed::DOUBLE * executed / executors * (1 + pow(coalesce(executed_cv, 0), 2))"
_SPREAD: Final = f"sum(executors) * sum({_SQUARES}) - pow(sum(executed), 2)"

#: The other columns whose value is not the largest one.
_OTHERS: Final = {
    "workers": "CASE WHEN count(*) = 1 THEN max(workers) END",
    "partial": "bool_or(partial)",
    "largest_share": f"max(largest_share * {_DONE}) / nullif(sum({_DONE}), 0)",
    "executed_cv": f"sqrt(greatest({_SPREAD}, 0)) / nullif(sum(executed), 0)",
}

#: The columns of tables in which executors of one component can be put together.
_SUMMED_UP: Final = {
    *(*_KEYS, *_SUMS, *_WEIGHTS, *_OTHERS),
    *("component", "capacity", "interval_secs", "restarts", "readings", "skipped"),
}


def named(rows: str, components: str, columns: Sequence[str]) -> str:
    """Return a SELECT of rows in which tasks have the names of their components.

    What executors counted becomes one row per component again: counts are added up, averages are
    weighed by their counts, and a capacity is the largest. How many workers a component has is not
    known then, as two of its executors may be in one; so restarts, readings and what was skipped
    are those of the executor with the most.

    Parameters
    ----------
    rows
        A table with a column ``component``, as SQL has it after FROM.
    components
        The table ``components``, likewise.
    columns
        Those of `rows`.
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
    """Return a sum as SQL has it, cut to what 64 bits hold, as all counts are."""
    most = f"CASE WHEN {total} > 0 THEN {_LARGEST} WHEN {total} < 0 THEN -{_LARGEST} END"
    return f"coalesce(try_cast({total} AS BIGINT), {most})"


def _of(column: str) -> str:
    """Return the value of a column for the executors of one component."""
    if column in _SUMS:
        return held(f"sum({column})")
    if column in _WEIGHTS:
        weight = _WEIGHTS[column]
        known = f"CASE WHEN {column} IS NOT NULL THEN {weight} END"
        return f"sum({column} * {weight}) / nullif(sum({known}), 0)"
    return _OTHERS.get(column, f'max("{column}")')
