import pytest

from support.stores import MemoryStore, ZooKeeperStore
from support.zookeeper import zookeeper_root, zookeeper_server, zookeeper_settings

__all__ = ["zookeeper_root", "zookeeper_server", "zookeeper_settings"]


@pytest.fixture(
    params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)],
)
def store(request):
    """A store of each kind."""
    if request.param == "memory":
        store = MemoryStore()
    else:
        server = request.getfixturevalue("zookeeper_server")
        store = ZooKeeperStore(server, request.getfixturevalue("zookeeper_root"))
    yield store
    store.close()


@pytest.fixture
def state(store):
    """A session with it."""
    return store.open()
