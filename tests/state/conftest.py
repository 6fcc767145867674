import pytest

from stormkeeper.conf import Address
from support.pacemaker import PacemakerProcess
from support.stores import MemoryStore, PacemakerStore, ZooKeeperStore


@pytest.fixture(scope="session")
def two_pacemakers():
    """The addresses of two Pacemakers that share nothing."""
    with PacemakerProcess() as first, PacemakerProcess() as second:
        yield [Address(process.host, process.port) for process in (first, second)]


@pytest.fixture(
    params=[
        "memory",
        "pacemaker over memory",
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
        pytest.param("pacemaker over zookeeper", marks=pytest.mark.zookeeper),
    ],
)
def store(request):
    """A store of each kind."""
    if "memory" in request.param:
        store = MemoryStore()
    else:
        server = request.getfixturevalue("zookeeper_server")
        store = ZooKeeperStore(server, request.getfixturevalue("zookeeper_root"))
    if "pacemaker" in request.param:
        store = PacemakerStore(store, request.getfixturevalue("two_pacemakers"))
    yield store
    store.close()


@pytest.fixture
def state(store):
    """A session with it."""
    return store.open()
