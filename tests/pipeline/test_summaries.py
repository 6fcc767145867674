"""The rows of components and topologies, beside those that Storm and Nimbus's pages have."""

import random
from math import inf, nan

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stormkeeper.pipeline.executor_stats import WINDOWS, executor_stats, split_pulses
from stormkeeper.pipeline.summaries import (
    component_stats,
    sum_workers,
    tally_pulses,
    tally_rows,
    topology_stats,
)
from stormkeeper.thrift.records import (
    BoltStats,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
)
from stormkeeper.thrift.serialization import serialize
from support.heartbeats import bolt, change_of, heartbeat, path, spout
from support.reported_topologies import Reported, decoded, heartbeats_of, reported
from support.statistics_examples import KEYS, example, without
from support.statistics_rows import component_page, topology_page

RANDOM = [reported(random.Random(number), f"random-{number}-17") for number in range(300)]
EXAMPLES = [
    Reported(f"{key}-1-1700000000", example(key).components, example(key).executors) for key in KEYS
]
LATENCIES = {"complete": "acked", "execute": "executed", "process": "executed"}
COUNTS = ("emitted", "transferred", "acked", "failed")


def named(stats, component):
    stats.component = component
    return stats


def of_streams(executed, execute_ms, process_ms):
    """A bolt's executor: streams, each with a count or an average, in one window."""

    def sources(values):
        return {"600": {GlobalStreamId("lines", name): value for name, value in values.items()}}

    stats = BoltStats({}, {}, sources(process_ms), sources(executed), sources(execute_ms))
    return named(ExecutorStats({}, {}, ExecutorSpecificStats(bolt=stats), 1.0), "words")


def of_spout(emitted, acked=0, stream="default"):
    return named(spout(emitted, acked=acked, stream=stream), "lines")


def of_bolt(executed, execute_ms=1.0, emitted=0):
    stats = bolt({("lines", "default"): executed}, emitted, execute_ms=execute_ms)
    return named(stats, "words")


#: By storm id: workers by port, each with its uptime and its executors by their tasks.
BY_HAND = {
    "weights-1-17": {1: (60, {(1, 1): of_bolt(30, 2.0), (2, 2): of_bolt(10, 6.0)})},
    "cut-1-17": {1: (60, {(1, 1): of_bolt(6, 0.3), (2, 2): of_bolt(4, 0.6)})},
    "young-1-17": {1: (100, {(1, 1): of_bolt(30_000, 2.0)}), 2: (0, {(2, 2): of_bolt(9, 2.0)})},
    "old-1-17": {1: (9000, {(1, 1): of_bolt(30_000, 2.0), (2, 2): of_bolt(60_000, 2.0)})},
    "streams-1-17": {
        1: (
            60,
            {
                (1, 1): of_streams(
                    {"both": 10, "count": 30, "nan": 5, "inf": 5},
                    {"both": 2.0, "average": 99.0, "nan": nan, "inf": inf},
                    {"both": 4.0},
                )
            },
        )
    },
    "limits-1-17": {1: (60, {(n, n): of_spout(2**62, 2**62) for n in (1, 2, 3)})},
    "silent-1-17": {
        1: (60, {(1, 1): of_streams({}, {}, {}), (3, 4): of_bolt(8)}),
        2: (60, {(-1, -1): of_spout(1000), (5, 5): of_streams({}, {}, {})}),
    },
    "own-1-17": {
        1: (
            60,
            {(1, 1): of_spout(5, 3, "__metrics"), (2, 2): named(of_bolt(7, 1.0, 4), "__acker")},
        ),
        2: (60, {(3, 3): named(of_bolt(7, 1.0, 4), "__acker")}),
    },
    "unnamed-1-17": {1: (60, {(1, 3): bolt({("?", "default"): 5}), (4, 4): spout(5)})},
}


def heartbeats_by_hand():
    return decoded(
        [
            change_of(
                path(id_, "n", port), heartbeat(id_, executors, uptime_secs=uptime_secs), 1, 0.0
            )
            for id_, workers in BY_HAND.items()
            for port, (uptime_secs, executors) in workers.items()
        ],
        1_700_000_000.0,
    )


def heartbeats_of_storm():
    return decoded(
        [
            change_of(path(beat.storm_id, node, port), serialize(beat), 1, 0.0)
            for key in KEYS
            for (node, port), beat in example(key).heartbeats.items()
        ],
        1_700_000_000.0,
    )


