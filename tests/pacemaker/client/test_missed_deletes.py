"""Deletes that servers missed: which are owed, and how clients over sockets get them."""

import threading
from concurrent.futures import Future

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import NotAuthorizedError, PacemakerUnavailableError
from stormkeeper.pacemaker.client import PacemakerClient, pool_writes
from stormkeeper.pacemaker.client.event_loop import ClientEventLoop
from stormkeeper.pacemaker.client.pool_writes import MissedDeletes
from stormkeeper.pacemaker.wire.messages import Message, MessageType
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, refusing
from support.waiting import until

DELETE = MessageType.DELETE_PATH
LATER = PacemakerUnavailableError("not now")


class Client:
    """Takes deletes, which the test settles."""

    def __init__(self, name):
        self.address = Address(name, 1)
        self.lacks_threads = False
        self.deletes = {}

    def submit(self, message):
        if self.lacks_threads:
            raise LATER
        self.deletes[message.path] = future = Future()
        return future


class NoLoop:
    """Runs no timer."""

    def start(self):
        pass

    def call(self, step):
        pass


@pytest.fixture
def owed():
    """Two clients, and the deletes that their servers missed."""
    clients = Client("a"), Client("b")
    return *clients, MissedDeletes({client.address: client for client in clients}, NoLoop())


def sent(missed, client):
    """Send what a server is owed; return the paths in their order."""
    client.deletes = {}
    missed.send(client)
    return list(client.deletes)


def test_each_server_is_owed_what_it_missed_in_order(owed):
    a, b, missed = owed
    missed.remember(a.address, "/x")
    missed.remember(a.address, "/y")
    missed.remember(b.address, "/z")
    assert sent(missed, a) == ["/x", "/y"]
    assert sent(missed, a) == [], "somebody is at it"
    assert sent(missed, b) == ["/z"]


@pytest.mark.parametrize("is_refused", [False, True])
def test_what_failed_is_owed_again_and_what_is_done_is_forgotten(owed, is_refused):
    a, _, missed = owed
    missed.remember(a.address, "/x")
    missed.remember(a.address, "/y")
    missed.send(a)
    a.deletes["/x"].set_exception(LATER)
    if is_refused:
        a.deletes["/y"].set_exception(NotAuthorizedError("no"))
    else:
        a.deletes["/y"].set_result(Message(MessageType.DELETE_PATH_RESPONSE))
    assert sent(missed, a) == ["/x"]
    a.deletes["/x"].set_result(Message(MessageType.DELETE_PATH_RESPONSE))
    assert not missed._missed


def test_a_shortage_of_threads_leaves_deletes_owed(owed):
    a, _, missed = owed
    missed.remember(a.address, "/x")
    missed.remember(a.address, "/y")
    a.lacks_threads = True
    assert sent(missed, a) == []
    a.lacks_threads = False
    assert sent(missed, a) == ["/x", "/y"]


def test_a_delete_that_covers_an_older_one_replaces_it(owed):
    a, _, missed = owed
    for path in ("/a/b", "/c", "/a"):
        missed.remember(a.address, path)
    assert sent(missed, a) == ["/c", "/a"]


def test_delete_missed_again_during_repeat_is_kept(owed):
    a, _, missed = owed
    missed.remember(a.address, "/a")
    missed.send(a)
    missed.remember(a.address, "/a")
    a.deletes["/a"].set_result(Message(MessageType.DELETE_PATH_RESPONSE))
    assert sent(missed, a) == ["/a"]


def test_pulse_cancels_deletes_on_its_server_only(owed):
    a, b, missed = owed
    for client in (a, b):
        missed.remember(client.address, "/a")
        missed.remember(client.address, "/b")
        missed.remember(client.address, "/b/c")
    missed.cancel(a.address, "/a/x")
    missed.cancel(a.address, "/b")
    assert sent(missed, a) == ["/b/c"]
    assert sent(missed, b) == ["/a", "/b", "/b/c"]
    missed.cancel(a.address, "/b/c")
    assert list(missed._missed) == [b.address]


