"""The pages, first as Storm's own classes made them, then what is ours to decide."""

from dataclasses import asdict
from math import inf, nan

import pytest

from stormkeeper.errors import UnknownComponentError
from stormkeeper.statistics.aggregates import workers
from stormkeeper.statistics.executor_reports import DeclaredComponent, ExecutorReport
from stormkeeper.thrift.nimbus import WorkerSummary
from support.heartbeats import bolt, spout
from support.statistics_examples import KEYS, assert_same, example
from support.statistics_rows import SpoutRow, component_page, topology_page

# --- as Storm's getTopologyPageInfo and getComponentPageInfo -------------------------------------

COMMON = ("num_executors", "num_tasks", "emitted", "transferred", "acked", "failed")


def answers(kind):
    """Every page of a kind, as parameters of a test."""
    for key in KEYS:
        for answer in example(key).answers[kind]:
            what = (key, answer.get("component"), answer["window"], f"sys={answer['sys']}")
            yield pytest.param(key, answer, id="-".join(filter(None, what)))


@pytest.mark.parametrize(("key", "answer"), [*answers("topology_page")])
def test_the_page_of_a_topology_is_storms(key, answer):
    page = topology_page(
        example(key).components,
        example(key).executors,
        answer["window"],
        include_sys=answer["sys"],
    )
    found = {name: getattr(page, name) for name in ("num_tasks", "num_workers", "num_executors")}
    found["id_to_spout_agg_stats"] = rows(page.id_to_spout_agg_stats)
    found["id_to_bolt_agg_stats"] = rows(page.id_to_bolt_agg_stats)
    found["topology_stats"] = vars(page.topology_stats)
    found["workers"] = [given(worker) for worker in page.workers]
    assert_same(found, answer["result"])


@pytest.mark.parametrize(
    ("key", "answer"),
    [p for p in answers("component_page") if p.values[1]["component"] != "nope"],
)
def test_the_page_of_a_component_is_storms(key, answer):
    page = component_page(
        answer["component"],
        example(key).components,
        example(key).executors,
        answer["window"],
        include_sys=answer["sys"],
    )
    found = {name: getattr(page, name) for name in ("component_id", "num_executors", "num_tasks")}
    found["component_type"] = page.component_type.upper()
    found["window_to_stats"] = rows(page.window_to_stats)
    found["sid_to_output_stats"] = rows(page.sid_to_output_stats)
    if page.gsid_to_input_stats is not None:
        found["gsid_to_input_stats"] = [
            [{"componentId": source.componentId, "streamId": source.streamId}, row(stats)]
            for source, stats in page.gsid_to_input_stats.items()
        ] or {}  # as Storm's is written
    found["exec_stats"] = [
        {"exec_summary": summary(report), "stats": row(stats)} for report, stats in page.executors
    ]
    assert_same(found, answer["result"])


@pytest.mark.parametrize("key", KEYS)
def test_the_capacity_of_a_bolt_is_storms(key):
    components, executors = example(key).components, example(key).executors
    found = topology_page(components, executors, "600", include_sys=True).id_to_bolt_agg_stats
    for bolt_ in example(key).answers["visualization"]:
        id_ = bolt_["component"]
        if id_ in found:
            assert found[id_].capacity == pytest.approx(bolt_["computeBoltCapacity"], rel=1e-9)
            page = component_page(id_, components, executors, "600", include_sys=True)
            shares = {report.task_start: stats.capacity for report, stats in page.executors}
            of_storm = {
                one["executor"]["task_start"]: one["computeExecutorCapacity"]
                for one in bolt_["executors"]
                if one["executor"]["task_start"] in shares
            }
            assert shares == pytest.approx(of_storm, rel=1e-9)
    assert found


def rows(statistics):
    return {name: row(found) for name, found in statistics.items()}


def row(statistics):
    """A row in the form of ``ComponentAggregateStats``."""
    values = asdict(statistics)
    kind = "spout" if isinstance(statistics, SpoutRow) else "bolt"
    return {
        "type": kind.upper(),
        "common_stats": {name: values.pop(name) for name in COMMON},
        "specific_stats": {kind: values},
    }


def summary(report):
    return {
        "executor_info": {"task_start": report.task_start, "task_end": report.task_end},
        "component_id": report.component_id,
        "host": report.host,
        "port": report.port,
        "uptime_secs": report.uptime_secs,
    }


def given(record):
    """Return the fields of a Thrift record that are set."""
    return {name: value for name, value in vars(record).items() if value is not None}


# --- ours ----------------------------------------------------------------------------------------

COMPONENTS = {
    "__acker": DeclaredComponent("bolt", 1, 1),
    "__system": DeclaredComponent("bolt", 0, 0),
    "lines": DeclaredComponent("spout", 1, 2),
    "words": DeclaredComponent("bolt", 2, 4),
    "counts": DeclaredComponent("bolt", 1, 1),
}


def report(task, component, stats=None, *, tasks=1, uptime_secs=60, port=6700):
    return ExecutorReport(task, task + tasks - 1, component, "n", "h", port, uptime_secs, stats)


def test_unknown_component_has_no_page():
    """Storm shows an empty spout."""
    with pytest.raises(UnknownComponentError, match=r"no component 'nope'.* 'counts', 'lines'"):
        component_page("nope", COMPONENTS, [], "600", include_sys=True)


