"""Assignments are followed by watches, and stay as they were where they cannot be read."""

from dataclasses import replace

import pytest

from stormkeeper import paths
from stormkeeper.errors import StateUnavailableError
from stormkeeper.nimbus.scheduling import cluster
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.paths import Slot
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.assignments import (
    Assignments,
    Orders,
    find_orders,
    find_stopped,
)
from stormkeeper.supervisor.process_table import ProcessId
from stormkeeper.supervisor.slot_model import Restart, SlotAssignment, SlotRecord, WorkerRecord
from stormkeeper.supervisor.worker_processes import start_claims
from stormkeeper.thrift.records import Assignment, LaunchClaim, NodeInfo
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.plan import Claim
from support.leaders import lead
from support.memory_state import MemoryEnsemble
from support.waiting import until


class World:
    """A leader, a follower, and what it was told."""

    def __init__(self):
        ensemble = MemoryEnsemble()
        self.leading = StormClusterState(ensemble.session(), Codec())
        self.storm = StormClusterState(ensemble.session(), Codec())
        self.leader = lead(self.leading)
        self.told = []
        self.following = Assignments(self.storm, self.told.append)

    def assign(self, storm_id, text):
        self.leader.set_assignment(storm_id, Assignment(text))

    def now(self):
        return {k: v.master_code_dir for k, v in self.told[-1].items()} if self.told else None

    def close(self):
        self.following.close()
        self.storm.disconnect()
        self.leading.disconnect()


@pytest.fixture
def world():
    world = World()
    yield world
    world.close()


def test_all_are_told_at_first_even_if_there_is_none(world):
    world.following.start()
    until(lambda: world.now() == {})


def test_each_change_is_told(world):
    world.assign("a-1-1", "one")
    world.following.start()
    until(lambda: world.now() == {"a-1-1": "one"})
    world.assign("b-2-1", "two")
    until(lambda: world.now() == {"a-1-1": "one", "b-2-1": "two"})
    for number in range(5):
        world.assign("a-1-1", str(number))
        until(lambda number=number: world.now() == {"a-1-1": str(number), "b-2-1": "two"})
    world.leader.remove_storm("a-1-1")
    until(lambda: world.now() == {"b-2-1": "two"})


def test_what_cannot_be_read_stays_as_it_was(world, caplog):
    world.assign("a-1-1", "one")
    world.following.start()
    until(lambda: world.now() == {"a-1-1": "one"})
    world.leading.state.set_data(paths.assignment("a-1-1"), b"garbage")
    until(lambda: "/assignments/a-1-1 cannot be read" in caplog.text)
    world.assign("b-2-1", "two")
    until(lambda: world.now() == {"a-1-1": "one", "b-2-1": "two"})


def test_what_could_never_be_read_is_not_taken_for_absent(world):
    world.assign("a-1-1", "one")
    world.leading.state.set_data(paths.assignment("a-1-1"), b"garbage")
    world.following.start()
    until(lambda: world.told)
    assert world.told == [{"a-1-1": None}]
    world.assign("a-1-1", "two")
    until(lambda: world.told[1:])
    assert world.now() == {"a-1-1": "two"}


def test_failed_reads_are_repeated_and_logged(world, monkeypatch, caplog):
    world.assign("a-1-1", "one")
    world.following.start()
    until(lambda: world.now() == {"a-1-1": "one"})
    whole, failures = world.storm.state.read_many, ["once", "twice"]

    def read(wanted, watch=False):
        if failures:
            raise StateUnavailableError(f"no server answered {failures.pop()}")
        return whole(wanted, watch)

    monkeypatch.setattr(world.storm.state, "read_many", read)
    world.assign("a-1-1", "two")
    until(lambda: world.now() == {"a-1-1": "two"})
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == [
        "assignments: not in sync with the store; next attempt in 0.25 s: no server answered twice",
        "assignments: not in sync with the store; next attempt in 0.5 s: no server answered once",
    ]


def test_supervisor_with_a_defect_does_not_count_as_running(world, monkeypatch, caplog):
    world.following.start()
    until(lambda: world.now() == {})
    assert world.following.is_running
    monkeypatch.setattr(world.following, "_publish", lambda _assigned: 1 / 0)
    world.assign("a-1-1", "one")
    until(lambda: not world.following.is_running)
    until(lambda: "ZeroDivisionError" in caplog.text)


def test_nobody_is_told_after_the_end(world):
    world.following.start()
    until(lambda: world.now() == {})
    world.following.close()
    count = len(world.told)
    world.assign("a-1-1", "one")
    assert len(world.told) == count


HERE, ELSEWHERE = "sup-a-10.0.0.1", "sup-b-10.0.0.2"
PORTS = (6700, 6701)