def test_a_server_that_missed_nothing_is_owed_nothing(owed):
    a, _, missed = owed
    missed.cancel(a.address, "/a")
    assert sent(missed, a) == []
    assert not missed._missed


# --- over sockets ---------------------------------------------------------------------------------


@pytest.fixture
def missed_by(stack, monkeypatch):
    """Make the missed deletes, and the clients, of peers that play these scripts."""
    monkeypatch.setattr(pool_writes, "REPEAT_SECS", 0.2)

    def make(*scripts):
        clients = {}
        for script in scripts:
            peer = stack.enter_context(ScriptedPacemaker(script))
            client = stack.enter_context(PacemakerClient(peer.address, try_timeout=5.0))
            clients[client.address] = client
        loop = ClientEventLoop("the repair")
        stack.callback(loop.close)
        return MissedDeletes(clients, loop), list(clients.values())

    return make


def is_running(missed):
    return missed._timer is not None


def test_what_was_missed_goes_ahead_of_what_is_asked_next(missed_by):
    java = JavaPacemaker()
    java.store = {"/w/a": b"", "/w/b": b"", "/v": b"", "/kept": b""}
    missed, (client,) = missed_by(java)
    missed.remember(client.address, "/w")
    missed.remember(client.address, "/v")
    missed.send(client)
    assert client.children("/") == ["kept"]
    missed.send(client)
    client.exists("/v")
    assert java.asked.count(DELETE) == 2


def test_timer_repeats_deletes_and_ends_when_done(missed_by):
    java, other = JavaPacemaker(), JavaPacemaker()
    java.store = other.store = {"/w": b""}
    missed, (client, _) = missed_by(java, other)
    assert not is_running(missed)
    missed.remember(client.address, "/w")
    until(lambda: is_running(missed))
    until(lambda: not java.store)
    assert other.asked == [], "it missed nothing"
    until(lambda: not is_running(missed))
    java.store = {"/w": b""}
    missed.remember(client.address, "/w")
    until(lambda: not java.store)


def test_it_goes_on_until_the_server_answers(missed_by):
    tries = []
    java = JavaPacemaker()
    java.store = {"/w": b""}

    def later(connection):
        tries.append(connection)
        if len(tries) < 3:
            connection.request()
            connection.reset()
        java(connection)

    missed, (client,) = missed_by(later)
    missed.remember(client.address, "/w")
    until(lambda: not java.store)
    assert len(tries) == 3


def test_a_refusal_ends_it(missed_by, caplog):
    missed, (client,) = missed_by(refusing)
    missed.remember(client.address, "/w")
    missed.send(client)
    until(lambda: "the missed delete of /w failed" in caplog.text)
    until(lambda: not is_running(missed))


def test_a_pulse_on_its_way_ends_the_delete(missed_by):
    java = JavaPacemaker()
    missed, (client,) = missed_by(java)
    missed.remember(client.address, "/w")
    missed.cancel(client.address, "/w/new")
    client.send_pulse("/w/new", b"")
    missed.send(client)
    assert client.exists("/w/new")


def test_nothing_is_repeated_after_the_end(missed_by):
    java = JavaPacemaker()
    missed, (client,) = missed_by(java)
    missed.remember(client.address, "/w")
    missed._loop.close()
    missed.remember(client.address, "/v")
    assert "the repair" not in [thread.name for thread in threading.enumerate()]
    assert java.asked == []


def test_a_closed_client_is_no_defect(missed_by):
    missed, (client,) = missed_by(JavaPacemaker())
    missed.remember(client.address, "/w")
    client.close()
    missed.send(client)


def test_a_shortage_of_threads_is_over_with_the_next_delete(missed_by, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    java = JavaPacemaker()
    java.store = {"/v": b"", "/w": b""}
    missed, (client,) = missed_by(java)
    # The client has its own by now.
    client.exists("/v")
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        missed.remember(client.address, "/v")
    missed.remember(client.address, "/w")
    until(lambda: not java.store)
