import pytest

from stormkeeper import paths
from stormkeeper.state.storage import DIRECTORY
from support.memory_state import MemoryEnsemble

STORM = "wc-1-1700000000"
NOW_MS = 1_700_000_000_000  # the fixture's clock stands still there


@pytest.fixture
def ensemble():
    """Callbacks run in its `deliver`."""
    return MemoryEnsemble(inline=True)


def test_back_pressure_lasts_while_a_worker_reports_it(storm):
    assert not storm.topology_backpressure(STORM, 30_000)
    storm.worker_backpressure(STORM, "sup", 6700, NOW_MS - 30_000)
    assert not storm.topology_backpressure(STORM, 30_000)
    storm.worker_backpressure(STORM, "sup", 6701, NOW_MS - 29_999)
    assert storm.topology_backpressure(STORM, 30_000)
    storm.remove_worker_backpressure(STORM, "sup", 6701)
    storm.remove_worker_backpressure(STORM, "sup", 6701)
    assert not storm.topology_backpressure(STORM, 30_000)


def test_a_time_is_storms_eight_bytes_and_the_newest_counts(storm, memory):
    path = paths.backpressure(STORM, "sup", 6700)
    storm.worker_backpressure(STORM, "sup", 6700, 1)
    assert memory.get_data(path) == bytes(7) + b"\x01"
    storm.worker_backpressure(STORM, "sup", 6700, NOW_MS)
    assert memory.get_data(path).hex() == "0000018bcfe56800"
    assert storm.topology_backpressure(STORM, 1)


def test_what_a_worker_said_goes_with_its_session(storm, open_storm):
    worker = open_storm()
    worker.worker_backpressure(STORM, "sup", 6700, NOW_MS)
    assert storm.topology_backpressure(STORM, 1000)
    worker.disconnect()
    assert not storm.topology_backpressure(STORM, 1000)


def test_values_that_are_no_times_count_as_nothing(storm, memory):
    memory.set_data(paths.backpressure(STORM, "sup", 6700), b"\xff")
    assert not storm.topology_backpressure(STORM, 10**12)


def test_a_worker_that_comes_under_back_pressure_is_told(storm, ensemble):
    told = []
    for port in (6700, 6701):  # the directory is absent the first time
        storm.topology_backpressure(STORM, 1000, callback=lambda: told.append(1))
        storm.worker_backpressure(STORM, "sup", port, NOW_MS)
        ensemble.deliver()
        assert told == [1]
        told.clear()


def test_leader_makes_and_deletes_the_back_pressure_directory(storm, leader, memory):
    top = paths.backpressure_of_topology(STORM)
    leader.setup_backpressure(STORM)
    assert memory.get_data(top) == DIRECTORY
    assert storm.backpressure_topologies() == [STORM]
    storm.worker_backpressure(STORM, "sup", 6700, NOW_MS)
    leader.remove_backpressure(STORM)
    leader.remove_backpressure(STORM)
    assert not memory.node_exists(top)
    assert storm.backpressure_topologies() == []
