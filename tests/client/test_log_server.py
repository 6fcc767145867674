"""Where a topology's workers are, and whom to ask for their logs."""

import pytest

from stormkeeper.client.log_server import (
    LogMachine,
    machines_of_host,
    machines_of_topology,
    with_workers,
    workers_of_component,
)
from stormkeeper.conf.address import Address
from stormkeeper.errors import UnknownComponentError
from stormkeeper.thrift.nimbus import ExecutorSummary, TopologyInfo
from stormkeeper.thrift.records import (
    Assignment,
    ExecutorInfo,
    LaunchClaim,
    NodeInfo,
    SupervisorInfo,
    WorkerLaunch,
)

SUPERVISORS = {
    "one": SupervisorInfo(1, "host-a", http_port=8000),
    "two": SupervisorInfo(1, "host-b"),
    "other": SupervisorInfo(1, "host-a", http_port=8001),
}


def launch(node, port, *, released):
    return WorkerLaunch(node, port, LaunchClaim(1, 1), ["out"], 1, 1.0, released)


ASSIGNMENT = Assignment(
    "",
    {"one": "host-a", "two": "host-b", "three": "host-c"},
    {
        (1, 1): NodeInfo("one", {6700}),
        (2, 2): NodeInfo("one", {6701}),
        (3, 3): NodeInfo("two", {6700}),
        (4, 4): NodeInfo("three", {6702}),
    },
    launches=[launch("one", 6700, released=False), launch("two", 6703, released=True)],
)


def test_machines_of_current_and_released_workers():
    machines = machines_of_topology(ASSIGNMENT, SUPERVISORS)
    assert machines == {
        "one": LogMachine("host-a", 8000, True, (6700, 6701)),
        "two": LogMachine("host-b", None, True, (6700, 6703)),
        "three": LogMachine("host-c", None, False, (6702,)),
    }
    assert machines["one"].address == Address("host-a", 8000)
    assert machines["two"].address is None
    assert "set logviewer.port" in machines["two"].fault
    assert "no supervisor is registered" in machines["three"].fault


def test_a_topology_that_runs_nowhere():
    assert machines_of_topology(None, SUPERVISORS) == {}
    assert machines_of_topology(Assignment(""), SUPERVISORS) == {}


def test_every_supervisor_of_a_machine_may_have_had_a_worker():
    assert [*machines_of_host("host-a", 6700, SUPERVISORS)] == ["one", "other"]
    assert machines_of_host("host-a", 6700, SUPERVISORS)["other"].ports == (6700,)
    assert machines_of_host("host-x", 6700, SUPERVISORS) == {}


def test_the_workers_of_a_component_alone():
    def executor(component, host, port):
        return ExecutorSummary(ExecutorInfo(1, 1), component, host, port, 1)

    info = TopologyInfo(
        "wc-1-1",
        "wc",
        1,
        [executor("lines", "host-a", 6700), executor("words", "host-b", 6700)],
        "ACTIVE",
        {},
    )
    assert workers_of_component(info, "words") == {("host-b", 6700)}
    with pytest.raises(
        UnknownComponentError, match="wc has no component sums; it has lines, words"
    ):
        workers_of_component(info, "sums")
    machines = machines_of_topology(ASSIGNMENT, SUPERVISORS)
    assert with_workers(machines, {("host-b", 6700)}) == {
        "two": LogMachine("host-b", None, True, (6700,))
    }
