from math import inf

import pyarrow as pa

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.components import Lookup, Names, Questions, Tasks, join_ranges, unnamed
from stormkeeper.pipeline.table_columns import COMPONENTS, TOPOLOGIES
from support import vectors
from support.heartbeats import bolt, change_of, decode_batch, heartbeat, page_of, path, spout

DAY, YEAR = 86_400.0, 365 * 86_400.0

SPLIT = [Tasks("split", 4, 5), Tasks("split", 6, 7)]
WORDS = [Tasks("words", 10, 10), Tasks("words", 11, 11)]


def pulses(**by_topology):
    changes = [change_of(path(storm_id), beat, 1, 0.0) for storm_id, beat in by_topology.items()]
    return pa.Table.from_batches(
        [decode_batch(rows.page_rows("a:1", [page_of("x", changes, 1.0)]))]
    )


def named(stats, component):
    stats.component = component
    return stats


def knows(*executors, storm_id="wc-1-17", timeout_secs=None, now=0.0, kept_secs=YEAR):
    names = Names(None, None, kept_secs)
    names.learn(storm_id, executors, timeout_secs, now)
    return names


def test_who_lacks_names_is_seen_in_storms_own_bytes():
    (three, empty), (two, gzipped) = (
        [
            bytes.fromhex(vector["hex"])
            for vector in vectors.load(file)
            if (vector.get("json") or {}).get("$struct") == "ClusterWorkerHeartbeat"
        ]
        for file in ("pacemaker", "storm-2.8")
    )
    found = unnamed(pulses(three=three, empty=empty, two=two, gzipped=gzipped, garbage=b"garbage"))
    assert found == {"three": (1, 4), "two": (1, 2), "gzipped": (1, 2)}


def test_a_name_that_a_worker_says_is_not_lacking():
    some = {(1, 2): named(bolt({}), "words"), (3, 5): spout(1), (6, 6): spout(1)}
    whole = {(1, 1): named(spout(1), "lines"), (-1, -1): spout(1)}
    found = pulses(some=heartbeat("some", some), whole=heartbeat("whole", whole))
    assert unnamed(found) == {"some": (3, 6)}
    assert unnamed(found.slice(0, 0)) == {}


def test_executors_are_named_where_their_tasks_are_known():
    words = {
        (1, 2): named(bolt({}), "words"),
        (3, 5): spout(7),
        (6, 6): spout(8),
        (-1, -1): spout(9),
    }
    beats = pulses(
        **{"wc-1-17": heartbeat("wc-1-17", words)},
        garbage=b"garbage",
        other=heartbeat("other", {(3, 5): spout(1)}),
        idle=heartbeat("idle", {}),
    )
    lookup = Lookup(
        {"idle": [], "wc-1-17": [Tasks("wrong", 1, 2), Tasks("lines", 3, 5)], "gone": WORDS}
    )
    found = lookup.named(beats)
    found.validate(full=True)
    assert found.schema == beats.schema
    before, after = beats.to_pylist(), found.to_pylist()
    components = {
        (row["storm_id"], executor["task_start"]): executor.pop("component")
        for row in after
        for executor in row["executors"] or ()
    }
    assert components == {
        ("wc-1-17", 1): "words",
        ("wc-1-17", 3): "lines",
        ("wc-1-17", 6): None,
        ("wc-1-17", -1): None,
        ("other", 3): None,
    }
    for row in before:
        for executor in row["executors"] or ():
            del executor["component"]
    assert after == before, "nothing else is changed"
    assert lookup.named(beats.slice(1)).to_pylist() == found.slice(1).to_pylist()
    assert Lookup({}).named(beats) is beats
    assert lookup.named(beats.slice(0, 0)).num_rows == 0


def test_tasks_of_a_component_are_one_range():
    executors = [Tasks("b", 4, 4), Tasks("a", 1, 1), Tasks("b", 7, 7), Tasks("a", 2, 3)]
    expected = Tasks("a", 1, 3), Tasks("b", 4, 4), Tasks("b", 7, 7)
    assert join_ranges(executors) == expected


def test_executors_of_a_rebalance_are_known_from_before_it():
    names = knows(*SPLIT)
    assert names.has("wc-1-17", (4, 7))
    assert names.has("wc-1-17", (5, 6))
    assert not names.has("wc-1-17", (3, 4))
    assert not names.has("wc-1-17", (7, 8))
    assert not names.has("other", (4, 5))


