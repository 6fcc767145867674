"""A real ZooKeeper server for tests: one per test run, a root of its own for each test.

``tests/conftest.py`` gives the fixtures to every room.
"""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.state.storage import ConnectionState, EventType
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.waiting import DEADLINE_SECS, until

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevZooKeeper]:
    """A server that all tests share; whoever stops or fills it should start one of its own."""
    with DevZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_root() -> str:
    """A value for ``storm.zookeeper.root`` that no other test uses."""
    return f"/test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def zookeeper_settings(
    zookeeper_server: DevZooKeeper, zookeeper_root: str
) -> Callable[..., dict[str, object]]:
    """Makes configuration values for a client of the shared server under this test's root."""

    def settings(**changes: object) -> dict[str, object]:
        return {
            "storm.zookeeper.servers": [zookeeper_server.host],
            "storm.zookeeper.port": zookeeper_server.port,
            "storm.zookeeper.root": zookeeper_root,
            **changes,
        }

    return settings


def expire_session(state: ZooKeeperState, deadline_secs: float = DEADLINE_SECS) -> None:
    """End the session of `state` at the server, and wait until a new one has all that it had.

    Another client takes the session over and closes it.
    """
    connection = state._connection
    former = connection.session_id
    told = threading.Event()

    def note(event: EventType, _path: str) -> None:
        if event is EventType.EVENTS_MISSED and connection.session_id != former:
            told.set()

    registration = state.register(note)
    identity = connection._client.client_id
    deadline = time.monotonic() + deadline_secs
    while connection.session_id == former:
        assert time.monotonic() < deadline, f"the session lives on after {deadline_secs} s"
        # Its owner may have it back before the thief could close it, or begin to.
        with contextlib.suppress(AssertionError, KazooTimeoutError):
            _close_session(connection.ensemble, identity, deadline_secs)
            until(lambda: connection.session_id != former, 3.0)
    until(lambda: state.connection is ConnectionState.CONNECTED, deadline_secs)
    # The callback was registered last, so all others have been told by then.
    assert told.wait(deadline_secs), "nobody was told that events may be missed"
    state.unregister(registration)
    until(lambda: state._registrations.made_in == state.session_id, deadline_secs)


def expire_behind_cut(state: ZooKeeperState, server: DevZooKeeper) -> None:
    """End the session of `state`, which cannot reach `server` now, as if its time were over."""
    connection, client = state._connection, state._connection._client
    until(lambda: connection.state is ConnectionState.SUSPENDED)
    identity = (client._session_id, client._session_passwd)
    _close_session(str(server.address), identity, DEADLINE_SECS)


def _close_session(hosts: str, identity: tuple[int, bytes], deadline_secs: float) -> None:
    """Take a session over, and close it, as only its owner could."""
    thief = KazooClient(hosts=hosts, client_id=identity)
    thief.start(timeout=deadline_secs)
    thief.stop()
    thief.close()
