"""Which call goes where; what both do is in the conformance suite."""

import inspect

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerUnavailableError, StateClosedError
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.state.fences import FencedWriter
from stormkeeper.state.memory.ensemble import MemoryEnsemble
from stormkeeper.state.memory.state import MemoryState
from stormkeeper.state.pacemaker import PacemakerState
from stormkeeper.state.storage import ClusterState
from stormkeeper.state.zookeeper.state import ZooKeeperState
from support.leaders import fence_of
from support.pacemaker import PacemakerProcess, nobody

PATH = "/workerbeats/wc-1/s-6700"


@pytest.fixture
def ensemble():
    return MemoryEnsemble()


@pytest.fixture
def open_state(ensemble, two_pacemakers):
    states = []

    def open_state(pacemakers=two_pacemakers, **settings):
        pool = PacemakerPool(pacemakers, **settings)
        states.append(PacemakerState(ensemble.session(), pool))
        return states[-1]

    yield open_state
    for state in states:
        state.close()
    with PacemakerPool(two_pacemakers) as cleaning:
        cleaning.delete_path("/workerbeats")


def test_heartbeats_are_in_the_pacemakers_only(ensemble, open_state, two_pacemakers):
    state, other = open_state(), ensemble.session()
    state.set_worker_hb(PATH, b"beat")
    assert state.get_worker_hb(PATH) == b"beat"
    assert not other.node_exists("/workerbeats")
    with PacemakerPool(two_pacemakers) as pool:
        assert pool.get_pulse(PATH) == b"beat"
        state.delete_worker_hb("/workerbeats/wc-1")
        assert pool.get_pulse(PATH) is None
    other.close()


def test_all_else_is_in_the_other_store_only(ensemble, open_state, two_pacemakers):
    state, other = open_state(), ensemble.session()
    state.set_data("/storms/wc-1", b"base")
    state.set_data(PATH, b"no heartbeat")
    assert other.get_data("/storms/wc-1") == b"base"
    assert state.get_worker_hb(PATH) is None
    with PacemakerPool(two_pacemakers) as pool:
        assert not pool.exists("/storms/wc-1")
    other.close()


def test_a_topology_s_heartbeats_are_one_request(ensemble):
    asked = []

    class Counted:
        def __init__(self, pool):
            self._pool = pool

        def __getattr__(self, name):
            asked.append(name)
            return getattr(self._pool, name)

    with PacemakerProcess() as process:
        pool = PacemakerPool([Address(process.host, process.port)])
        state = PacemakerState(ensemble.session(), Counted(pool))
        for port in range(6700, 6724):
            state.set_worker_hb(f"/workerbeats/wc-1/s-{port}", b"%d" % port)
        state.set_worker_hb("/workerbeats/wc-10/s-6700", b"another topology's")
        asked.clear()
        expected = {f"s-{port}": b"%d" % port for port in range(6700, 6724)}
        found = state.get_worker_hbs("/workerbeats/wc-1")
        assert found == expected
        assert list(found) == sorted(found)
        assert asked == ["readings"]
        assert state.get_worker_hbs("/workerbeats/none") == {}
        state.close()


def test_only_what_is_directly_below_is_a_topology_s_heartbeat(open_state):
    state = open_state()
    for path in ("/workerbeats/wc-1", PATH, f"{PATH}/deeper", "/beat"):
        state.set_worker_hb(path, path.encode())
    assert state.get_worker_hbs("/workerbeats/wc-1") == {"s-6700": PATH.encode()}
    assert state.get_worker_hbs("/workerbeats") == {"wc-1": b"/workerbeats/wc-1"}
    assert state.get_worker_hbs("/") == {"beat": b"/beat"}
    for top in ("/workerbeats", "/beat"):
        state.delete_worker_hb(top)


def test_transactions_and_fences_are_of_the_other_store(ensemble, open_state):
    state, other = open_state(), ensemble.session()
    fence = fence_of(state)
    assert other.node_exists(fence.path)
    leader = FencedWriter(state, fence)
    leader.set_data("/storms/wc-1", b"base")
    state.transaction().create("/storms/wc-2", b"").delete("/storms/wc-1").commit()
    assert other.get_children("/storms") == ["wc-2"]
    assert not state.heartbeats_are_nodes
    other.close()


def test_without_a_pacemaker_all_else_goes_on(open_state):
    gone = nobody()
    state = open_state([gone], try_timeout=0.1, retries=1, deadline=1.0, write_deadline=1.0)
    with pytest.raises(PacemakerUnavailableError):
        state.set_worker_hb(PATH, b"beat")
    with pytest.raises(PacemakerUnavailableError):
        state.get_worker_hb_children("/workerbeats")
    state.set_data("/a", b"x")
    assert state.get_data("/a") == b"x"


def test_both_are_closed_with_it(ensemble, open_state):
    state = open_state()
    state.set_worker_hb(PATH, b"beat")
    state.close()
    assert not ensemble._sessions
    with pytest.raises(StateClosedError, match="closed"):
        state.set_worker_hb(PATH, b"beat")


@pytest.mark.parametrize("kind", [MemoryState, ZooKeeperState, PacemakerState])
def test_every_store_has_the_same_calls(kind):
    for name, method in inspect.getmembers(ClusterState, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(kind, name)) == inspect.signature(method), name
    for name, _ in inspect.getmembers(ClusterState, lambda member: isinstance(member, property)):
        assert isinstance(getattr(kind, name), property), name
