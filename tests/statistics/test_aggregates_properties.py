"""The pages of whatever executors report."""

from dataclasses import asdict, replace
from math import inf, isfinite, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.statistics.executor_reports import DeclaredComponent, ExecutorReport
from stormkeeper.thrift.nimbus import TopologyStats, WorkerSummary
from stormkeeper.thrift.records import (
    BoltStats,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    SpoutStats,
)
from support.record_strategies import records
from support.statistics_rows import component_page, topology_page

COMPONENTS = {
    "__acker": DeclaredComponent("bolt", 2, 4),
    "lines": DeclaredComponent("spout", 2, 4),
    "words": DeclaredComponent("bolt", 2, 4),
    "counts": DeclaredComponent("bolt", 2, 4),
}

WINDOWS = st.sampled_from(["600", "10800", ":all-time"])
STREAMS = st.sampled_from(["default", "side", "__ack"])
SOURCES = st.builds(GlobalStreamId, st.sampled_from(["lines", "__system"]), STREAMS)

COUNTS = st.integers(0, 10**6)
AVERAGES = st.floats(0, 10**6)
ANY_COUNT = COUNTS | st.sampled_from([-(2**63), -1, 2**53 + 1, 2**63 - 1])
ANY_AVERAGE = AVERAGES | st.sampled_from([nan, inf, -inf, -1.5, 1.7e308])

#: An example is some executors, and most tests make two times five pages of them.
few = settings(max_examples=40)

#: The latencies, each with the count that it is weighed by.
WEIGHTS = {
    "complete_latency_ms": "acked",
    "execute_latency_ms": "executed",
    "process_latency_ms": "executed",
}


@st.composite
def maps(draw, streams, *statistics):
    """Maps of several statistics from window to stream to value, each with some streams only."""
    found = [{} for _ in statistics]
    for window, stream in draw(st.lists(st.tuples(WINDOWS, streams), max_size=3)):
        for by_window, values in zip(found, statistics, strict=True):
            by_stream = by_window.setdefault(window, {})
            value = draw(values)
            if value is not None:
                by_stream[stream] = value
    return found


@st.composite
def statistics(draw, kind, counts, averages):
    count, average = st.none() | counts, st.none() | averages
    if kind == "spout":
        emitted, transferred, *of_spout = draw(maps(STREAMS, count, count, count, count, average))
        specific = ExecutorSpecificStats(spout=SpoutStats(*of_spout))
    else:
        emitted, transferred = draw(maps(STREAMS, count, count))
        of_bolt = draw(maps(SOURCES, count, count, average, count, average))
        specific = ExecutorSpecificStats(bolt=BoltStats(*of_bolt))
    return ExecutorStats(emitted, transferred, specific, 1.0)


@st.composite
def executors(draw, counts=ANY_COUNT, averages=ANY_AVERAGE, reported=None):
    found = []
    task = 1
    for component in draw(st.lists(st.sampled_from(sorted(COMPONENTS)), max_size=4)):
        tasks = draw(st.integers(1, 3))
        stats = reported
        if stats is None:
            stats = statistics(COMPONENTS[component].kind, counts, averages)
        node, port = draw(st.sampled_from(["n", "m"])), draw(st.integers(6700, 6701))
        found.append(
            ExecutorReport(
                task_start=task,
                task_end=task + tasks - 1,
                component_id=component,
                supervisor_id=node,
                host=f"{node}.example",
                port=port,
                uptime_secs=draw(st.sampled_from([0, 1, 599, 600, 100_000])),
                stats=draw(st.none() | stats),
            )
        )
        task += tasks
    return found


def pages(of, window="600", *, include_sys=False):
    """Return the page of the topology and those of its components."""
    return (
        topology_page(COMPONENTS, of, window, include_sys=include_sys),
        *(
            component_page(id_, COMPONENTS, of, window, include_sys=include_sys)
            for id_ in COMPONENTS
        ),
    )


def component_pages(of, window="600", *, include_sys=False):
    return {page.component_id: page for page in pages(of, window, include_sys=include_sys)[1:]}


