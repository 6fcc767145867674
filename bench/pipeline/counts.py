"""Compares what the pipeline says that workers counted with what they have said.

The sums are made anew here, one number after the other, by the definitions of Storm's pages: of a
worker's last heartbeat, which the pipeline has read after the simulation's end.
"""

import math
from collections import defaultdict

import duckdb

_COUNTS = ("emitted", "transferred", "executed", "acked", "failed")
_AVERAGES = ("complete_ms_avg", "execute_ms_avg", "process_ms_avg")
_WEIGHTS = {
    "complete_ms_avg": "acked",
    "execute_ms_avg": "executed",
    "process_ms_avg": "executed",
}
_WINDOWS = ("600", "10800", "86400", ":all-time")
_CAPACITY_SECS = 600
#: Sums of fractions depend on their order.
_RELATIVE = 1e-9

_SIZES = ("workers", "executors", "tasks")
_OF_COMPONENT = (
    *(*_SIZES, "emitted", "transferred", "emitted_all", "transferred_all"),
    *("executed", "acked", "failed", *_AVERAGES, "capacity"),
)
_OF_TOPOLOGY = (
    *(*_SIZES, "emitted", "transferred", "emitted_all", "transferred_all"),
    *("acked", "failed", "complete_ms_avg"),
)


def compare(truth, statistics, reports, verdict):
    """Judge `executor_stats`, `component_stats` and `topology_stats`.

    Parameters
    ----------
    truth
        A `truth.Truth`; of the topologies whose counters it kept.
    statistics
        The `Tables`, of a batch that was read after the simulation's end.
    reports
        The rows of `worker_reports`, by worker.
    verdict
        An `agreement.Verdict` to add to.
    """
    known = defaultdict(dict)
    for worker in reports:
        lives = truth.lives.get(worker, [])
        if worker[0] in truth.counted and worker[0] not in truth.deleted and lives:
            is_sure = not any(life.failed for life in lives)
            known[worker[0]][worker] = lives[-1].last if is_sure else None
    # What cannot be said of one worker cannot be said of its topology.
    known = {id_: lasts for id_, lasts in known.items() if all(lasts.values())}
    if not known:
        return
    named = truth.run["names_components"]
    rows = {id_: [*_rows(lasts, named)] for id_, lasts in known.items()}
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        forgotten = truth.lives.keys() - reports.keys()
        _of_executors(database, statistics, rows, forgotten, verdict)
        rows = {id_: _of_holders(of_one, truth) for id_, of_one in rows.items()}
        expected = {id_: _component_sums(of_one) for id_, of_one in rows.items()}
        _of_sums(database, statistics, "component_stats", expected, verdict)
        expected = {id_: _topology_sums(of_one) for id_, of_one in rows.items()}
        _of_sums(database, statistics, "topology_stats", expected, verdict)


def _rows(lasts, named):
    """Yield what each executor counted, one row per window and stream, as `executor_stats` does."""
    for worker, last in lasts.items():
        for told in last["executors"]:
            tasks = told["task_start"], told["task_end"]
            label = "__system" if tasks[0] < 1 else "tasks {}-{}".format(*tasks)
            one = {
                "worker": worker,
                "uptime_secs": last["uptime_secs"],
                "tasks": tasks,
                "component": told["component"] if named else label,
                "kind": "spout" if "complete_ms_avg" in told else "bolt",
            }
            for window in _WINDOWS:
                streams = defaultdict(dict)
                for name in (*_COUNTS, *_AVERAGES):
                    for key, value in _by_stream(told.get(name, {}).get(window, {})):
                        streams[key][name] = value
                for (source, stream), values in streams.items() or [((None, None), {})]:
                    yield one | {"window": window, "source": source, "stream": stream} | values


def _of_holders(rows, truth):
    """Return what counts: of a worker that was moved, its executors are another's that began later.

    A worker in a simulation has the same executors in each of its lives.
    """
    holders = {}
    for row in rows:
        began = truth.lives[row["worker"]][-1].started_at
        holders[row["tasks"]] = max(holders.get(row["tasks"], (0.0, ())), (began, row["worker"]))
    return [row for row in rows if row["tasks"][0] < 1 or holders[row["tasks"]][1] == row["worker"]]


def _by_stream(values):
    if isinstance(values, dict):
        return [((None, stream), value) for stream, value in values.items()]
    return [((source, stream), value) for source, stream, value in values]


def _of_executors(database, statistics, rows, forgotten, verdict):
    """Each worker's newest reading says what its last heartbeat said.

    Who has been dead for an hour is forgotten, but not by the log.
    """
    names = ("task_start", "task_end", "component", "kind", "window", "source", "stream")
    query = f"""
        SELECT storm_id, node, port, {_quoted(*names, *_COUNTS, *_AVERAGES)}
        FROM read_parquet($files, union_by_name = true)
        JOIN (
            SELECT storm_id, node, port, max(read_at) AS read_at
            FROM read_parquet($files, union_by_name = true) WHERE storm_id IN $ids GROUP BY ALL
        ) USING (storm_id, node, port, read_at)
    """
    given = {"files": statistics.files("executor_stats"), "ids": [*rows]}
    found = {}
    for row in database.execute(query, given).fetchall():
        found[row[:3], row[3:10]] = row[10:]
    for of_one in rows.values():
        for row in of_one:
            is_silent = row["stream"] is None
            kind = row["kind"]
            key = (
                *(*row["tasks"], row["component"], kind),
                *(row["window"], row["source"], row["stream"]),
            )
            said = found.pop((row["worker"], key), None)
            told = tuple(row.get(name) for name in (*_COUNTS, *_AVERAGES))
            rule = "an executor has counted something else"
            verdict.hold(rule, said == told or (is_silent and said), row["worker"], key, said, told)
    for worker, key in found:
        if worker not in forgotten:
            verdict.hold("an executor is there that never was", False, worker, key)


