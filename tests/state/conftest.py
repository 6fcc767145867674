import itertools
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from stormkeeper.conf import Address
from stormkeeper.state.fenced_writer import FencedWriter
from stormkeeper.state.zookeeper.ensemble_connection import EnsembleConnection
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.leaders import fence_of
from support.memory_state import MemoryEnsemble
from support.pacemaker import PacemakerProcess
from support.proxy import Proxy
from support.stores import (
    MemoryStore,
    ZooKeeperStore,
    limit_calls,
    settings_for,
)
from support.zookeeper_requests import TIMES

_turns = itertools.count()


@pytest.fixture(scope="session")
def two_pacemakers():
    """The addresses of two Pacemakers that share nothing."""
    with PacemakerProcess() as first, PacemakerProcess() as second:
        yield [Address(process.host, process.port) for process in (first, second)]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
        pytest.param("ensemble", marks=(pytest.mark.zookeeper, pytest.mark.slow)),
    ],
)
def store(request):
    """A store of each kind."""
    if request.param == "memory":
        store = MemoryStore()
    elif request.param == "ensemble":
        # A member may lag behind the others, so all sessions of a test are with the same one.
        members = request.getfixturevalue("zookeeper_ensemble").members
        member = members[next(_turns) % len(members)]
        store = ZooKeeperStore(member, request.getfixturevalue("zookeeper_root"))
    else:
        server = request.getfixturevalue("zookeeper_server")
        store = ZooKeeperStore(server, request.getfixturevalue("zookeeper_root"))
    yield store
    store.close()


@pytest.fixture
def state(store):
    """A session with it."""
    return store.open()


@pytest.fixture
def connection_to():
    """Opens connections to a server at an address."""
    opened = []

    def connect(address, **changes):
        connection = EnsembleConnection(
            EnsembleSettings(servers=(address,), **{**TIMES, **changes}), lambda _state: None
        )
        opened.append(connection)
        connection.start()
        return connection

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def committed():
    """The operations of every write that was applied in memory, in order."""
    return []


@pytest.fixture
def ensemble(committed):
    ensemble = MemoryEnsemble(on_commit=lambda _change, _session, done: committed.append(done))
    yield ensemble
    for session in list(ensemble._sessions):
        session.close()


@pytest.fixture
def session(ensemble):
    return ensemble.session()


@pytest.fixture
def leader(session, committed):
    leader = FencedWriter(session, fence_of(session))
    committed.clear()
    return leader


@pytest.fixture
def connect(zookeeper_server, zookeeper_root):
    """Opens sessions with the shared server, or with another at `address`.

    A `call_timeout_secs` holds once there is a connection, for which any test has time.
    """
    sessions = []

    def connect(address=None, call_timeout_secs=None, **times):
        settings = settings_for(zookeeper_server, zookeeper_root, **times)
        if address is not None:
            settings = replace(settings, servers=(address,))
        sessions.append(ZooKeeperState(settings))
        if call_timeout_secs is not None:
            limit_calls(sessions[-1], call_timeout_secs)
        return sessions[-1]

    yield connect
    for session in sessions:
        session.close()


@pytest.fixture
def proxy(zookeeper_server):
    with Proxy(zookeeper_server.address) as proxy:
        yield proxy


@pytest.fixture
def raw(zookeeper_server):
    """kazoo itself, to look at what we wrote."""
    client = KazooClient(str(zookeeper_server.address))
    client.start()
    yield client
    client.stop()
    client.close()
