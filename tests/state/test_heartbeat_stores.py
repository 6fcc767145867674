"""What heartbeats do wherever they are: as nodes of each store, and in Pacemakers."""

import inspect

import pytest

from stormkeeper.errors import InvalidPathError, PacemakerClosedError, StateClosedError
from stormkeeper.heartbeats.stores import HeartbeatStore, PacemakerHeartbeats
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.state.backends import NodeHeartbeats
from stormkeeper.state.storage import ClusterState
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.memory_state import MemoryState
from support.stores import MemoryStore, ZooKeeperStore

TOP = "/workerbeats/wc-1-1700000000"
PATH = f"{TOP}/sup-aaaa-6700"


@pytest.fixture(
    params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper), "pacemakers"]
)
def open_heartbeats(request):
    """Opens heartbeats that share what they hold."""
    if request.param != "pacemakers":
        store = MemoryStore()
        if request.param == "zookeeper":
            server = request.getfixturevalue("zookeeper_server")
            store = ZooKeeperStore(server, request.getfixturevalue("zookeeper_root"))
        yield lambda: NodeHeartbeats(store.open())
        store.close()
        return
    pacemakers = request.getfixturevalue("two_pacemakers")
    opened = []

    def open_pool():
        opened.append(PacemakerHeartbeats(PacemakerPool(pacemakers)))
        return opened[-1]

    yield open_pool
    for one in opened:
        one.close()
    with PacemakerPool(pacemakers) as pool:
        pool.delete_path("/workerbeats")


@pytest.fixture
def heartbeats(open_heartbeats):
    return open_heartbeats()


def values(found):
    return {path: one.value for path, one in found.items()}


def test_what_was_sent_last_is_read_by_others_too(open_heartbeats, heartbeats):
    heartbeats.beat(PATH, b"beat 1")
    heartbeats.beat(PATH, b"beat 2")
    found = open_heartbeats().read(PATH)
    assert (found.value, found.size) == (b"beat 2", 6)
    assert found.age_secs >= 0
    assert found.revision is not None


def test_they_outlive_their_session(open_heartbeats, heartbeats):
    heartbeats.beat(PATH, b"beat")
    heartbeats.close()
    assert open_heartbeats().read(PATH).value == b"beat"


def test_all_of_a_topology_are_read_together(open_heartbeats, heartbeats):
    assert heartbeats.read_all(TOP).by_path == {}
    expected = {f"{TOP}/sup-aaaa-{port}": str(port).encode() for port in (6700, 6701, 6702)}
    for path, value in reversed(expected.items()):
        heartbeats.beat(path, value)
    heartbeats.beat(f"{TOP}0/sup-bbbb-6700", b"another's")
    other = open_heartbeats()
    assert values(other.read_all(TOP, values=True).by_path) == expected
    assert values(other.read_all(TOP).by_path) == dict.fromkeys(expected)
    assert len(other.read_all().by_path) == 4


def test_names(heartbeats):
    assert heartbeats.names() == []
    for port in (6701, 6700):
        heartbeats.beat(f"/workerbeats/wc-1/s-{port}", b"")
    heartbeats.beat("/workerbeats/wc-2/s-6700", b"")
    assert heartbeats.names() == ["wc-1", "wc-2"]
    assert heartbeats.names("/workerbeats/wc-1") == ["s-6700", "s-6701"]
    assert heartbeats.names("/workerbeats/absent") == []


def test_a_removal_takes_all_below(heartbeats):
    heartbeats.beat("/workerbeats/wc-1/s-6700", b"")
    heartbeats.beat("/workerbeats/wc-10/s-6700", b"")
    heartbeats.remove("/workerbeats/wc-1")
    heartbeats.remove("/workerbeats/wc-1")
    assert heartbeats.read("/workerbeats/wc-1/s-6700") is None
    assert heartbeats.names() == ["wc-10"]


def test_who_answered_is_told_with_what_was_read(heartbeats):
    heartbeats.beat(PATH, b"beat")
    found = heartbeats.read_all()
    assert all(one.is_reachable for one in found.coverage.values())
    assert found.by_path[PATH].server in found.coverage
    assert all(one.horizon_secs >= 0 for one in found.coverage.values())


def test_what_is_no_path_and_what_is_closed(heartbeats):
    calls = (
        *(heartbeats.read, heartbeats.read_all, heartbeats.names, heartbeats.remove),
        lambda path: heartbeats.beat(path, b""),
    )
    for call in calls:
        for path in ("", "a", "/a/", "/a//b", "/a/../b"):
            with pytest.raises(InvalidPathError):
                call(path)
    heartbeats.close()
    heartbeats.close()
    for call in calls:
        with pytest.raises((StateClosedError, PacemakerClosedError)):
            call(PATH)


@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        (ClusterState, MemoryState),
        (ClusterState, ZooKeeperState),
        (HeartbeatStore, NodeHeartbeats),
        (HeartbeatStore, PacemakerHeartbeats),
    ],
)
def test_every_store_has_the_same_calls(protocol, kind):
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(kind, name)) == inspect.signature(method), name
    for name, _ in inspect.getmembers(protocol, lambda member: isinstance(member, property)):
        assert isinstance(getattr(kind, name), property), name
