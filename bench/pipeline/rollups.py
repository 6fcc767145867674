"""Compares roll-ups with readings: what was counted from the first to the last, and no more.

And longer buckets with minutes: they have what their minutes have.

That the last reading of a worker is true is seen to elsewhere. Here all closed minutes together
have to be the sum over its incarnations: of each, the last reading that was received in a closed
minute, less the first one where the worker was older than the tables.
"""

import itertools
import math
from collections import Counter, defaultdict
from datetime import timedelta

import duckdb

from pipeline.looks import SLACK_SECS

_COUNTS = ("emitted", "transferred", "executed", "acked", "failed")

#: Who was started more than a minute before the first batch counts from its first reading on.
_KNOWN_SECS = 60.0
#: Starts that are nearer to each other may be those of one process, whose heartbeats came late.
_APART_SECS = 5.0 + SLACK_SECS
#: The first batch was read at most so long before it was published.
_UNSURE_SECS = 20.0

_READINGS = """
    SELECT storm_id, node, port, task_start, component, epoch_us(received_at) / 1e6 AS received,
        sum(emitted) FILTER (stream NOT LIKE '\\_\\_%' ESCAPE '\\') AS emitted,
        sum(transferred) FILTER (stream NOT LIKE '\\_\\_%' ESCAPE '\\') AS transferred,
        sum(executed) AS executed, sum(acked) AS acked, sum(failed) AS failed
    FROM read_parquet($files, union_by_name = true)
    WHERE storm_id IN $ids AND "window" = ':all-time' AND task_start > 0
    GROUP BY ALL ORDER BY received
"""
_LONGER = """
    SELECT floor(epoch(bucket) / $secs)::BIGINT * $secs AS start, storm_id, component,
        sum(emitted), sum(transferred), sum(executed), sum(acked), sum(failed),
        sum(restarts), sum(readings), sum(skipped), sum(executed * execute_ms_avg)
    FROM read_parquet($files, union_by_name = true) GROUP BY ALL
"""
_SUMS = """
    SELECT storm_id, component, sum(emitted), sum(transferred), sum(executed), sum(acked),
        sum(failed)
    FROM read_parquet($files, union_by_name = true) WHERE storm_id IN $ids GROUP BY ALL
"""


#: The longer roll-ups, and the seconds of their buckets.
_LONG = {"rollup_10m": 600, "rollup_60m": 3_600}
#: Sums of fractions depend on their order.
_RELATIVE = 1e-9


def compare(truth, statistics, began, verdict, looks):
    """Judge the roll-ups, and how much of each incarnation was read.

    Parameters
    ----------
    truth, statistics, verdict, looks
        As in `agreement.compare`.
    began
        When the first batch of the statistics was published.
    """
    _of_longer(statistics, verdict)
    ids = [id_ for id_ in truth.counted if id_ not in truth.deleted and _is_sure(truth, id_, began)]
    if not ids or not (files := statistics.files("executor_stats")):
        return
    with duckdb.connect() as database:
        found = database.execute(_READINGS, {"files": files, "ids": ids}).fetchall()
        readings = defaultdict(list)
        for id_, node, port, task, component, *reading in found:
            readings[(id_, node, port), task, component].append(reading)
        _of_tails(truth, readings, verdict, looks)
        buckets = statistics.files("rollup_1m")
        if not buckets:
            return
        ends = database.execute(
            "SELECT max(bucket) FROM read_parquet($files)", {"files": buckets}
        ).fetchone()[0] + timedelta(minutes=1)
        sums = database.execute(_SUMS, {"files": buckets, "ids": ids}).fetchall()
    expected = _expected(truth, readings, began, ends.timestamp())
    kept = {(id_, component): counts for id_, component, *counts in sums}
    for key in expected.keys() | kept.keys():
        told = [expected.get(key, Counter())[name] for name in _COUNTS]
        said = [int(count or 0) for count in kept.get(key, [0] * len(_COUNTS))]
        verdict.hold("minutes add up to something else", said == told, *key, said, told)


def _of_longer(statistics, verdict):
    minutes = statistics.files("rollup_1m")
    for name, secs in _LONG.items():
        files = statistics.files(name)
        if not files:
            continue
        kept, expected = (_by_bucket(of_each, secs) for of_each in (files, minutes))
        closed = max(start for start, *_ in kept)  # with its last minute
        expected = {key: sums for key, sums in expected.items() if key[0] <= closed}
        for key in expected.keys() | kept.keys():
            said, told = kept.get(key), expected.get(key)
            is_kept = said is not None and told is not None and all(map(_are_equal, said, told))
            verdict.hold("a longer bucket has something else", is_kept, name, *key, said, told)


def _by_bucket(files, secs):
    with duckdb.connect() as database:
        found = database.execute(_LONGER, {"files": files, "secs": secs}).fetchall()
    return {tuple(key): sums for *key, sums in ((*row[:3], row[3:]) for row in found)}


def _are_equal(one, other):
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_RELATIVE)


def _is_sure(truth, id_, began):
    """Whether each worker of a topology was surely older than the tables, or surely not.

    And whether the pipeline can tell its incarnations apart: by when they were started.
    """
    least, most = began - _KNOWN_SECS - _UNSURE_SECS, began - _KNOWN_SECS + SLACK_SECS
    for worker, lives in truth.lives.items():
        if worker[0] != id_:
            continue
        if any(life.failed or least < life.started_at < most for life in lives):
            return False
        if any(b.started_at - a.started_at < _APART_SECS for a, b in itertools.pairwise(lives)):
            return False
    return True


def _of_life(life, readings):
    """Return the readings of an incarnation."""
    if life.last is None:
        return []
    begin, end = life.begun - 0.1, life.heard_until + 0.1
    return [reading for reading in readings if begin <= reading[0] <= end]


def _expected(truth, readings, began, ends):
    expected = defaultdict(Counter)
    for (worker, _, component), found in readings.items():
        for life in truth.lives[worker]:
            of_life = [reading for reading in _of_life(life, found) if reading[0] < ends]
            if not of_life:
                continue
            _, *last = of_life[-1]
            _, *first = of_life[0]
            is_older = life.started_at < began - _KNOWN_SECS
            for name, count, before in zip(_COUNTS, last, first, strict=True):
                expected[worker[0], component][name] += int(count or 0)
                if is_older:
                    expected[worker[0], component][name] -= int(before or 0)
    return expected


def _of_tails(truth, readings, verdict, looks):
    """What a worker counted after its last reading is not known: that is seconds' work."""
    last_read = defaultdict(list)
    for (worker, _, _), found in readings.items():
        last_read[worker] += [reading[0] for reading in found]
    for worker, times in last_read.items():
        for life in truth.lives[worker]:
            if life.last is None or life.heard_until - life.begun < looks.reading:
                continue
            read = [at for at in times if life.begun - 0.1 <= at <= life.heard_until + 0.1]
            tail = life.last["sent_at"] - max(read, default=life.begun)
            is_short = tail <= looks.statistics_secs + looks.two
            verdict.hold("more than one reading's time is lost", is_short, worker, tail, life.why)
            verdict.tails.append(tail)
