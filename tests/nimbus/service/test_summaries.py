"""Summaries in memory: equal to those made from nothing, whatever happened before."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper import conf
from stormkeeper.blobs import keys
from stormkeeper.errors import CallRefusedError, StateClosedError, StateUnavailableError
from stormkeeper.nimbus.service import summaries
from stormkeeper.nimbus.service.summaries import Reading, Refresher, Sources, made
from stormkeeper.nimbus.service.supervisor_summaries import (
    SupervisorSummaries,
    supervisor_summary,
)
from stormkeeper.nimbus.service.views import ViewReader
from stormkeeper.nimbus.submitted import Submitted
from stormkeeper.paths import BlobHolder, NimbusId, Slot
from stormkeeper.state.storm.cluster_view import ClusterRecords
from stormkeeper.state.storm.heartbeat_records import Activity
from stormkeeper.thrift.nimbus import StormTopology
from stormkeeper.thrift.records import (
    Assignment,
    CrashSeries,
    LaunchClaim,
    NodeInfo,
    QueryActivity,
    SlotReport,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
    WorkerActivity,
    WorkerLaunch,
    WorkerResources,
)
from stormkeeper.thrift.writer import encode
from support.waiting import DEADLINE_SECS, until

NOW = 1_700_000_000
IDS = [f"t{number}-{number}-1" for number in range(2)]
NODES = ["sup-a", "sup-b"]
PORTS = [6700, 6701]


class Code:
    """Code on this Nimbus, by topology: a version, or nothing."""

    def __init__(self):
        self.revision = 0
        self.versions = {}

    def put(self, storm_id, version):
        self.revision += 1
        self.versions[storm_id] = version

    def version(self, storm_id):
        found = self.versions.get(storm_id)
        return None if found is None else (str(found),)

    def get(self, storm_id):
        found = self.versions.get(storm_id)
        if found is None:
            return None
        topology = StormTopology({}, {}, {}, storm_version=f"1.{found}")
        conf = {"topology.worker.memory.mb": 100 * found, "topology.stuck.batch.secs": 30 * found}
        return Submitted(topology, conf, None)


def assignment(launches):
    places = {(number, number): NodeInfo(*place) for number, place in enumerate(launches)}
    return Assignment(
        "x",
        {node: f"{node}.example" for node in NODES[:1]},
        {tasks: NodeInfo(place.node, {place.port}) for tasks, place in places.items()},
        worker_resources={
            NodeInfo(place.node, {place.port}): WorkerResources(0.1 * (number + 1))
            for number, place in enumerate(places.values())
        },
        launches=[
            WorkerLaunch(place.node, place.port, LaunchClaim(1, number), ["q"], NOW - 50, 512.0)
            for number, place in enumerate(places.values())
        ],
    )


def reported(state, port):
    """A supervisor's report of a slot; None: its worker runs."""
    if state is None:
        return {}
    crashes = CrashSeries(3, NOW - 60, "it ended") if state == "backing_off" else None
    return {port: SlotReport(LaunchClaim(1, 0), state, NOW - 9, crashes, reason="why")}


ids = st.sampled_from(IDS)
nodes = st.sampled_from(NODES)
slots = st.lists(st.tuples(nodes, st.sampled_from(PORTS)), max_size=3, unique=True)
activities = st.builds(
    WorkerActivity,
    st.integers(0, 100),
    completed=st.sampled_from([None, True]),
    queries=st.lists(
        st.builds(
            QueryActivity, st.just("q"), st.just(1), st.just(1), st.just(2), st.integers(0, 10**5)
        ),
        max_size=1,
    ),
    waiting=st.sampled_from([None, "no executor"]),
)
pulses = st.none() | st.dictionaries(
    ids,
    st.dictionaries(
        st.builds(Slot, nodes, st.sampled_from(PORTS)),
        st.builds(Activity, activities.map(encode), st.none() | st.floats(0, 60)),
    ),
)
steps = st.one_of(
    st.tuples(st.just("base"), ids, st.sampled_from(TopologyStatus), st.integers(1, 3)),
    st.tuples(st.just("no base"), ids),
    st.tuples(st.just("assignment"), ids, slots),
    st.tuples(st.just("no assignment"), ids),
    st.tuples(
        st.just("supervisor"),
        nodes,
        st.lists(st.sampled_from(PORTS), unique=True),
        st.sampled_from([None, "backing_off", "running", "failed"]),
        st.integers(0, 10**6),
    ),
    st.tuples(st.just("no supervisor"), nodes),
    st.tuples(st.just("text"), ids, st.sampled_from(["Fully Scheduled", "Not enough slots", ""])),
    st.tuples(st.just("holders"), ids, st.integers(0, 2)),
    st.tuples(st.just("code"), ids, st.none() | st.integers(1, 2)),
    st.tuples(st.just("reading"), st.integers(0, 100), pulses),
    st.tuples(st.just("error"), ids, st.sampled_from(["", "ValueError: no"])),
)