def launch(port, counter, *queries, node=HERE, **more):
    return Launch(Slot(node, port), Claim(7, counter), queries or ("out",), 1_700_000_000, **more)


def assigned(*launches):
    return cluster.assignment_record(launches, (), master_code_dir="", hosts={})


def given(**assignments):
    return find_orders(assignments, HERE, PORTS, lambda _: Restart.ON_FAILURE)


def test_a_launch_is_what_its_slot_is_to_run():
    ordered = given(wc=assigned(launch(6700, 3, "totals", "out", memory_mb=512.5)))
    work = SlotAssignment(
        "wc", {"out": "7-3-0", "totals": "7-3-0"}, memory_bytes=int(512.5 * 2**20)
    )
    assert ordered == Orders({6700: work}, {}, frozenset({"wc"}))


def test_a_slot_goes_on_while_its_assignment_cannot_be_read():
    before = given(wc=assigned(launch(6700, 3)), job=assigned(launch(6701, 4))).wanted
    assigned_now = {"wc": None, "job": None, "new": assigned(launch(6701, 5))}
    ordered = find_orders(assigned_now, HERE, PORTS, lambda _: Restart.ON_FAILURE, before)
    assert ordered.wanted[6700] == before[6700]
    assert ordered.wanted[6701].storm_id == "new", "what can be read counts"
    assert ordered.storm_ids == {"wc", "job", "new"}
    assert find_orders({}, HERE, PORTS, lambda _: Restart.ON_FAILURE, before) == Orders()
    assert find_orders(assigned_now, HERE, (), lambda _: Restart.ON_FAILURE, before).wanted == {}


def test_what_a_topology_says_of_restarts_counts():
    ordered = find_orders(
        {"wc": assigned(launch(6700, 1)), "job": assigned(launch(6701, 2))},
        *(HERE, PORTS),
        lambda storm_id: Restart.NEVER if storm_id == "job" else Restart.ALWAYS,
    )
    assert {port: work.restart for port, work in ordered.wanted.items()} == {
        6700: Restart.ALWAYS,
        6701: Restart.NEVER,
    }


def test_launches_elsewhere_are_ignored():
    there = assigned(launch(6700, 1, node=ELSEWHERE), launch(6709, 2), launch(6701, 3))
    assert given(wc=there).wanted.keys() == {6701}


@pytest.mark.parametrize(
    ("foreign", "is_here"),
    [
        (Assignment("/code"), False),
        (Assignment("/", worker_resources={NodeInfo(HERE, {6700}): {}}), True),
        (Assignment("/", executor_node_port={(1, 1): NodeInfo(HERE, {6700})}), True),
        (Assignment("/", executor_node_port={(1, 1): NodeInfo(ELSEWHERE, {6700})}), False),
    ],
)
def test_foreign_assignment_orders_nothing_and_is_named(foreign, is_here):
    assert given(wc=foreign) == Orders(foreign=frozenset({"wc"} if is_here else ()))


@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_of_two_launches_in_one_slot_the_newer_one_counts(order):
    both = {"old": assigned(launch(6700, 3)), "new": assigned(launch(6700, 4))}
    assert given(**{name: both[name] for name in order}).wanted[6700].storm_id == "new"


def test_what_is_released_is_not_run_and_the_newest_one_is_named():
    released = [launch(6700, counter, is_released=True) for counter in (3, 5, 4)]
    ordered = given(wc=assigned(*released), job=assigned(launch(6700, 6)))
    assert ordered.released == {6700: Claim(7, 5)}
    assert ordered.wanted[6700].storm_id == "job"
    assert ordered.storm_ids == {"wc", "job"}


def running(counter):
    work = SlotAssignment("wc", {"out": f"7-{counter}-0"})
    return SlotRecord(work, WorkerRecord("w1", work, ProcessId(1, 1)))


@pytest.mark.parametrize(
    ("record", "is_stopped"),
    [
        (SlotRecord(), True),
        (None, True),
        (running(4), False),
        (running(3), False),
        (running(5), True),
        (replace(running(9), worker=None), True),
    ],
)
def test_released_launch_stops_with_its_last_process(record, is_stopped):
    slots = {} if record is None else {6700: record}
    found = find_stopped(Orders({}, {6700: Claim(7, 4)}), slots)
    assert found == ({6700: LaunchClaim(7, 4)} if is_stopped else {})


def test_each_start_has_its_own_claims():
    work = SlotAssignment("wc", {"out": "7-3-0", "in": "7-3-0"})
    assert start_claims(work, 12) == {"out": "7-3-12", "in": "7-3-12"}
