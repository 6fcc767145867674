"""A real ensemble of three under load: servers killed, majorities lost, clients cut off.

In each: no acknowledged write is lost on any member, whatever was watched is told, and ephemeral
nodes go and come as they should.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, Self

import pytest

from faults.state_load import Load
from stormkeeper.errors import StateUnavailableError
from stormkeeper.state.storage import ClusterState, ConnectionState, EventType, NodeStat
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.ensemble import Ensemble
from support.hearing import Hearing
from support.proxy import Proxy
from support.stores import settings_for
from support.transactions import Transaction
from support.waiting import until
from support.zookeeper import expire_session

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

#: Of the sessions: long enough for an election on a busy machine, short enough to wait for.
SESSION_SECS: Final = 4.0
CALL_SECS: Final = 1.5

WATCHED: Final = 120

#: Opens a session with the ensemble; keywords change its settings.
Connect = Callable[..., ZooKeeperState]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("killed")) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(started: Ensemble) -> Ensemble:
    """An ensemble to be killed, whole at the beginning of each test."""
    started.start(started.members)
    return started


@pytest.fixture
def connect(ensemble: Ensemble, zookeeper_root: str) -> Iterator[Connect]:
    sessions = []

    def connect(**changes: Any) -> ZooKeeperState:
        settings = settings_for(
            ensemble.members[0],
            zookeeper_root,
            session_timeout_secs=SESSION_SECS,
            call_timeout_secs=CALL_SECS,
        )
        sessions.append(
            ZooKeeperState(replace(settings, **{"servers": ensemble.addresses, **changes}))
        )
        return sessions[-1]

    yield connect
    for session in sessions:
        session.close()


class Witness:
    """A session that has watches, a registration and a lock, while another changes all it watches.

    It reads again, and leaves watches again, when it may have missed events.

    The changes come one by one from entering the context to leaving it, so before, in and after
    whatever happens meanwhile.
    """

    def __init__(self, state: ClusterState, other: ClusterState) -> None:
        self.state = state
        self._other = other
        self._paths = [f"/watched/{number:04}" for number in range(WATCHED)]
        for path in self._paths:
            other.set_data(path, b"before")
        state.sync_path("/watched")
        self.heard = Hearing(state)
        self.heard.forget()
        self._changed: set[str] = set()
        state.register(self._note)
        state.read_many(self._paths, watch=True)
        state.set_ephemeral_node("/registration", b"mine")
        self.lock = state.create_sequential("/lock/e", b"")
        other.sync_path("/")
        self.registered = self.registration()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._change, name="changes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def registration(self) -> NodeStat | None:
        """What others know of the registration, None while it is gone."""
        return self._other.get_stat("/registration")

    def told_everything(self) -> None:
        """No change was missed, no event told twice, and missed events after connections only."""
        until(lambda: self.state.connection is ConnectionState.CONNECTED)
        until(lambda: self._changed == set(self._paths))
        told = [path for _event, path in self.heard.events()]
        assert len(told) == len(set(told))
        made = self.heard.everything().count(ConnectionState.CONNECTED)
        until(lambda: (self.heard.missed > 0) == (made > 0))
        assert self.heard.missed <= made

    def kept_its_session(self) -> bool:
        """Return whether it did, after asking that what it had in it is as that says."""
        self.told_everything()
        self._other.sync_path("/")
        now = self.registration()
        assert now is not None
        assert now.owner == self.state.session_id
        kept = ConnectionState.LOST not in self.heard.everything()
        assert (now == self.registered) == kept
        assert self._other.node_exists(self.lock) == kept
        return kept

    def _note(self, event: EventType, path: str) -> None:
        if event is not EventType.EVENTS_MISSED:
            self._changed |= {path} & set(self._paths)
            return
        with contextlib.suppress(StateUnavailableError):
            nodes = self.state.read_many(self._paths, watch=True)
            self._changed |= {
                path
                for path, node in zip(self._paths, nodes, strict=True)
                if node is not None and node.data == b"after"
            }

    def _change(self) -> None:
        for path in self._paths:
            self._over.wait(0.05)
            while True:
                with contextlib.suppress(StateUnavailableError):
                    self._other.set_data(path, b"after")
                    break


def check_everywhere(load: Load, ensemble: Ensemble, connect: Connect) -> None:
    for member in ensemble.members:
        load.check(connect(servers=(member.address,), call_timeout_secs=20.0))


def test_a_leader_is_killed_and_comes_back(ensemble: Ensemble, connect: Connect) -> None:
    kill_leader(ensemble, connect, times=1)


@pytest.mark.faults
def test_one_leader_after_the_other_is_killed(ensemble: Ensemble, connect: Connect) -> None:
    kill_leader(ensemble, connect, times=6)


def kill_leader(ensemble: Ensemble, connect: Connect, times: int) -> None:
    witness = Witness(connect(), connect())
    with Load([connect() for _ in range(6)]) as load, witness:
        for _ in range(times):
            leader = ensemble.leader()
            ensemble.kill(leader)
            load.goes_on()
            ensemble.start([leader])
            load.goes_on()
    check_everywhere(load, ensemble, connect)
    witness.kept_its_session()


def test_the_majority_is_lost_and_comes_back(ensemble: Ensemble, connect: Connect) -> None:
    lose_majority(ensemble, connect, outage_secs=3.0)


@pytest.mark.faults
def test_the_majority_is_lost_for_half_a_minute(ensemble: Ensemble, connect: Connect) -> None:
    lose_majority(ensemble, connect, outage_secs=30.0)


def lose_majority(ensemble: Ensemble, connect: Connect, outage_secs: float) -> None:
    witness = Witness(connect(), connect())
    with Load([connect() for _ in range(6)]) as load, witness:
        killed = [ensemble.leader(), ensemble.followers()[0]]
        ensemble.kill(*killed)
        began = time.monotonic()
        with pytest.raises(StateUnavailableError):
            Transaction(witness.state.commit).create("/during", b"").commit()
        time.sleep(max(0.0, began + outage_secs - time.monotonic()))
        load.stands_still()
        ensemble.start(killed)
        load.goes_on()
    check_everywhere(load, ensemble, connect)
    # A session's time begins anew when a leader is there again: it may live through any outage.
    witness.kept_its_session()


def test_a_client_is_cut_off_for_less_than_its_session(
    ensemble: Ensemble, connect: Connect
) -> None:
    with Proxy(ensemble.followers()[0].address) as proxy:
        witness = Witness(connect(servers=(proxy.address,), session_timeout_secs=60.0), connect())
        writer = connect(servers=(proxy.address,), session_timeout_secs=60.0)
        with Load([writer, connect()]) as load, witness:
            for _ in range(3):
                proxy.cut()
                until(lambda: witness.state.connection is ConnectionState.SUSPENDED)
                proxy.mend()
                load.goes_on()
        assert witness.kept_its_session()
        check_everywhere(load, ensemble, connect)


def test_a_client_is_cut_off_for_longer_than_its_session(
    ensemble: Ensemble, connect: Connect
) -> None:
    with Proxy(ensemble.followers()[0].address) as proxy:
        witness = Witness(connect(servers=(proxy.address,), session_timeout_secs=1.0), connect())
        writer = connect(servers=(proxy.address,), session_timeout_secs=1.0)
        with Load([writer, connect()]) as load, witness:
            proxy.cut()
            until(lambda: witness.registration() is None)
            with pytest.raises(StateUnavailableError):
                witness.state.get_data("/registration")
            proxy.mend()
            until(lambda: witness.registration() is not None)
            load.goes_on()
        assert not witness.kept_its_session()
        assert witness.heard.missed >= 1
        check_everywhere(load, ensemble, connect)


def test_sessions_are_ended_by_force(ensemble: Ensemble, connect: Connect) -> None:
    witness = Witness(connect(), connect())
    loaders = [connect() for _ in range(4)]
    with Load(loaders) as load, witness:
        for state in (witness.state, *loaders):
            expire_session(state)
            load.goes_on()
    assert not witness.kept_its_session()
    assert witness.heard.missed >= 1
    check_everywhere(load, ensemble, connect)