def changed(table, key, value):
    """Return a table with another value, in the order of the keys."""
    found = {**table, key: value}
    return {key: found[key] for key in sorted(found) if found[key] is not None}


def after(sources, code, step):
    """Return the sources after a step of a history."""
    kind, key, *rest = step
    records = sources.records
    match kind:
        case "base":
            status, workers = rest
            value = StormBase(key, status, workers, launch_time_secs=NOW - 7, owner="ann")
            records = replace(records, bases=changed(records.bases, key, value))
        case "no base":
            records = replace(records, bases=changed(records.bases, key, None))
        case "assignment":
            value = assignment(rest[0])
            records = replace(records, assignments=changed(records.assignments, key, value))
        case "no assignment":
            records = replace(records, assignments=changed(records.assignments, key, None))
        case "supervisor":
            used, state, uptime = rest
            value = SupervisorInfo(NOW, key, used_ports=used, meta=PORTS, uptime_secs=uptime)
            value.slots = reported(state, PORTS[0])
            records = replace(records, supervisors=changed(records.supervisors, key, value))
        case "no supervisor":
            records = replace(records, supervisors=changed(records.supervisors, key, None))
        case "text":
            return replace(sources, texts=changed(sources.texts, key, rest[0] or None))
        case "holders":
            _, blob, _ = keys.of_topology(key)
            value = tuple(BlobHolder(NimbusId(f"n{number}", 1, 0), 1) for number in range(rest[0]))
            records = replace(records, holders=changed(records.holders, blob, value))
        case "code":
            code.put(key, rest[0])
            return replace(sources, code=code.revision)
        case "reading":
            return replace(sources, reading=Reading(NOW + key, 60.0, rest[0]))
        case "error":
            return replace(sources, errors=changed(sources.errors, key, rest[0] or None))
    return replace(sources, records=records)


def start(code):
    """Two topologies that run."""
    records = ClusterRecords(bases={}, assignments={}, supervisors={}, nimbuses={})
    sources = Sources(records, {}, 0, Reading(NOW))
    for storm_id in IDS:
        for step in (
            ("base", storm_id, TopologyStatus.ACTIVE, 2),
            ("assignment", storm_id, [(node, PORTS[0]) for node in NODES]),
            ("text", storm_id, "Fully Scheduled"),
            ("code", storm_id, 1),
        ):
            sources = after(sources, code, step)
    for node in NODES:
        sources = after(sources, code, ("supervisor", node, [PORTS[0]], None, 5))
    return sources


def plain(encoded):
    return [(each.cls.__name__, b"".join(each.parts)) for each in encoded]


@given(st.lists(steps, max_size=30))
def test_kept_summaries_equal_those_from_nothing(history):
    code = Code()
    views = ViewReader(SimpleNamespace(conf=conf.defaults(), submitted=code))
    sources = start(code)
    kept = made(sources, None, views)
    for step in history:
        sources = after(sources, code, step)
        kept = made(sources, kept, views)
        assert kept == made(sources, None, views)
        assert list(kept.kept) == list(sources.records.bases)


@given(st.lists(steps, max_size=30), st.integers(NOW - 10, NOW + 2**33))
def test_encoded_summaries_are_the_records_bytes(history, now):
    code = Code()
    context = SimpleNamespace(
        conf=conf.defaults(),
        submitted=code,
        clock=lambda: now,
        storm=SimpleNamespace(follow_activities=lambda _: None),
    )
    listed, views = summaries.TopologySummaries(context), ViewReader(context)
    sources, kept = start(code), None
    for step in history:
        sources = after(sources, code, step)
        kept = made(sources, kept, views)
        lines = [summaries.topology_summary(replace(e.view, now=now)) for e in kept.kept.values()]
        assert plain(listed.encoded(kept)) == [("TopologySummary", encode(e)) for e in lines]


@given(st.lists(steps, max_size=30))
def test_kept_supervisors_equal_those_from_nothing(history):
    code, kept = Code(), SupervisorSummaries()
    sources = start(code)
    for step in history:
        sources = after(sources, code, step)
        records = sources.records
        places = [
            place
            for each in records.assignments.values()
            for place in each.executor_node_port.values()
        ]
        lines = []
        for id_, info in records.supervisors.items():
            memory = sorted(
                each.mem_on_heap
                for one in records.assignments.values()
                for place, each in one.worker_resources.items()
                if place.node == id_
            )
            used = {min(place.port) for place in places if place.node == id_}
            line = supervisor_summary(id_, info, used_workers=len(used), used_memory=0.0)
            lines.append((line, sum(memory)))
        found = [each.decoded() for each in kept.encoded(records)]
        assert plain(kept.encoded(records)) == plain(SupervisorSummaries().encoded(records))
        for each, (line, memory) in zip(found, lines, strict=True):
            assert each.used_mem == pytest.approx(memory)
            line.used_mem = each.used_mem
            assert encode(each) == encode(line)


