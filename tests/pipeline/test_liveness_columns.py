"""The columns' rules are the row-wise ones, whatever comes."""

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stormkeeper.heartbeats.liveness import (
    LivenessLimits,
    ServerHorizon,
    Status,
    Tombstone,
    WorkerBeat,
    WorkerLiveness,
)
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import liveness_columns, rows
from stormkeeper.pipeline.liveness_columns import WORKERS, rows_of, step
from stormkeeper.pipeline.rows import TYPED
from support import liveness_steps

LIMITS = LivenessLimits(late_secs=9, timeout_secs=30, forget_secs=100, timeouts={"own-2-17": 60.0})
NOW = 1_772_366_400.0
SERVERS = ["a:6699", "b:6699"]
ONE, OTHER, OWN = (
    WorkerId(storm_id, "n-1", port)
    for storm_id, port in (("t-1-17", 6700), ("t-1-17", 16700), ("own-2-17", 6700))
)
SECS = st.sampled_from([0.0, 0.25, 5.0, 9.0, 9.5, 29.0, 31.0, 60.0, 101.0, 110.0])

LONG, YOUNG = (ServerHorizon(reachable=True, horizon_secs=secs) for secs in (1e6, 1.0))
DOWN, JAVA = (ServerHorizon(reachable=is_up, horizon_secs=None) for is_up in (False, True))

servers = st.dictionaries(
    st.sampled_from([*SERVERS, "c:6699"]),
    st.builds(
        ServerHorizon,
        st.booleans() | st.just(value=True),
        st.sampled_from([None, 1.0, 30.5, 1e6, 1e6, 1e6]),
        st.sampled_from([0.0, 0.0, -60.5, 60.5]),
    ),
)
instances = st.sampled_from(["x", "y", None])
revisions = st.sampled_from([1, 2, 3, 4, None])


@st.composite
def beats(draw):
    ago, server = draw(SECS), draw(st.sampled_from(SERVERS))
    java = draw(st.sampled_from([False, False, False, True]))
    return WorkerBeat(
        draw(st.sampled_from([ONE, OTHER, OWN])),
        server,
        None if java else draw(instances),
        None if java else draw(revisions),
        None if java else -ago,  # of now, which comes later
        draw(st.sampled_from([None, 0, 3, int(NOW), int(NOW) - 40, 2**40])),
        draw(st.sampled_from([None, 7])),
        draw(st.sampled_from([None, "garbage"])),
        draw(st.sampled_from([None, False, True])),
    )


tombstones = st.builds(
    Tombstone, st.sampled_from([ONE, OTHER, OWN]), st.sampled_from(SERVERS), instances, revisions
)
batches = st.tuples(
    st.sampled_from([1.0, 5.0, 20.0, 90.0]),
    st.lists(beats(), max_size=5),
    st.lists(tombstones, max_size=1),
    servers,
)


def columns(found):
    """Return beats or tombstones as rows of a batch."""
    table = [{**one.worker._asdict(), **dict(list(one._asdict().items())[1:])} for one in found]
    for row in table:
        if row.get("received_at") is not None:
            row["received_at"] = rows.timestamps([row["received_at"]])[0].as_py()
    return pa.Table.from_pylist(table, schema=TYPED)


