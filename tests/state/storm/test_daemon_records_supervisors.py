import pytest

from stormkeeper import paths
from stormkeeper.errors import SerializationError
from stormkeeper.thrift.records import SupervisorInfo
from support.memory_state import MemoryEnsemble


@pytest.fixture
def ensemble():
    """Callbacks run in its `deliver`."""
    return MemoryEnsemble(inline=True)


def info(hostname="h1.example", **more):
    return SupervisorInfo(1_700_000_000, hostname, **more)


def test_a_supervisor_is_there_with_all_that_it_says(storm):
    said = info(
        assignment_id="sup-1",
        used_ports=[6700],
        meta=[6700, 6701],
        scheduler_meta={"zone": "z-1"},
        uptime_secs=12,
        version="2.8.0",
        resources_map={"supervisor.cpu.capacity": 400.0},
        server_port=6628,
    )
    assert storm.supervisors() == []
    storm.supervisor_heartbeat("sup-1", said)
    assert storm.supervisors() == ["sup-1"]
    assert storm.supervisor_info("sup-1") == said
    assert storm.supervisor_info("sup-2") is None


def test_a_heartbeat_replaces_the_one_before(storm):
    storm.supervisor_heartbeat("sup-1", info(uptime_secs=1))
    storm.supervisor_heartbeat("sup-1", info(uptime_secs=6))
    assert storm.supervisor_info("sup-1").uptime_secs == 6


def test_all_are_read_by_their_ids(storm):
    said = {f"sup-{n}": info(f"h{n}.example") for n in range(3)}
    for supervisor_id, its_info in said.items():
        storm.supervisor_heartbeat(supervisor_id, its_info)
    assert storm.all_supervisor_info() == said


def test_supervisor_goes_and_returns_with_its_session(ensemble, memory, storm):
    storm.supervisor_heartbeat("sup-1", info())
    other = ensemble.session()
    assert other.get_stat(paths.supervisor("sup-1")).owner == memory.session_id
    former = memory.session_id
    ensemble.expire(memory)
    assert memory.session_id != former
    assert other.get_stat(paths.supervisor("sup-1")).owner == memory.session_id
    storm.disconnect()
    assert not other.node_exists(paths.supervisor("sup-1"))
    other.close()


def test_unreadable_record_raises_alone_and_is_skipped_in_lists(storm, memory):
    storm.supervisor_heartbeat("sup-1", info())
    memory.set_data(paths.supervisor("sup-2"), b"no record")
    with pytest.raises(SerializationError, match=r"^/supervisors/sup-2: "):
        storm.supervisor_info("sup-2")
    assert list(storm.all_supervisor_info()) == ["sup-1"]
    assert storm.unreadable == 1


@pytest.mark.parametrize("read", ["supervisors", "all_supervisor_info"])
def test_one_that_comes_is_told_once_to_who_waited(storm, ensemble, read):
    told = []
    for supervisor_id in ("sup-1", "sup-2"):  # there is no directory the first time
        getattr(storm, read)(callback=lambda: told.append("told"))
        storm.supervisor_heartbeat(supervisor_id, info())
        ensemble.deliver()
        assert told == ["told"]
        storm.supervisor_heartbeat(f"{supervisor_id}-b", info())
        ensemble.deliver()
        assert told == ["told"]
        told.clear()


def test_what_a_supervisor_says_anew_is_no_coming_or_going(storm, ensemble):
    storm.supervisor_heartbeat("sup-1", info(uptime_secs=1))
    told = []
    storm.all_supervisor_info(callback=lambda: told.append("told"))
    storm.supervisor_heartbeat("sup-1", info(uptime_secs=6))
    ensemble.deliver()
    assert told == []


def test_who_waits_for_one_is_told_what_it_says_anew(storm, ensemble):
    told = []
    for uptime_secs in (1, 6):  # it comes, and says something new
        storm.supervisor_info("sup-1", lambda: told.append("told"))
        storm.supervisor_heartbeat("sup-1", info(uptime_secs=uptime_secs))
        ensemble.deliver()
        assert told == ["told"]
        told.clear()


def test_another_record_is_no_registration_and_no_heartbeat(storm, memory):
    for write, cls in (
        (lambda: storm.supervisor_heartbeat("a", None), "SupervisorInfo"),
        (lambda: storm.add_nimbus_host(None), "NimbusSummary"),
        (lambda: storm.set_worker_heartbeat("a", "b", 1, None), "ClusterWorkerHeartbeat"),
        (lambda: storm.set_task_heartbeat("a", 1, None), "TaskHeartbeat"),
    ):
        with pytest.raises(TypeError, match=f"expected a record of class {cls}, not NoneType"):
            write()
    assert memory.get_children("/") == []