def test_a_topology_that_does_not_run_shows_what_it_declares():
    page = topology_page(COMPONENTS, [], "600", include_sys=False)
    assert (page.num_tasks, page.num_executors, page.num_workers) == (8, 0, 0)
    assert page.workers == []
    assert {
        id_: (found.num_executors, found.num_tasks, found.acked)
        for id_, found in (page.id_to_spout_agg_stats | page.id_to_bolt_agg_stats).items()
    } == {"lines": (1, 2, 0), "words": (2, 4, 0), "counts": (1, 1, 0)}
    assert not any(vars(page.topology_stats).values())


def test_silent_system_bolts_with_tasks_are_shown():
    page = topology_page(COMPONENTS, [], "600", include_sys=True)
    assert page.id_to_bolt_agg_stats.keys() == {"__acker", "words", "counts"}


def test_silent_bolts_are_hidden_after_the_first_report():
    found = topology_page(
        COMPONENTS,
        [report(1, "words", bolt({}), tasks=2), report(3, "counts")],
        "600",
        include_sys=False,
    )
    assert found.id_to_bolt_agg_stats.keys() == {"words"}
    assert found.id_to_bolt_agg_stats["words"].num_tasks == 2
    assert found.id_to_spout_agg_stats.keys() == {"lines"}
    assert found.num_executors == 2


def test_report_of_a_hidden_bolt_hides_no_other():
    executors = [report(1, "__acker", bolt({}))]
    hidden = topology_page(COMPONENTS, executors, "600", include_sys=False)
    assert hidden.id_to_bolt_agg_stats.keys() == {"words", "counts"}
    assert hidden.num_workers == 0
    shown = topology_page(COMPONENTS, executors, "600", include_sys=True)
    assert shown.id_to_bolt_agg_stats.keys() == {"__acker"}
    assert shown.num_workers == 1


def test_window_without_acks_has_no_latency():
    stats = spout(7, acked=5)
    stats.specific.spout.acked["600"] = {"default": 0}
    stats.specific.spout.complete_ms_avg["10800"] = {"default": 0.0}
    found = topology_page(COMPONENTS, [report(1, "lines", stats)], "600", include_sys=False)
    assert found.topology_stats.window_to_acked == {
        "600": 0,
        "10800": 5,
        "86400": 5,
        ":all-time": 5,
    }
    assert found.topology_stats.window_to_complete_latencies_ms == {
        "10800": 0.0,
        "86400": 2.5,
        ":all-time": 2.5,
    }


def test_the_capacity_of_a_bolt_is_that_of_its_busiest_executor():
    source = ("lines", "default")
    executors = [
        report(1, "words", bolt({source: 300}, execute_ms=10.0)),
        report(3, "words", bolt({source: 600}, execute_ms=10.0)),
    ]
    page = topology_page(COMPONENTS, executors, ":all-time", include_sys=False)
    assert page.id_to_bolt_agg_stats["words"].capacity == pytest.approx(0.1)


@pytest.mark.parametrize("average", [nan, inf, -inf])
def test_the_capacity_of_an_executor_is_a_number(average):
    """Storm's row of it may be none."""
    executors = [report(1, "words", bolt({("lines", "default"): 300}, execute_ms=average))]
    page = component_page("words", COMPONENTS, executors, "600", include_sys=False)
    ((_, found),) = page.executors
    assert found.capacity == 0.0


def test_streams_of_spouts_and_bolts():
    executors = [
        report(1, "lines", spout(7, acked=5)),
        report(3, "words", bolt({("lines", "default"): 9}, 4)),
    ]
    page = component_page("lines", COMPONENTS, executors, "600", include_sys=False)
    assert page.gsid_to_input_stats is None
    (stream,) = page.sid_to_output_stats.values()
    assert (stream.emitted, stream.acked, stream.complete_latency_ms) == (7, 5, 2.5)
    page = component_page("words", COMPONENTS, executors, "600", include_sys=False)
    (source,) = page.gsid_to_input_stats.values()
    assert (source.executed, source.acked, source.emitted, source.capacity) == (9, 9, 0, 0.0)
    (stream,) = page.sid_to_output_stats.values()
    assert (stream.executed, stream.acked, stream.emitted) == (0, 0, 4)


def test_a_worker_that_has_reported_has_an_uptime():
    executors = [
        report(1, "__acker", uptime_secs=0),
        report(2, "lines", spout(1), tasks=2, uptime_secs=30),
        report(4, "lines", tasks=1, uptime_secs=0),
        report(5, "words", uptime_secs=0, port=6701),
    ]
    one = {"supervisor_id": "n", "host": "h"}
    assert workers(executors, include_sys=False) == [
        WorkerSummary(
            **one, port=6700, num_executors=3, component_to_num_tasks={"lines": 3}, uptime_secs=30
        ),
        WorkerSummary(
            **one, port=6701, num_executors=1, component_to_num_tasks={"words": 1}, uptime_secs=0
        ),
    ]
    first, _ = workers(executors, include_sys=True)
    assert first.component_to_num_tasks == {"__acker": 1, "lines": 3}