@settings(max_examples=50, deadline=None)
@given(st.lists(batches, min_size=1, max_size=5))
@example(
    [  # a worker goes over while others stay, and the server that it left is gone
        (1.0, [WorkerBeat(one, "a:6699", "x", 1, 0.0) for one in (ONE, OTHER)], [], {}),
        (5.0, [WorkerBeat(ONE, "b:6699", "x", 1, 0.0)], [], {}),
        (60.0, [], [], {"a:6699": DOWN, "b:6699": LONG, "c:6699": YOUNG}),
    ]
)
@example(
    [  # a server is started anew, and counts from 1 again
        (1.0, [WorkerBeat(ONE, "a:6699", "x", 9, 0.0)], [], {"a:6699": LONG}),
        (5.0, [WorkerBeat(ONE, "a:6699", "y", 1, 0.0)], [], {"a:6699": YOUNG}),
    ]
)
@example(
    [  # a server can vouch for a silence that is long enough for one of two topologies
        (1.0, [WorkerBeat(one, "a:6699", "x", 1, 0.0) for one in (ONE, OWN)], [], {"a:6699": LONG}),
        (50.0, [], [], {"a:6699": LONG}),
        (20.0, [], [], {"a:6699": ServerHorizon(reachable=True, horizon_secs=31.0)}),
        (1.0, [], [], {"a:6699": DOWN, "b:6699": ServerHorizon(reachable=True, horizon_secs=61.0)}),
    ]
)
@example(
    [  # nothing will ever prove what became of a worker of a Java Pacemaker
        (1.0, [WorkerBeat(ONE, "a:6699", None, None, None, int(NOW))], [], {"a:6699": JAVA}),
        (60.0, [], [], {"a:6699": JAVA}),
        (90.0, [], [], {"a:6699": JAVA}),
    ]
)
@example(
    [  # a pulse with an age, of a server that told no horizon the next time
        (1.0, [WorkerBeat(ONE, "a:6699", "x", 1, 0.0)], [], {"a:6699": LONG}),
        (60.0, [WorkerBeat(ONE, "a:6699", "x", 1, -60.0)], [], {"a:6699": JAVA}),
    ]
)
@example(
    [  # who is forgotten while its server is down is remembered, until its pulse is deleted
        (1.0, [WorkerBeat(ONE, "a:6699", "x", 1, 0.0)], [], {"a:6699": LONG}),
        (60.0, [], [], {"a:6699": LONG}),
        (90.0, [], [], {"a:6699": DOWN}),
        (1.0, [], [Tombstone(ONE, "a:6699", "x", 2)], {"a:6699": DOWN}),
    ]
)
@example(
    [  # or until it beats again
        (1.0, [WorkerBeat(ONE, "a:6699", "x", 1, 0.0)], [], {"a:6699": LONG}),
        (60.0, [], [], {"a:6699": LONG}),
        (90.0, [], [], {"a:6699": DOWN}),
        (1.0, [WorkerBeat(ONE, "a:6699", "x", 1, -151.0)], [], {"a:6699": LONG}),
        (1.0, [WorkerBeat(ONE, "a:6699", "x", 2, 0.0)], [], {"a:6699": LONG}),
    ]
)
def test_both_forms_of_the_rules_find_the_same(history):
    known, remembered = WORKERS.empty_table(), []
    one_by_one, forgotten = [], []
    now = NOW
    for secs, found, buried, read in history:
        now += secs
        news = [
            beat if beat.received_at is None else beat._replace(received_at=now + beat.received_at)
            for beat in found
        ]
        known, taken, remembered = step(
            known, remembered, columns(news), columns(buried), read, now=now, limits=LIMITS
        )
        expected = liveness_steps.step(
            [*one_by_one, *forgotten], news, buried, read, now=now, limits=LIMITS
        )
        one_by_one, forgotten = sorted(expected.rows), expected.forgotten
        assert list(rows_of(known)) == one_by_one
        assert known.schema == WORKERS
        assert taken.to_pylist() == expected.taken
        assert {row.worker: row for row in remembered} == {row.worker: row for row in forgotten}


def test_hardly_any_worker_is_judged_one_by_one(monkeypatch):
    """In a batch as most are, and when all workers go over to another server."""

    def newest(previous, beats, tombstones, *_, **__):
        assert (list(previous), beats, list(tombstones)) == ([], [], [])
        return {}, {}

    monkeypatch.setattr(liveness_columns, "newest", newest)
    up, known = ServerHorizon(reachable=True, horizon_secs=1e6), WORKERS.empty_table()
    for number, server in enumerate(("a:6699", "a:6699", "b:6699")):
        at = NOW + 5 * number
        read = columns([WorkerBeat(one, server, "x", number, at - 1) for one in (ONE, OTHER)])
        known, taken, _ = step(
            known, [], read, TYPED.empty_table(), {server: up}, now=at, limits=LIMITS
        )
        assert (known["server"].to_pylist(), len(taken)) == ([server] * 2, 2)
    assert known["moved_from"].to_pylist() == ["a:6699"] * 2


def test_a_row_comes_back_as_it_was():
    row = WorkerLiveness(ONE, "a:1", "x", 5, NOW, 1.0, Status.LATE, 3, 7, "e", "b:1", NOW)
    values = {**row.worker._asdict(), **dict(list(row._asdict().items())[1:])}
    assert list(rows_of(pa.Table.from_pylist([values], schema=WORKERS))) == [row]
