"""Requests that workers be profiled."""

import pytest

from stormkeeper import paths
from stormkeeper.errors import InvalidPathError
from stormkeeper.thrift.records import NodeInfo, ProfileAction, ProfileRequest

ID = "wc-1-1700000000"


def request_for(port, action=ProfileAction.JSTACK_DUMP, time_stamp=None):
    return ProfileRequest(NodeInfo("node", {port}), action, time_stamp)


def plain(requests):
    """The requests, sorted, without their epoch."""
    for request in requests:
        assert request.leader_epoch is not None
        request.leader_epoch = None
    return requests


def test_requests_are_read_for_a_topology_and_for_a_worker(storm, leader):
    assert storm.topology_profile_requests(ID) == []
    requests = [
        request_for(6700, ProfileAction.JMAP_DUMP),
        request_for(6700, ProfileAction.JPROFILE_STOP),
        request_for(6701),
    ]
    for request in reversed(requests):
        leader.set_worker_profile_request(ID, request)
    assert plain(storm.topology_profile_requests(ID)) == requests
    node = NodeInfo("node", {6700})
    assert plain(storm.worker_profile_requests(ID, node)) == requests[:2]
    assert storm.worker_profile_requests(ID, NodeInfo("elsewhere", {6700})) == []
    assert storm.worker_profile_requests("other", node) == []


def test_a_second_request_for_the_same_replaces_the_first(storm, leader):
    leader.set_worker_profile_request(ID, request_for(6700, time_stamp=1))
    leader.set_worker_profile_request(ID, request_for(6700, time_stamp=2))
    (found,) = storm.topology_profile_requests(ID)
    assert found.time_stamp == 2


@pytest.mark.parametrize("who", ["leader", "storm"])
def test_whoever_has_done_it_removes_it(request, storm, leader, who):
    for port in (6700, 6701):
        leader.set_worker_profile_request(ID, request_for(port))
    for _ in range(2):
        request.getfixturevalue(who).delete_topology_profile_requests(ID, request_for(6700))
    assert plain(storm.topology_profile_requests(ID)) == [request_for(6701)]


@pytest.mark.parametrize(
    "node", [NodeInfo("node", set()), NodeInfo("node", {1, 2}), NodeInfo("node"), NodeInfo(), None]
)
def test_a_request_is_for_one_worker(storm, leader, node):
    request = ProfileRequest(node, ProfileAction.JMAP_DUMP)
    for call in (leader.set_worker_profile_request, storm.delete_topology_profile_requests):
        with pytest.raises(InvalidPathError, match="for one worker"):
            call(ID, request)


def test_a_request_is_for_an_action(storm, leader):
    request = ProfileRequest(NodeInfo("node", {6700}))
    for call in (leader.set_worker_profile_request, storm.delete_topology_profile_requests):
        with pytest.raises(InvalidPathError, match="names no action"):
            call(ID, request)


def test_what_cannot_be_read_is_left_out(storm, leader, memory):
    leader.set_worker_profile_request(ID, request_for(6700))
    memory.set_data(paths.profiler_config(ID, "node", 6701, "JMAP_DUMP"), b"nonsense")
    assert plain(storm.topology_profile_requests(ID)) == [request_for(6700)]
    assert storm.unreadable == 1