def _component_sums(rows):
    """Return what a topology's components counted, by component and window."""
    sums = _sums(row for row in rows if row["tasks"][0] > 0)
    largest = defaultdict(float)
    for executor, ms in sums.recent_ms.items():
        component, uptime_secs = executor[1], executor[3]
        secs = min(uptime_secs, _CAPACITY_SECS)
        if secs:
            largest[component] = max(largest[component], ms / (1000.0 * secs))
    for (component, _), one in sums.by_component.items():
        one["capacity"] = largest[component] if one["kind"] == "bolt" else None
        for average, weight in _WEIGHTS.items():
            of_kind = "spout" if average == "complete_ms_avg" else "bolt"
            one[average] = (
                one[f"{average}_ms"] / one[weight]
                if one["kind"] == of_kind and one[weight]
                else None
            )
    return sums.by_component


def _topology_sums(rows):
    """Return what a topology counted, by window."""
    found = {}
    sums = _sums(row for row in rows if row["tasks"][0] > 0)
    for window in _WINDOWS:
        one = dict.fromkeys(_OF_TOPOLOGY, 0) | {"complete": 0.0}
        workers = set()
        for (component, of_window), part in sums.by_component.items():
            if of_window != window:
                continue
            for name in ("executors", "tasks", "emitted_all", "transferred_all"):
                one[name] += part[name]
            if component.startswith("__"):
                continue
            workers |= part["of"]
            one["emitted"] += part["emitted"]
            one["transferred"] += part["transferred"]
            if part["kind"] == "spout":
                one["acked"] += part["acked"]
                one["failed"] += part["failed"]
                one["complete"] += part["complete_ms_avg_ms"]
        one["workers"] = len(workers)
        one["complete_ms_avg"] = one["complete"] / one["acked"] if one["acked"] else None
        found[window,] = one
    return found


class _Sums:
    """By component and window; and by executor, its time in the last ten minutes."""

    def __init__(self):
        self.by_component = {}
        self.recent_ms = defaultdict(float)


def _sums(rows):
    sums = _Sums()
    for row in rows:
        one = sums.by_component.setdefault(
            (row["component"], row["window"]),
            {
                **dict.fromkeys((*_OF_COMPONENT, *(f"{name}_ms" for name in _AVERAGES)), 0),
                "kind": row["kind"],
                "of": set(),
                "executed_by": set(),
            },
        )
        one["of"].add(row["worker"])
        executor = (row["worker"], row["component"], row["tasks"], row["uptime_secs"])
        if executor not in one["executed_by"]:
            one["executed_by"].add(executor)
            one["tasks"] += row["tasks"][1] - row["tasks"][0] + 1
        one["workers"], one["executors"] = len(one["of"]), len(one["executed_by"])
        is_own = (row["stream"] or "").startswith("__")
        for name in ("emitted", "transferred"):
            one[f"{name}_all"] += row.get(name) or 0
            one[name] += 0 if is_own else row.get(name) or 0
        for name in ("executed", "acked", "failed"):
            one[name] += row.get(name) or 0
        for average, weight in _WEIGHTS.items():
            term = (row.get(average) or 0.0) * (row.get(weight) or 0)
            one[f"{average}_ms"] += term
            if average == "execute_ms_avg" and row["window"] == "600":
                sums.recent_ms[executor] += term
    return sums


def _of_sums(database, statistics, table, expected, verdict):
    """The newest rows of each topology are the sums of what its workers said last."""
    is_of_components = table == "component_stats"
    key = ("component", "window") if is_of_components else ("window",)
    names = _OF_COMPONENT if is_of_components else _OF_TOPOLOGY
    query = f"""
        SELECT storm_id, {_quoted(*key, *names)}
        FROM read_parquet($files, union_by_name = true) WHERE storm_id IN $ids
        QUALIFY dense_rank() OVER (PARTITION BY storm_id ORDER BY read_at DESC) = 1
    """
    given = {"files": statistics.files(table), "ids": [*expected]}
    found = {}
    end = 1 + len(key)
    for row in database.execute(query, given).fetchall():
        found[row[0], row[1:end]] = row[end:]
    for id_, sums in expected.items():
        for of, one in sums.items():
            said = found.pop((id_, of), None)
            told = tuple(one[name] for name in names)
            is_same = said is not None and all(map(_is_near, said, told))
            verdict.hold(f"{table} has another sum", is_same, id_, of, said, told)
    for id_, of in found:
        verdict.hold(f"{table} has a row of nothing", False, id_, of)


def _quoted(*names):
    """Return names of columns as SQL takes them, where `window` means something."""
    return ", ".join(f'"{name}"' for name in names)


def _is_near(one, other):
    if one is None or other is None:
        return one is other
    return one == other or math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=1e-12)
