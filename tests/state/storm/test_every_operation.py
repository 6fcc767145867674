"""Every operation that Storm's cluster state has had is there, where who may do it has it."""

import inspect

import pytest

from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState, StormReads

#: What anybody reads, whoever it is.
READS = {
    "assignments",
    "assignment_info",
    "assignment_info_with_version",
    "assignment_version",
    "assignments_info",
    "active_storms",
    "kept_storms",
    "storm_base",
    "storm_bases",
    "storm_id_by_name",
    "supervisors",
    "supervisor_info",
    "all_supervisor_info",
    "worker_heartbeat",
    "follow_activities",
    "worker_heartbeats",
    "aged_heartbeats",
    "heartbeat_storms",
    "executor_beats",
    "ended_queries",
    "task_storms",
    "task_ids",
    "task_info",
    "task_heartbeat",
    "heartbeat_tasks",
    "task_errors",
    "errors",
    "topology_errors",
    "last_error",
    "error_topologies",
    "nimbuses",
    "credentials",
    "topology_log_config",
    "worker_profile_requests",
    "topology_profile_requests",
    "blobstore",
    "blobstore_info",
    "blob_key_sequence",
    "blobs",
    "backpressure_topologies",
    "topology_backpressure",
    "all_checkpoints",
    "checkpoints",
    "snapshot",
    "watch",
    "disconnect",
}

#: What a process writes of its own.
OWN = {
    "supervisor_heartbeat",
    "add_nimbus_host",
    "set_worker_heartbeat",
    "remove_worker_heartbeat",
    "set_query_ended",
    "begin_claim",
    "set_task_heartbeat",
    "remove_task_heartbeat",
    "report_error",
    "report_task_error",
    "setup_blob",
    "announce_blob",
    "withdraw_blob",
    "leave_blob",
    "worker_backpressure",
    "remove_worker_backpressure",
    "checkpoints_removed",
}

#: What only a leader writes.
LEADING = {
    "set_assignment",
    "set_assignments",
    "activate_storm",
    "update_storm",
    "change_storm",
    "deactivate_storm",
    "remove_storm",
    "remove_settings",
    "setup_heartbeats",
    "teardown_heartbeats",
    "setup_errors",
    "teardown_errors",
    "setup_backpressure",
    "remove_backpressure",
    "set_task",
    "set_credentials",
    "set_topology_log_config",
    "set_worker_profile_request",
    "set_checkpoints",
    "change_checkpoints",
    "forget_checkpoints",
}

#: What both write.
BOTH = {
    "delete_topology_profile_requests",
    "remove_blobstore_key",
    "set_blob_key_sequence",
    "remove_blob_key_sequence",
}


def operations(cls):
    """The names of all public methods."""
    return {name for name, _ in inspect.getmembers(cls, callable) if not name.startswith("_")}


def test_everybody_reads_the_same():
    assert operations(StormReads) == READS


def test_a_process_writes_what_is_its_own():
    assert operations(StormClusterState) == READS | OWN | BOTH


def test_a_leader_writes_what_it_decides():
    assert operations(LeaderClusterState) == READS | LEADING | BOTH


@pytest.mark.parametrize("cls", [StormReads, StormClusterState, LeaderClusterState])
def test_no_operation_is_there_twice(cls):
    """No family of operations hides another's."""
    bases = cls.__mro__[1:]
    for name in operations(cls) - {"disconnect"}:
        assert sum(name in vars(base) for base in bases) + (name in vars(cls)) == 1, name


@pytest.mark.parametrize("cls", [StormReads, StormClusterState, LeaderClusterState])
def test_every_operation_says_what_it_does(cls):
    for name in operations(cls):
        assert inspect.getdoc(getattr(cls, name)), name


def test_what_takes_a_callback_takes_it_last_and_can_do_without():
    with_callback = set()
    for name in operations(StormReads):
        parameters = inspect.signature(getattr(StormReads, name)).parameters
        if "callback" in parameters:
            assert list(parameters)[-1] == "callback", name
            assert parameters["callback"].default is None, name
            with_callback.add(name)
    assert with_callback == {
        "assignments",
        "assignment_info",
        "assignment_info_with_version",
        "assignment_version",
        "active_storms",
        "storm_base",
        "supervisors",
        "supervisor_info",
        "all_supervisor_info",
        "nimbuses",
        "credentials",
        "topology_log_config",
        "blobs",
        "blobstore",
        "blobstore_info",
        "topology_backpressure",
    }
