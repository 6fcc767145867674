from stormkeeper import paths
from stormkeeper.state.storage import DIRECTORY
from stormkeeper.thrift.records import TaskHeartbeat, TaskInfo
from support.heartbeats import spout

STORM = "wc-1-1700000000"


def test_tasks_are_read_back_in_order(storm, leader):
    assert storm.task_storms() == []
    assert storm.task_ids(STORM) == []
    for task in (10, 9, 1):
        leader.set_task(STORM, task, TaskInfo("split"))
    leader.set_task(STORM, 9, TaskInfo("count"))
    assert storm.task_storms() == [STORM]
    assert storm.task_ids(STORM) == [1, 9, 10]
    assert storm.task_info(STORM, 9).component_id == "count"
    assert storm.task_info(STORM, 2) is None


def test_a_task_says_which_leader_wrote_it(storm, leader, memory):
    given = TaskInfo("split")
    leader.set_task(STORM, 1, given)
    assert given.leader_epoch is None
    written = memory.get_stat(paths.task(STORM, 1))
    assert 0 < storm.task_info(STORM, 1).leader_epoch < written.created


def test_there_is_a_place_for_what_workers_say_of_a_task(leader, memory):
    leader.set_task(STORM, 1, TaskInfo("split"))
    assert memory.get_data(paths.taskbeats(STORM)) == DIRECTORY
    assert memory.get_data(paths.taskerrors(STORM)) == DIRECTORY


def test_a_tasks_heartbeat_is_stored_read_and_removed(storm):
    said = TaskHeartbeat(1_700_000_000, 12, spout(5))
    assert storm.task_heartbeat(STORM, 3) is None
    assert storm.heartbeat_tasks(STORM) == []
    storm.set_task_heartbeat(STORM, 3, said)
    storm.set_task_heartbeat(STORM, 20, TaskHeartbeat(1_700_000_000, 1))
    assert storm.task_heartbeat(STORM, 3) == said
    assert storm.heartbeat_tasks(STORM) == [3, 20]
    storm.remove_task_heartbeat(STORM, 3)
    storm.remove_task_heartbeat(STORM, 3)
    assert storm.heartbeat_tasks(STORM) == [20]


def test_names_that_are_no_tasks_are_left_out(storm, memory):
    for name in ("7", "seven", "-7", "7 "):
        memory.set_data(f"{paths.tasks(STORM)}/{name}", b"")
    assert storm.task_ids(STORM) == [7]