def values(page):
    """Yield each number of a page, but for what is merely passed on."""
    left = [page]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            left += found.values()
        elif isinstance(found, tuple | list):
            left += found
        elif isinstance(found, ExecutorReport):
            continue
        elif hasattr(found, "__dataclass_fields__"):
            left += [getattr(found, name) for name in found.__dataclass_fields__]
        elif isinstance(found, TopologyStats | WorkerSummary):
            left += vars(found).values()
        elif isinstance(found, int | float):
            yield found


@few
@given(executors(), st.randoms(), WINDOWS, st.booleans())
def test_the_order_of_executors_does_not_matter(found, random, window, include_sys):
    before = pages(found, window, include_sys=include_sys)
    random.shuffle(found)
    assert pages(found, window, include_sys=include_sys) == before


@few
@given(executors() | executors(reported=records(ExecutorStats)), st.booleans())
def test_whatever_is_reported_a_page_can_be_written(found, include_sys):
    """Thrift has 64 bits for a count; JSON has no word for what is no number."""
    for page in pages(found, include_sys=include_sys):
        for value in values(page):
            assert isfinite(value)
            assert isinstance(value, float) or -(2**63) <= value < 2**63


@few
@given(executors(), st.booleans())
def test_nothing_that_was_reported_is_changed(found, include_sys):
    before = repr(found)
    pages(found, include_sys=include_sys)
    assert repr(found) == before


@few
@given(executors(), WINDOWS)
def test_an_average_that_is_no_number_counts_as_zero(found, window):
    cleaned = [
        replace(executor, stats=executor.stats and with_averages(executor.stats, finite))
        for executor in found
    ]
    assert without_reports(pages(cleaned, window)) == without_reports(pages(found, window))


def finite(average):
    return average if isfinite(average) else 0.0


def with_averages(stats, change):
    def changed(of):
        return {w: {s: change(a) for s, a in streams.items()} for w, streams in of.items()}

    spout, bolt = stats.specific.spout, stats.specific.bolt
    if spout is not None:
        specific = ExecutorSpecificStats(
            spout=SpoutStats(spout.acked, spout.failed, changed(spout.complete_ms_avg))
        )
    else:
        specific = ExecutorSpecificStats(
            bolt=BoltStats(
                bolt.acked,
                bolt.failed,
                changed(bolt.process_ms_avg),
                bolt.executed,
                changed(bolt.execute_ms_avg),
            )
        )
    return ExecutorStats(stats.emitted, stats.transferred, specific, stats.rate)


def without_reports(found):
    """Pages without what each executor reported, which they hand on."""
    topology, *components = found
    return topology, *(
        replace(
            page,
            executors=[(replace(report, stats=None), row) for report, row in page.executors],
        )
        for page in components
    )


@few
@given(executors(COUNTS, AVERAGES), st.data())
def test_a_page_is_what_the_pages_of_its_executors_add_up_to(found, data):
    mine = data.draw(st.sets(st.sampled_from(range(len(found))))) if found else set()
    one, other = (
        component_pages([e for n, e in enumerate(found) if (n in mine) is taken])
        for taken in (True, False)
    )
    for id_, page in component_pages(found).items():
        parts = one[id_], other[id_]
        assert page.num_executors == sum(part.num_executors for part in parts)
        assert page.num_tasks == sum(part.num_tasks for part in parts)
        for name in ("window_to_stats", "gsid_to_input_stats", "sid_to_output_stats"):
            whole = getattr(page, name) or {}
            halves = [getattr(part, name) or {} for part in parts]
            assert whole.keys() == set().union(*halves)
            for key, row in whole.items():
                adds_up(row, [half[key] for half in halves if key in half])


def adds_up(row, parts):
    for name, value in asdict(row).items():
        if name in WEIGHTS:
            weight = WEIGHTS[name]
            total = sum(getattr(part, name) * getattr(part, weight) for part in parts)
            assert value * getattr(row, weight) == pytest.approx(total, rel=1e-9)
        else:
            assert value == sum(getattr(part, name) for part in parts)


@few
@given(executors(COUNTS, AVERAGES))
def test_the_rows_of_executors_add_up_to_the_row_of_their_window(found):
    for page in component_pages(found, "600").values():
        row = page.window_to_stats.get("600")
        rows = [stats for _, stats in page.executors]
        if row is None:
            assert not any(value for one in rows for value in (one.emitted, one.acked, one.failed))
        elif page.component_type == "spout":
            adds_up(row, rows)
        else:
            adds_up(row, [replace(one, capacity=0.0) for one in rows])