def assigned(executors, topologies):
    """Rows of the executors that Nimbus knows, with the names of their components."""
    names = {
        (topology.storm_id, one.task_start, one.task_end): one.component_id
        for topology in topologies
        for one in topology.executors
    }
    keys = zip(
        *(executors[name].to_pylist() for name in ("storm_id", "task_start", "task_end")),
        strict=True,
    )
    found = pa.array([names.get(key) for key in keys], pa.string())
    place = executors.column_names.index("component")
    return executors.set_column(place, "component", found).filter(pc.is_valid(found))


@pytest.fixture(scope="module")
def found():
    """The rows of all components, and of all topologies, by what they are of."""
    tables = pa.concat_tables([heartbeats_of(RANDOM), heartbeats_by_hand()])
    storms = assigned(executor_stats(heartbeats_of_storm()), EXAMPLES)
    workers = sum_workers(tally_rows(pa.concat_tables([executor_stats(tables), storms])))
    components = component_stats(workers).to_pylist()
    topologies = topology_stats(workers).to_pylist()
    found = {(r["storm_id"], r["component"], r["window"]): r for r in components}
    found |= {(r["storm_id"], None, r["window"]): r for r in topologies}
    assert len(found) == len(components) + len(topologies)
    return found


# --- as the pages of Nimbus, and so of Storm ------------------------------------------------------


def rows_of(page, kind):
    """A component's rows by window, as the columns have them."""
    rows = {}
    for window, row in page.window_to_stats.items():
        rows[window] = {name: getattr(row, name) for name in COUNTS}
        rows[window]["executed"] = row.executed if kind == "bolt" else 0
    return rows


def latencies(row, counts, column):
    found = {}
    for name, weight in LATENCIES.items():
        value = getattr(row, f"{name}_latency_ms", None)
        found[f"{name}_ms_{column}"] = value if counts[weight] > 0 else None
    return found


def component_rows(topology, id_):
    """What the pages say of a component, in the columns of the table."""
    components, executors = topology.components, topology.executors
    kind = components[id_].kind
    shown = component_page(id_, components, executors, "600", include_sys=True)
    hidden = component_page(id_, components, executors, "600", include_sys=False)
    of_all, of_own = rows_of(shown, kind), rows_of(hidden, kind)
    for window in WINDOWS:
        counts = dict.fromkeys((*COUNTS, "executed"), 0)
        page = topology_page(components, executors, window, include_sys=True)
        row = (page.id_to_spout_agg_stats | page.id_to_bolt_agg_stats)[id_]
        counted = of_all.get(window, counts)
        own = of_own.get(window, counts)
        exact = shown.window_to_stats.get(window)
        yield (
            window,
            {
                "kind": kind,
                "workers": len({report.slot for report, _ in shown.executors}),
                "executors": shown.num_executors,
                "tasks": shown.num_tasks,
                **counted,
                **{f"{name}_all": counted[name] for name in ("emitted", "transferred")},
                **{name: own[name] for name in ("emitted", "transferred")},
                **latencies(exact, counted, "avg"),
                **latencies(row, counted, "page"),
                "capacity": row.capacity if kind == "bolt" else None,
            },
        )


def topology_rows(topology):
    """What the page says of a topology, in the columns of the table."""
    components, executors = topology.components, topology.executors
    shown, hidden = (
        topology_page(components, executors, "600", include_sys=sys) for sys in (True, False)
    )
    reporting = [one for one in executors if one.stats is not None]
    own, of_all = hidden.topology_stats, shown.topology_stats
    for window in WINDOWS:
        yield (
            window,
            {
                "workers": hidden.num_workers,
                "executors": len(reporting),
                "tasks": sum(one.num_tasks for one in reporting),
                "emitted": own.window_to_emitted.get(window, 0),
                "transferred": own.window_to_transferred.get(window, 0),
                "emitted_all": of_all.window_to_emitted.get(window, 0),
                "transferred_all": of_all.window_to_transferred.get(window, 0),
                "acked": own.window_to_acked.get(window, 0),
                "failed": own.window_to_failed.get(window, 0),
                "complete_ms_avg": own.window_to_complete_latencies_ms.get(window),
            },
        )


def assert_as_on_the_pages(found, topologies):
    expected = {}
    for topology in topologies:
        reporting = {one.component_id for one in topology.executors if one.stats is not None}
        for id_ in reporting:
            for window, row in component_rows(topology, id_):
                if id_.startswith("__"):  # Storm's own are shown with all of their streams
                    del row["emitted"], row["transferred"]
                expected[topology.storm_id, id_, window] = row
        if reporting:
            expected |= {(topology.storm_id, None, w): row for w, row in topology_rows(topology)}
    ids = {topology.storm_id for topology in topologies}
    assert {key for key in found if key[0] in ids} == expected.keys()
    for key, row in expected.items():
        there = {name: found[key][name] for name in row}
        averages = {name for name, value in row.items() if isinstance(value, float)}
        assert without(there, averages) == without(row, averages), key
        assert {name: there[name] for name in averages} == pytest.approx(
            {name: row[name] for name in averages}, rel=1e-9, abs=0
        ), key


