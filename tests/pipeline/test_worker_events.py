import datetime as dt
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.pipeline.table_columns import WORKER_EVENTS, WORKER_LIVENESS
from stormkeeper.pipeline.worker_events import next_events

LIMITS = LivenessLimits(late_secs=9, timeout_secs=30)
NOW = 1_772_366_400.0
A, B = "a:6699", "b:6699"

#: How old the newest pulse is of a worker of each status.
AGES = {"alive": 1.0, "late": 10.0, "stale": 40.0, "dead": 31.0, "completed": 50.0}


def at(seconds):
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.UTC)


def row(name="t-1-17", status="alive", *, server=A, now=NOW, started=None, age=None, moved=None):
    age = AGES[status] if age is None else age
    return {
        "storm_id": name,
        "node": "n",
        "port": 6700,
        "status": "late" if status == "stale" else status,
        "stale": status == "stale",
        "age_secs": age,
        "last_seen": at(now - age),
        "server": server,
        "moved_at": at(moved),
        "started_at": at(started),
    }


def liveness(*found):
    return pa.Table.from_pylist(list(found), schema=WORKER_LIVENESS)


def same(table):
    return table


nothing = partial(same, None)


def between(before, after, *, now=NOW, limits=LIMITS):
    """Return the events between two rows of one worker, None for no row."""
    tables = [liveness(*([one] if one else [])) for one in (before, after)]
    return next_events(nothing, *tables, limits=limits, now=now).to_pylist()


def test_the_arrow_schema_is_the_one_that_spark_expects():
    assert to_arrow_schema(from_arrow_schema(WORKER_EVENTS), timezone="UTC") == WORKER_EVENTS


def test_an_event_says_whose_it_is_when_it_was_and_why():
    (event,) = between(row("wc-1-17", now=NOW - 10), row("wc-1-17", "late"))
    assert event == {
        "at": at(NOW - 10 + 9),
        "storm_id": "wc-1-17",
        "topology": "wc",
        "node": "n",
        "port": 6700,
        "event": "late",
        "server": A,
        "from_server": None,
        "age_secs": 10.0,
        "timeout_secs": 30.0,
        "evidence": "no pulse for 10.0 s, more than 9 s",
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, row(), [("started", NOW - 1)]),
        (None, row(status="late"), [("late", NOW - 1)]),
        (None, row(status="completed"), [("started", NOW - 50), ("completed", NOW - 50)]),
        (row(), row(status="dead"), [("dead", NOW - 1)]),
        (row(status="late"), row(status="stale"), []),
        (row(status="stale"), row(status="dead"), [("dead", NOW - 1)]),
        (row(status="dead"), row(), [("back", NOW - 1)]),
        (row(status="late"), row(status="completed"), [("completed", NOW - 50)]),
        (row(status="completed"), row(), [("back", NOW - 1)]),
        (row(), row(server=B, moved=NOW - 3), [("moved", NOW - 3)]),
        (row(started=NOW - 99), row(started=NOW - 5), [("restarted", NOW - 5)]),
        (row(), row(started=NOW - 5), []),
        (row(started=NOW - 5), row(), []),
        (row(), None, [("gone", NOW)]),
        (row(status="dead", age=3590.0, now=NOW - 11), None, [("gone", NOW)]),
    ],
)
def test_what_changed_is_an_event_and_nothing_else_is(before, after, expected):
    found = between(before, after)
    assert [(event["event"], event["at"].timestamp()) for event in found] == expected


def test_who_moved_says_from_where():
    (event,) = between(row(), row(server=B, moved=NOW - 3))
    assert (event["server"], event["from_server"]) == (B, A)


def test_return_is_dated_by_the_newest_of_several_pulses():
    (event,) = between(row(status="late", now=NOW - 5), row())
    assert event["evidence"] == "a pulse came after at most 14.0 s of silence"


def test_who_is_gone_was_deleted_or_not_heard_of():
    deleted, forgotten = (
        between(found, None)[0]["evidence"]
        for found in (row(), row(status="dead", age=3590.0, now=NOW - 11))
    )
    assert deleted == f"its pulse on {A} was deleted, or has expired"
    assert forgotten == "nothing was heard of it for 3601 s"


def test_a_topologys_own_timeout_counts():
    limits = LivenessLimits(late_secs=9, timeout_secs=30, timeouts={"t-1-17": 120.0})
    dead = row(status="dead", age=121.0)
    (event,) = between(row(status="late"), dead, limits=limits)
    assert (event["event"], event["timeout_secs"], event["at"]) == ("dead", 120.0, at(NOW - 1))
    assert "more than 120 s" in event["evidence"]
    (event,) = between(None, dead, limits=limits)
    assert event["at"] == at(NOW - 1)


def test_before_the_first_batch_there_is_nothing_to_compare_with():
    assert next_events(nothing, None, liveness(row()), limits=LIMITS, now=NOW).num_rows == 0


def test_worker_that_returns_too_often_flaps_once_per_period():
    table, said = None, []
    for turn in range(40):
        now = NOW + 60 * turn
        ups_and_downs = (row(now=now), row(status="late", now=now + 30), row(now=now + 60))
        for one, other in pairwise(ups_and_downs):
            recent = partial(same, table)
            new = next_events(recent, liveness(one), liveness(other), limits=LIMITS, now=now)
            table = new if table is None else pa.concat_tables([table, new])
            said += [turn for event in new["event"].to_pylist() if event == "flapping"]
    assert said == [2, 12, 22, 32]
    calm = next_events(
        nothing, liveness(row(status="late")), liveness(row()), limits=LIMITS, now=NOW
    )
    assert calm["event"].to_pylist() == ["back"]


STATES = st.dictionaries(
    st.sampled_from(["a-1-17", "b-2-17", "c"]),
    st.tuples(st.sampled_from(sorted(AGES)), st.sampled_from([A, B]), st.sampled_from([1.0, 2.0])),
)


def table_of(state, number):
    now = NOW + 5 * number
    return liveness(
        *(
            row(name, status, server=server, now=now, started=started)
            for name, (status, server, started) in sorted(state.items())
        )
    )


def shown(status):
    return "late" if status == "stale" else status


@settings(max_examples=60, deadline=None)
@given(st.lists(STATES, min_size=2, max_size=6))
def test_events_tell_all_that_became_of_the_workers(states):
    """Whoever knows how it was, and hears of the events, knows how it is."""
    table = None
    known = {name: (shown(status), server) for name, (status, server, _) in states[0].items()}
    before = table_of(states[0], 0)
    for number, state in enumerate(states[1:], 1):
        after = table_of(state, number)
        new = next_events(partial(same, table), before, after, limits=LIMITS, now=NOW + 5 * number)
        table = new if table is None else pa.concat_tables([table, new])
        again = next_events(partial(same, table), after, after, limits=LIMITS, now=NOW + 5 * number)
        assert again.num_rows == 0  # what was taken in changes nothing
        for event in new.to_pylist():
            name, kind = event["storm_id"], event["event"]
            if kind == "gone":
                del known[name]
            elif kind in ("started", "back"):
                known[name] = ("alive", event["server"])
            elif kind in ("late", "dead", "completed"):
                known[name] = (kind, event["server"])
            elif kind == "moved":
                assert event["from_server"] == known[name][1]
                known[name] = (known[name][0], event["server"])
        assert known == {n: (shown(status), server) for n, (status, server, _) in state.items()}
        before = after