@few
@given(executors(COUNTS, AVERAGES), WINDOWS)
def test_pages_differ_by_less_than_a_millisecond(found, window):
    topology = topology_page(COMPONENTS, found, window, include_sys=True)
    rows = topology.id_to_spout_agg_stats | topology.id_to_bolt_agg_stats
    for id_, page in component_pages(found, window, include_sys=True).items():
        if page.num_executors == 0 or window not in page.window_to_stats:
            continue
        row, exact = asdict(rows[id_]), asdict(page.window_to_stats[window])
        for name in ("emitted", "transferred", "acked", "failed"):
            assert row[name] == exact[name]
        for name, weight in WEIGHTS.items():
            if name in row and row[weight] > 0:
                whole = exact[name] * row[weight]
                lost = whole - row[name] * row[weight]
                rounding = 1e-9 * (1 + whole)
                assert -rounding <= lost < page.num_executors + rounding
        if page.component_type == "bolt":
            shares = [stats.capacity for _, stats in page.executors]
            assert row["capacity"] == max(shares)


@few
@given(executors())
def test_in_an_unknown_window_rows_are_zero_and_the_rest_stays(found):
    known, *components = pages(found, "600")
    unknown, *of_unknown = pages(found, "601")
    assert replace(unknown, id_to_spout_agg_stats={}, id_to_bolt_agg_stats={}) == replace(
        known, id_to_spout_agg_stats={}, id_to_bolt_agg_stats={}
    )
    for before, after in (
        (known.id_to_spout_agg_stats, unknown.id_to_spout_agg_stats),
        (known.id_to_bolt_agg_stats, unknown.id_to_bolt_agg_stats),
    ):
        assert {id_: zeros(row) for id_, row in before.items()} == after
    for before, after in zip(components, of_unknown, strict=True):
        assert not after.sid_to_output_stats
        assert not after.gsid_to_input_stats
        assert after.window_to_stats == before.window_to_stats
        assert [row for _, row in after.executors] == [zeros(row) for _, row in before.executors]


def zeros(row):
    kept = {"num_executors", "num_tasks", "capacity"}
    return replace(row, **{name: 0 for name in asdict(row) if name not in kept})


@few
@given(executors(), WINDOWS)
def test_system_parts_hide_only_emitted_and_transferred(found, window):
    hidden = component_pages(found, window)
    shown = component_pages(found, window, include_sys=True)
    assert hidden["__acker"].executors == []
    for id_ in COMPONENTS.keys() - {"__acker"}:
        assert hidden[id_].gsid_to_input_stats == shown[id_].gsid_to_input_stats
        assert {w: alike(row) for w, row in hidden[id_].window_to_stats.items()} == {
            w: alike(row) for w, row in shown[id_].window_to_stats.items()
        }
        streams = shown[id_].sid_to_output_stats
        assert hidden[id_].sid_to_output_stats.keys() <= streams.keys()
        for stream, row in hidden[id_].sid_to_output_stats.items():
            assert row == (streams[stream] if stream != "__ack" else alike(streams[stream]))


def alike(row):
    return replace(row, emitted=0, transferred=0)


@few
@given(executors())
def test_zero_uptime_zeroes_only_capacity(found):
    topology, *components = pages([replace(executor, uptime_secs=0) for executor in found])
    of_known, *known = pages(found)
    assert all(row.capacity == 0 for row in topology.id_to_bolt_agg_stats.values())
    assert topology.topology_stats == of_known.topology_stats
    for page, before in zip(components, known, strict=True):
        for (_, row), (_, was) in zip(page.executors, before.executors, strict=True):
            if page.component_type == "spout":
                assert row == was
            else:
                assert row == replace(was, capacity=0.0)


@few
@given(executors())
def test_silent_executor_only_counts_as_executor(found):
    silent = ExecutorReport(100, 101, "words", "n", "n.example", 6700)
    topology, *components = pages(found)
    with_silent, *of_silent = pages([*found, silent])
    assert of_silent == components
    assert with_silent.num_executors == topology.num_executors + 1
    assert replace(with_silent, num_executors=0, workers=[]) == replace(
        topology, num_executors=0, workers=[]
    )
    assert sum(worker.num_executors for worker in with_silent.workers) == with_silent.num_executors