def test_the_rows_are_storms(found):
    assert_as_on_the_pages(found, EXAMPLES)


def test_rows_of_any_reports_equal_those_of_nimbus(found):
    assert_as_on_the_pages(found, RANDOM)


def test_what_is_tallied_of_pulses_is_what_is_of_their_rows():
    pulses = pa.concat_tables([heartbeats_of(RANDOM), heartbeats_by_hand(), heartbeats_of_storm()])
    expected = tally_rows(executor_stats(pulses))
    found = tally_pulses(split_pulses(pulses))
    assert found.num_rows == expected.num_rows > 1000
    found, expected = (
        sorted(map(repr, table.select(expected.column_names).to_pylist()))
        for table in (found, expected)
    )
    assert found == expected


# --- by hand --------------------------------------------------------------------------------------


def test_both_latencies_of_a_bolt_weigh_by_what_was_executed(found):
    row = found["weights-1-17", "words", "600"]
    assert row["execute_ms_avg"] == row["process_ms_avg"] == (30 * 2.0 + 10 * 6.0) / 40 == 3.0
    assert (row["execute_ms_page"], row["complete_ms_avg"]) == (3.0, None)


def test_topology_page_cuts_executors_time_to_milliseconds(found):
    row = found["cut-1-17", "words", "600"]
    assert row["execute_ms_avg"] == pytest.approx((1.8 + 2.4) / 10)
    assert row["execute_ms_page"] == (1 + 2) / 10


def test_capacity_is_of_ten_minutes_in_every_window(found):
    for window in WINDOWS:
        assert found["young-1-17", "words", window]["capacity"] == 60_000 / 100_000
        assert found["old-1-17", "words", window]["capacity"] == 120_000 / 600_000
        assert found["limits-1-17", "lines", window]["capacity"] is None


def test_average_is_weighed_by_counts_with_and_without_one(found):
    row = found["streams-1-17", "words", "600"]
    assert row["executed"] == 50
    assert (row["execute_ms_avg"], row["process_ms_avg"]) == (20 / 50, 40 / 50)
    assert row["capacity"] == 20 / 60_000


def test_in_a_window_that_nobody_reported_counts_are_zero(found):
    row = found["streams-1-17", "words", "10800"]
    assert [row[name] for name in ("executed", "emitted_all", "acked")] == [0, 0, 0]
    assert [row[name] for name in ("execute_ms_avg", "process_ms_page")] == [None, None]
    assert (row["executors"], row["workers"]) == (1, 1)


def test_a_sum_that_64_bits_do_not_hold_is_the_largest_number(found):
    row = found["limits-1-17", "lines", ":all-time"]
    assert row["emitted"] == row["acked"] == 2**63 - 1
    assert row["complete_ms_avg"] == 2.5
    row = found["limits-1-17", None, ":all-time"]
    assert (row["emitted"], row["complete_ms_avg"]) == (2**63 - 1, 2.5)


def test_an_executor_that_counted_nothing_has_reported(found):
    row = found["silent-1-17", "words", "600"]
    assert (row["workers"], row["executors"], row["tasks"], row["executed"]) == (2, 3, 4, 8)
    row = found["silent-1-17", None, "600"]
    assert (row["workers"], row["executors"], row["tasks"]) == (2, 3, 4)


def test_the_executor_that_a_worker_has_for_itself_is_in_no_row(found):
    assert ("silent-1-17", "__system", "600") not in found
    assert found["silent-1-17", None, "600"]["emitted_all"] == 0


def test_storms_own_streams_count_except_in_emitted_ones(found):
    row = found["own-1-17", "lines", "600"]
    assert (row["emitted"], row["emitted_all"], row["acked"]) == (0, 5, 3)
    row = found["own-1-17", None, "600"]
    assert (row["emitted"], row["emitted_all"], row["acked"]) == (0, 5 + 2 * 4, 3)
    assert (row["workers"], row["executors"], row["tasks"]) == (1, 3, 3)


def test_a_component_without_a_name_is_called_by_its_tasks(found):
    row = found["unnamed-1-17", "tasks 1-3", "600"]
    assert (row["topology"], row["kind"], row["tasks"], row["executed"]) == (
        "unnamed",
        "bolt",
        3,
        5,
    )
    assert found["unnamed-1-17", "tasks 4-4", "600"]["kind"] == "spout"
