from collections import Counter

import pytest

from support.nimbuses import Nimbus
from support.stores import MemoryStore, ZooKeeperStore


@pytest.fixture
def memory():
    store = MemoryStore()
    yield store
    store.close()


@pytest.fixture
def ensemble(memory):
    """What can go wrong with it."""
    return memory.ensemble


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def store(request):
    """A store of each kind."""
    if request.param == "memory":
        yield request.getfixturevalue("memory")
        return
    server = request.getfixturevalue("zookeeper_server")
    store = ZooKeeperStore(server, request.getfixturevalue("zookeeper_root"))
    yield store
    store.close()


@pytest.fixture
def nimbus():
    """Opens Nimbuses on a store, each with a session and a host of its own."""
    opened = []
    names = Counter()

    def open_one(store, *arguments, session=None, **options):
        names["nimbus"] += 1
        host = f"nimbus{names['nimbus']}.example"
        opened.append(Nimbus(session or store.open(), host, *arguments, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()
