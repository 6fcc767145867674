"""The real supervisor, a leader who gives it work, and topologies whose workers are stand-ins."""

import pytest

from support import stand_in_worker
from support.packages import of_folder, packed
from support.supervisors import Leader, SupervisorProcess


@pytest.fixture
def settings(zookeeper_settings):
    return zookeeper_settings()


@pytest.fixture
def leader(tmp_path, settings):
    leader = Leader(tmp_path, settings)
    yield leader
    leader.close()


@pytest.fixture
def supervisor(tmp_path, settings):
    supervisor = SupervisorProcess(tmp_path / "local", settings)
    yield supervisor
    supervisor.close()


@pytest.fixture
def stand_in(tmp_path):
    return stand_in_worker.folder(tmp_path / "stand-in")


@pytest.fixture
def submit(leader, stand_in, tmp_path):
    """Submits a topology whose workers are stand-ins; returns the file by which they are told."""

    def submit(storm_id, **values):
        package, _ = packed(of_folder(tmp_path / storm_id))
        order = tmp_path / f"{storm_id}.order"
        environment = {"PYTHONPATH": str(stand_in), "GREETING": "hello", "PYSPARK_PYTHON": "none"}
        values = {"stand.in.order": str(order), "topology.environment": environment, **values}
        leader.submit(storm_id, package, values)
        return order

    return submit