def test_an_unchanged_cluster_makes_no_summary_again():
    code = Code()
    views = ViewReader(SimpleNamespace(conf=conf.defaults(), submitted=code))
    sources = start(code)
    first = made(sources, None, views)
    sources = after(sources, code, ("supervisor", "sup-a", [6700], None, 6))
    assert made(sources, first, views).kept is first.kept, "an uptime changes no summary"
    sources = after(sources, code, ("base", IDS[1], TopologyStatus.KILLED, 1))
    second = made(sources, first, views)
    assert [id_ for id_ in IDS if second.kept[id_] is not first.kept[id_]] == [IDS[1]]


class Refresh:
    """A refresh that a test lets go on, or fail."""

    def __init__(self):
        self.count = 0
        self.may_end = threading.Event()
        self.error = None

    def __call__(self):
        self.count += 1
        assert self.may_end.wait(DEADLINE_SECS)
        if self.error is not None:
            raise self.error


@pytest.fixture
def refresh():
    return Refresh()


@pytest.fixture
def refresher(refresh, monkeypatch):
    monkeypatch.setattr(summaries, "_SHORTEST_PAUSE_SECS", 0.01)
    monkeypatch.setattr(summaries, "_LONGEST_PAUSE_SECS", 0.02)
    refresher = Refresher(refresh, "refreshes of a test")
    yield refresher
    refresh.may_end.set()
    refresher.close()


@pytest.fixture
def threads(refresh):
    with ThreadPoolExecutor(8) as pool:
        yield pool
        refresh.may_end.set()


def test_callers_share_the_first_refresh_and_its_error(refresh, refresher, threads):
    calls = [threads.submit(refresher.ensure) for _ in range(5)]
    until(lambda: refresh.count)
    time.sleep(0.05)
    assert not any(each.done() for each in calls), "they wait"
    refresh.error = StateUnavailableError("not now")
    refresh.may_end.set()
    for each in calls:
        with pytest.raises(StateUnavailableError, match="not now"):
            each.result(DEADLINE_SECS)
    assert refresh.count == 1
    refresh.error = None
    refresher.ensure()
    assert refresh.count >= 2, "the next call refreshes again"


def test_a_call_waits_no_longer_than_it_says(refresh, refresher):
    with pytest.raises(CallRefusedError, match="not read within"):
        refresher.ensure(0.0, 0.05)
    refresh.may_end.set()
    refresher.ensure(0.0, DEADLINE_SECS)


def test_a_call_waits_for_no_later_refresh(refresh, refresher):
    refresh.may_end.set()
    refresher.ensure()
    refresh.may_end.clear()
    count = refresh.count
    until(lambda: refresh.count > count + 1 or not refresh.may_end.is_set())
    refresher.ensure()


def test_refreshes_repeat_and_end_without_callers(refresh, refresher):
    refresh.may_end.set()
    refresher.ensure()
    until(lambda: refresh.count > 3)
    refresher._until = 0.0
    until(lambda: refresher._first is None)
    count = refresh.count
    refresher.ensure(idle_secs=0.0)
    assert refresh.count == count + 1
    until(lambda: refresher._first is None)


def test_a_refresh_pauses_unless_a_list_waits_for_the_first(monkeypatch):
    monkeypatch.setattr(summaries, "_WORK_SECS", 0.0)
    paused = []

    def refresh():
        refresher.pause()
        paused.append(refresher._paused_secs > 0)

    refresher = Refresher(refresh, "refreshes of a test")
    refresher.ensure(idle_secs=0.0)
    until(lambda: refresher._first is None)
    refresher.ensure()
    refresher._thread.wake()
    until(lambda: len(paused) == 3)
    refresher.close()
    assert paused == [True, False, True], "for a scrape, a list's first, a list's next"


def test_a_refresh_ends_in_its_pauses(monkeypatch):
    monkeypatch.setattr(summaries, "_WORK_SECS", 0.0)
    begun, ended = threading.Event(), threading.Event()

    def refresh():
        begun.set()
        try:
            while True:
                refresher.pause()
        finally:
            ended.set()

    refresher = Refresher(refresh, "refreshes of a test")
    with pytest.raises(CallRefusedError):
        refresher.ensure(0.0, 0.01)
    assert begun.wait(DEADLINE_SECS)
    refresher.close()
    assert ended.wait(DEADLINE_SECS)


def test_a_closed_refresher_refuses_calls(refresh, refresher):
    refresh.may_end.set()
    refresher.ensure()
    refresher.close()
    assert not refresher._thread.is_running
    with pytest.raises(StateClosedError):
        refresher.ensure()


def test_a_later_failure_makes_the_next_call_refresh(refresh, refresher):
    refresh.may_end.set()
    refresher.ensure()
    refresh.error = StateUnavailableError("lost")
    until(lambda: refresher._first is None)
    with pytest.raises(StateUnavailableError, match="lost"):
        refresher.ensure()
