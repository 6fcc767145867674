"""The rules of `heartbeats.liveness` for whole columns of workers.

A worker that beats once per batch, on one of our servers, is judged in columns. Others (several
servers, a tombstone, a Java Pacemaker) go through `liveness.newest`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.heartbeats.liveness import (
    LivenessLimits,
    ServerHorizon,
    Status,
    Tombstone,
    WorkerBeat,
    WorkerLiveness,
    longest_horizon,
    newest,
)
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows

#: Known workers: the columns of `liveness.WorkerLiveness`; times are seconds since the epoch.
WORKERS: Final = pa.schema(
    [
        ("storm_id", pa.string()),
        ("node", pa.string()),
        ("port", pa.int32()),
        ("server", pa.string()),
        ("instance", pa.string()),
        ("revision", pa.int64()),
        ("last_seen", pa.float64()),
        ("age_secs", pa.float64()),
        ("status", pa.string()),
        ("time_secs", pa.int64()),
        ("uptime_secs", pa.int32()),
        ("error", pa.string()),
        ("moved_from", pa.string()),
        ("moved_at", pa.float64()),
    ]
)

_Record = TypeVar("_Record", WorkerLiveness, WorkerBeat, Tombstone)

_OF_PULSE: Final = (*WorkerId._fields, *WorkerBeat._fields[1:])

#: ``place`` is the position of the newest pulse; ``held``: a Java Pacemaker still has the pulse.
_MERGED: Final = pa.schema([*WORKERS, ("place", pa.int64()), ("held", pa.bool_())])


class Step(NamedTuple):
    """The workers after a batch, and the positions of their newest pulses among the `pulses`.

    `rows` has the columns `WORKERS`, sorted by worker. The `forgotten` have no row, but must be
    remembered: without ages, their pulses would look like a new worker's.
    """

    rows: pa.Table
    taken: pa.Array
    forgotten: list[WorkerLiveness]


def step(
    previous: pa.Table,
    forgotten: Sequence[WorkerLiveness],
    pulses: pa.Table,
    tombstones: pa.Table,
    servers: Mapping[str, ServerHorizon],
    *,
    now: float,
    limits: LivenessLimits,
) -> Step:
    """Return the workers after a batch.

    `previous` has the columns `WORKERS`, sorted by worker, without the `forgotten`.
    """
    pulses = pulses.select(_OF_PULSE).append_column("place", pa.arange(0, pulses.num_rows))
    keys = rows.worker_keys(previous)
    pulses = _drop_older(pulses, previous["server"], keys)
    news = rows.worker_keys(pulses)
    by_row_keys = _row_by_row_keys(news, pulses, tombstones, forgotten, servers)
    is_by_row, is_pulse_by_row = pc.is_in(keys, by_row_keys), pc.is_in(news, by_row_keys)
    by_row = _newest_by_row(
        [*rows_of(previous.filter(is_by_row)), *forgotten],
        pulses.filter(is_pulse_by_row),
        tombstones,
        servers,
        now,
    )
    is_in_columns, known = pc.invert(is_pulse_by_row), pc.index_in(news, keys)
    where, changed = _newest_in_columns(
        previous, known.filter(is_in_columns), pulses.filter(is_in_columns), servers
    )
    found = pa.concat_tables([_unchanged(previous), changed, by_row])
    where = pa.concat_arrays([where, pc.index_in(rows.worker_keys(by_row), keys)])
    found = _judged(_merge_sorted(found, where, is_by_row), servers, now, limits)
    is_over = _is_forgotten(found, servers, limits)
    gone, found = found.filter(is_over), found.filter(pc.invert(is_over))
    without_age = pulses.filter(pc.is_null(pulses["received_at"]))
    down = [name for name, server in servers.items() if not server.reachable]
    may_return = pc.or_(
        pc.is_in(rows.worker_keys(gone), rows.worker_keys(without_age)),
        pc.is_in(gone["server"], pa.array(down, pa.string())),
    )
    taken = rows.one_array(found["place"].drop_null())
    return Step(
        found.select(WORKERS.names),
        taken.take(pc.sort_indices(taken)),
        list(rows_of(gone.filter(may_return))),
    )


def rows_of(table: pa.Table) -> Iterator[WorkerLiveness]:
    for row in _records(table, WorkerLiveness):
        yield row._replace(status=Status(row.status))


def _records(table: pa.Table, of: type[_Record]) -> Iterator[_Record]:
    """Read rows as named tuples, the first field of which is the worker."""
    names = of._fields[1:]
    for storm_id, node, port, *rest in rows.columns_of(table, *WorkerId._fields, *names):
        yield of(WorkerId(storm_id, node, port), *rest)


def _drop_older(pulses: pa.Table, server_before: pa.ChunkedArray, known: pa.Array) -> pa.Table:
    """Drop older pulses of workers that beat again while the server's pages were read.

    All pulses stay of a worker that has moved, has pulses of several servers or instances, or whose
    newest revision is not the newest by receipt.
    """
    keys = rows.worker_keys(pulses)
    several = _repeated(keys)
    if not len(several):
        return pulses
    found = pulses.select(["server", "instance", "revision", "received_at", "place"])
    found = found.append_column("key", keys)
    found = found.filter(pc.is_in(keys, several))
    # If a pulse was read twice, the first counts.
    found = found.sort_by([("revision", "ascending"), ("place", "descending")])
    of_each = found.group_by(["key", "server", "instance"], use_threads=False)
    newest = of_each.aggregate([("place", "last"), ("received_at", "last"), ("received_at", "max")])
    is_latest = pc.equal(newest["received_at_last"], newest["received_at_max"])
    before = server_before.take(pc.index_in(newest["key"], known))
    keep_all = [
        newest["key"].filter(pc.fill_null(pc.not_equal(before, newest["server"]), False)),
        _repeated(newest["key"]),
        newest["key"].filter(pc.invert(pc.fill_null(is_latest, False))),
        found["key"].filter(pc.is_null(found["revision"])),
    ]
    others = pa.concat_arrays(list(map(rows.one_array, keep_all)))
    stays = pc.or_(pc.is_in(found["key"], others), pc.is_in(found["place"], newest["place_last"]))
    over = found["place"].filter(pc.invert(stays))
    return pulses.filter(pc.invert(pc.is_in(pulses["place"], over)))


def _repeated(values: Any) -> pa.Array:
    counts = values.value_counts()
    return counts.field("values").filter(pc.greater(counts.field("counts"), 1))


def _row_by_row_keys(
    news: pa.Array,
    pulses: pa.Table,
    tombstones: pa.Table,
    forgotten: Sequence[WorkerLiveness],
    servers: Mapping[str, ServerHorizon],
) -> pa.Array:
    java = [name for name, server in servers.items() if server.is_java]
    without_age = pc.or_(
        pc.is_null(pulses["received_at"]),
        pc.is_in(pulses["server"], pa.array(java, pa.string())),
    )
    remembered = rows.worker_table(row.worker for row in forgotten)
    keys = [news.filter(without_age), _repeated(news)]
    keys += map(rows.worker_keys, (tombstones, remembered))
    return pc.unique(pa.concat_arrays([rows.one_array(one) for one in keys]))


def _newest_by_row(
    previous: Sequence[WorkerLiveness],
    pulses: pa.Table,
    tombstones: pa.Table,
    servers: Mapping[str, ServerHorizon],
    now: float,
) -> pa.Table:
    beats, buried = list(_records(pulses, WorkerBeat)), list(_records(tombstones, Tombstone))
    known, taken = newest(previous, beats, buried, servers, now=now)
    held = {(beat.worker, beat.server) for beat in beats}
    where = pulses["place"].to_pylist()
    columns: dict[str, list[Any]] = {
        name: [getattr(worker, name) for worker in known] for name in WorkerId._fields
    }
    for name in WorkerLiveness._fields[1:]:
        columns[name] = [getattr(row, name) for row in known.values()]
    columns["place"] = [where[taken[worker]] if worker in taken else None for worker in known]
    columns["held"] = [(row.worker, row.server) in held for row in known.values()]
    return pa.table(columns, schema=_MERGED)


def _newest_in_columns(
    previous: pa.Table, known: pa.Array, pulses: pa.Table, servers: Mapping[str, ServerHorizon]
) -> tuple[pa.Array, pa.Table]:
    """Return the workers with a newer pulse, and the positions in `previous`, or null."""
    was = previous.take(known)
    seen = pc.subtract(
        rows.to_seconds(pulses["received_at"]), _ahead_secs(pulses["server"], servers)
    )
    same_server = pc.fill_null(pc.equal(was["server"], pulses["server"]), False)
    revised = pc.greater(pulses["revision"], was["revision"])  # null where one is
    revised = pc.if_else(
        pc.and_(same_server, rows.is_same(was["instance"], pulses["instance"])), revised, None
    )
    is_newer = pc.coalesce(revised, pc.greater(seen, was["last_seen"]), True)
    is_other = pc.and_(pc.is_valid(known), pc.invert(same_server))
    columns = {name: pulses[name] for name in (*WorkerId._fields, "server", "instance")}
    columns |= {name: pulses[name] for name in ("revision", "time_secs", "uptime_secs", "error")}
    columns["place"] = pulses["place"]
    completed = pc.fill_null(pulses["completed"], False)
    columns |= {
        "last_seen": seen,
        "age_secs": pa.repeat(0.0, pulses.num_rows),
        "status": pc.if_else(completed, str(Status.COMPLETED), str(Status.ALIVE)),
        "moved_from": pc.if_else(is_other, was["server"], was["moved_from"]),
        "moved_at": pc.if_else(is_other, seen, was["moved_at"]),
        "held": pa.repeat(True, pulses.num_rows),
    }
    found = pa.table(columns, schema=_MERGED)
    return known.filter(rows.one_array(is_newer)), found.filter(is_newer)


def _unchanged(previous: pa.Table) -> pa.Table:
    count = previous.num_rows
    previous = previous.append_column("place", pa.nulls(count, pa.int64()))
    return previous.append_column("held", pa.repeat(False, count)).select(_MERGED.names)


def _merge_sorted(found: pa.Table, where: pa.Array, is_by_row: pa.Array) -> pa.Table:
    """Return the workers, sorted, each once: the changed row if there is such a row.

    `found` has the previous workers, then changed and new ones; `where` the position of each of the
    latter in the previous, or null; `is_by_row` marks previous workers to drop.
    """
    count = len(is_by_row)
    now_at = pc.add(pc.index_in(pa.arange(0, count), where.cast(pa.int64())), count)
    order = pc.coalesce(now_at, pc.if_else(is_by_row, None, pa.arange(0, count))).drop_null()
    new = pc.filter(pa.arange(count, count + len(where)), pc.is_null(where))
    found = found.take(
        pa.concat_arrays([rows.one_array(order), rows.one_array(new)])
    ).combine_chunks()
    if not len(new):
        return found
    return found.sort_by([(name, "ascending") for name in WorkerId._fields])


def _judged(
    found: pa.Table, servers: Mapping[str, ServerHorizon], now: float, limits: LivenessLimits
) -> pa.Table:
    age = pc.max_element_wise(pc.subtract(now, found["last_seen"]), 0.0)
    timeout = _timeout(found, limits)
    silent = pc.greater(age, timeout)
    late = pc.if_else(pc.greater(age, limits.late_secs), str(Status.LATE), str(Status.ALIVE))
    proven = pc.equal(found["status"], Status.DEAD)
    if pc.any(pc.and_(silent, pc.invert(proven))).as_py():
        proven = pc.or_(proven, _is_vouched_for(found, servers, timeout))
    dead = pc.if_else(proven, str(Status.DEAD), str(Status.UNPROVEN))
    is_done = pc.equal(found["status"], Status.COMPLETED)
    status = pc.if_else(is_done, str(Status.COMPLETED), pc.if_else(silent, dead, late))
    return rows.replace_column(rows.replace_column(found, "age_secs", age), "status", status)


def _timeout(found: pa.Table, limits: LivenessLimits) -> pa.Array:
    if not limits.timeouts:
        return pa.repeat(limits.timeout_secs, found.num_rows)
    own = pa.array([limits.timeout_of(storm_id) for storm_id in limits.timeouts], pa.float64())
    which = pc.index_in(found["storm_id"], pa.array(limits.timeouts, pa.string()))
    return pc.fill_null(own.take(rows.one_array(which)), limits.timeout_secs)


def _is_vouched_for(
    found: pa.Table, servers: Mapping[str, ServerHorizon], timeout: pa.Array
) -> Any:
    """Return where a newer pulse would have been seen within the timeout."""
    best = pc.less(timeout, longest_horizon(servers))
    vouched = pa.chunked_array([best])
    for name, server in servers.items():
        if not server.reachable:
            left = found["moved_at"].filter(pc.equal(found["moved_from"], name))
            left_at = pc.max(left).as_py()
            since = -inf if left_at is None else left_at
            by_it = pc.and_(pc.less(found["last_seen"], since), best)
        elif server.is_java:
            by_it = found["held"]
        else:
            by_it = pc.less(timeout, server.horizon_secs)
        vouched = pc.if_else(pc.equal(found["server"], name), by_it, vouched)
    return vouched


def _is_forgotten(
    found: pa.Table, servers: Mapping[str, ServerHorizon], limits: LivenessLimits
) -> Any:
    may_return = [name for name, server in servers.items() if not server.is_java]
    of_these = pc.is_in(found["server"], pa.array(may_return, pa.string()))
    hopeless = pc.and_(pc.equal(found["status"], Status.UNPROVEN), pc.invert(of_these))
    over = pc.is_in(found["status"], pa.array([Status.DEAD, Status.COMPLETED], pa.string()))
    too_old = pc.greater(found["age_secs"], limits.forget_secs)
    return pc.and_(too_old, pc.or_(hopeless, over))


def _ahead_secs(names: pa.ChunkedArray, servers: Mapping[str, ServerHorizon]) -> Any:
    which = pc.index_in(names, pa.array(servers, pa.string()))
    ahead = pa.array([server.ahead_secs for server in servers.values()], pa.float64())
    return pc.fill_null(ahead.take(rows.one_array(which)), 0.0)