def test_a_gap_in_what_nimbus_says_is_not_known():
    names = knows(*SPLIT, *WORDS)
    assert not names.has("wc-1-17", (4, 11))
    assert names.has("wc-1-17", (10, 11))


def test_what_is_known_outlives_its_tables():
    first = knows(*SPLIT, *WORDS, timeout_secs=120.0, now=5.0)
    first.learn("t-1-17", [], None, 6.0)
    components, topologies = first.written(7.0)
    assert not first.is_new
    assert (components.schema, topologies.schema) == (COMPONENTS, TOPOLOGIES)
    assert components.to_pylist() == [
        {"storm_id": "wc-1-17", "component": "split", "task_start": 4, "task_end": 7},
        {"storm_id": "wc-1-17", "component": "words", "task_start": 10, "task_end": 11},
    ]
    names = Names(components, topologies, YEAR)
    assert not names.is_new
    assert names.has("wc-1-17", (4, 7))
    assert names.is_fresh("t-1-17", 6.0 + DAY / 2)
    assert not names.is_fresh("t-1-17", 6.0 + DAY)


def test_rebalance_takes_no_name_away():
    names = knows(*SPLIT, *WORDS, timeout_secs=120.0)
    names.learn("wc-1-17", SPLIT[:1], 60.0, DAY)
    assert names.has("wc-1-17", (10, 11))
    assert names.written(DAY)[1]["timeout_secs"].to_pylist() == [60.0]
    names.learn("wc-1-17", [Tasks("other", 1, 20)], None, DAY)
    assert names.has("wc-1-17", (1, 20))
    assert names.written(DAY)[1]["timeout_secs"].to_pylist() == [None]


def test_topology_is_kept_for_a_year_after_its_last_pulse():
    names = knows(*SPLIT)
    names.learn("gone", WORDS, None, 0.0)
    names.written(0.0)
    names.saw(["wc-1-17", "unknown"], DAY / 2)
    assert not names.is_new, "when it was seen is written once a day"
    names.saw(["wc-1-17"], 2 * DAY)
    assert names.is_new
    tables = names.written(YEAR + DAY)
    assert [{row["storm_id"] for row in table.to_pylist()} for table in tables] == 2 * [{"wc-1-17"}]
    assert not names.has("gone", (10, 11))


def test_a_topology_is_asked_for_until_all_of_it_is_known():
    names, questions = Names(None, None, YEAR), Questions((30.0, 100.0))
    assert questions.next_at == inf
    seen = {"wc-1-17": (4, 11)}
    questions.saw(seen, names.has, 0.0)
    assert questions.next(0.0) == "wc-1-17"
    asked_at, now = [], 0.0
    for _ in range(5):
        asked_at.append(now)
        questions.asked("wc-1-17", names.has, now)
        questions.saw(seen, names.has, now)
        now = questions.next_at
        assert questions.next(now - 1.0) is None
    assert asked_at == [0.0, 30.0, 90.0, 190.0, 290.0], "less and less often"
    assert questions.tasks == seen
    names.learn("wc-1-17", [*SPLIT, Tasks("sum", 8, 9), *WORDS], None, now)
    questions.asked("wc-1-17", names.has, now)
    assert questions.tasks == {}
    questions.saw(seen, names.has, now)
    assert questions.next_at == inf
    questions.saw({"wc-1-17": (4, 12)}, names.has, now)
    assert questions.next(now) == "wc-1-17", "there are more tasks than were known"


def test_a_topology_that_is_not_seen_any_more_is_not_asked_for():
    names, questions = Names(None, None, YEAR), Questions((30.0, 100.0))
    questions.saw({"killed": (1, 4), "wc-1-17": (4, 7)}, names.has, 0.0)
    questions.asked("killed", names.has, 0.0)
    questions.saw({"wc-1-17": (4, 7)}, names.has, 150.0)
    assert len(questions.tasks) == 2
    questions.saw({"wc-1-17": (4, 7)}, names.has, 250.0)
    assert questions.next(1000.0) == "wc-1-17"
    assert len(questions.tasks) == 1
