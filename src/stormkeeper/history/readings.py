"""A topology's newest reading, or its course of time; an error says what is there instead."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stormkeeper.errors import TableError
from stormkeeper.history import statistics
from stormkeeper.history.asking import Past, is_id
from stormkeeper.history.suggesting import NO_HEARTBEATS, meant


@dataclass(frozen=True, slots=True)
class Reading:
    """The newest reading of a topology, or of one of its components.

    Attributes
    ----------
    storm_id
        The topology's id.
    read_at
        When it was read.
    newest_at
        When anything was read last.
    interval_secs
        How often the pipeline reads.
    totals
        Rows of ``topology_stats``, per window.
    components
        Rows of ``component_stats``, per component and window.
    executors
        What `statistics.executors` returns, of one component; None: of none.
    """

    storm_id: str
    read_at: datetime
    newest_at: datetime
    interval_secs: float
    totals: list[dict[str, Any]]
    components: list[dict[str, Any]]
    executors: list[dict[str, Any]] | None = None


def reading(past: Past, topology: str, component: str | None, window: str) -> Reading:
    """Return the newest reading.

    Raises
    ------
    TableError
        The topology or the component is not there.
    """
    rows = statistics.newest(past, topology, component)
    if not rows:
        raise _unknown(past, topology, component)
    storm_id, read_at = rows[0]["storm_id"], max(row["read_at"] for row in rows)
    return Reading(
        storm_id,
        read_at,
        past.latest("component_stats") or read_at,
        past.interval_secs("component_stats"),
        statistics.totals(past, storm_id),
        rows,
        None
        if component is None
        else statistics.executors(past, storm_id, component, window, rows[0]["executors"]),
    )


def course(
    past: Past, topology: str, component: str | None, since: datetime, until: datetime
) -> tuple[int, list[dict[str, Any]]]:
    """Return the length of a bucket in seconds, and what `statistics.course` returns.

    If no bucket of the length that suits the time is over, as of a pipeline that was started not
    long ago, the buckets are shorter ones.

    Raises
    ------
    TableError
        The topology or the component is not there.
    """
    longest = statistics.BUCKET_SECS[statistics.rollup_for(until - since)]
    for rollup, secs in reversed(statistics.BUCKET_SECS.items()):
        if secs <= longest:
            found = statistics.course(
                past, topology, since, until, component=component, rollup=rollup
            )
            if found:
                return secs, found
    if not statistics.newest(past, topology, component):
        raise _unknown(past, topology, component)
    return longest, []


def _unknown(past: Past, topology: str, component: str | None) -> TableError:
    rows = statistics.newest(past, topology) if component is not None else []
    if component is not None and rows:
        there = sorted({row["component"] for row in rows})
        return TableError(f"{topology} has no component {component!r}; {meant(component, there)}")
    names, ids = statistics.topologies(past)
    if not names:
        return TableError(f"nothing has been counted yet: {NO_HEARTBEATS}")
    if is_id(topology):
        names = ids
    return TableError(f"nothing is known of a topology {topology!r}; {meant(topology, names)}")
