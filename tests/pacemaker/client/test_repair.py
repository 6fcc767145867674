import threading

import pytest

from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.event_loop import ClientEventLoop
from stormkeeper.pacemaker.client.pool_writes import DeleteRepair
from stormkeeper.pacemaker.wire import MessageType
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, refusing
from support.waiting import until

DELETE = MessageType.DELETE_PATH


@pytest.fixture
def repair_of(stack):
    """Make a repair, and the clients, of peers that play these scripts."""

    def make(*scripts):
        clients = {}
        for script in scripts:
            peer = stack.enter_context(ScriptedPacemaker(script))
            client = stack.enter_context(PacemakerClient(peer.address, try_timeout=5.0))
            clients[client.address] = client
        loop = ClientEventLoop("the repair")
        stack.callback(loop.close)
        return DeleteRepair(clients, loop, first_secs=0.2), list(clients.values())

    return make


def is_running(repair):
    return repair._timer is not None


def test_what_was_missed_goes_ahead_of_what_is_asked_next(repair_of):
    java = JavaPacemaker()
    java.store = {"/w/a": b"", "/w/b": b"", "/v": b"", "/kept": b""}
    repair, (client,) = repair_of(java)
    repair.remember(client.address, "/w")
    repair.remember(client.address, "/v")
    repair.send_missed_deletes(client)
    assert client.children("/") == ["kept"]
    repair.send_missed_deletes(client)
    client.exists("/v")
    assert java.asked.count(DELETE) == 2


def test_timer_repeats_deletes_and_ends_when_done(repair_of):
    java, other = JavaPacemaker(), JavaPacemaker()
    java.store = other.store = {"/w": b""}
    repair, (client, _) = repair_of(java, other)
    assert not is_running(repair)
    repair.remember(client.address, "/w")
    until(lambda: is_running(repair))
    until(lambda: not java.store)
    assert other.asked == [], "it missed nothing"
    until(lambda: not is_running(repair))
    java.store = {"/w": b""}
    repair.remember(client.address, "/w")
    until(lambda: not java.store)


def test_it_goes_on_until_the_server_answers(repair_of):
    tries = []
    java = JavaPacemaker()
    java.store = {"/w": b""}

    def later(connection):
        tries.append(connection)
        if len(tries) < 3:
            connection.request()
            connection.reset()
        java(connection)

    repair, (client,) = repair_of(later)
    repair.remember(client.address, "/w")
    until(lambda: not java.store)
    assert len(tries) == 3


def test_a_refusal_ends_it(repair_of, caplog):
    repair, (client,) = repair_of(refusing)
    repair.remember(client.address, "/w")
    repair.send_missed_deletes(client)
    until(lambda: "the missed delete of /w failed" in caplog.text)
    until(lambda: not is_running(repair))


def test_a_pulse_on_its_way_ends_the_delete(repair_of):
    java = JavaPacemaker()
    repair, (client,) = repair_of(java)
    repair.remember(client.address, "/w")
    repair.pulse_sent(client.address, "/w/new")
    client.send_pulse("/w/new", b"")
    repair.send_missed_deletes(client)
    assert client.exists("/w/new")


def test_nothing_is_repeated_after_the_end(repair_of):
    java = JavaPacemaker()
    repair, (client,) = repair_of(java)
    repair.remember(client.address, "/w")
    repair._loop.close()
    repair.remember(client.address, "/v")
    assert "the repair" not in [thread.name for thread in threading.enumerate()]
    assert java.asked == []


def test_a_closed_client_is_no_defect(repair_of):
    repair, (client,) = repair_of(JavaPacemaker())
    repair.remember(client.address, "/w")
    client.close()
    repair.send_missed_deletes(client)


def test_a_defect_with_one_server_ends_nothing(repair_of, monkeypatch, caplog):
    def fail(message):
        failed.append(message.path)
        if len(failed) <= 3:
            raise ValueError("on purpose")
        return submit(message)

    java, other, failed = JavaPacemaker(), JavaPacemaker(), []
    java.store, other.store = {"/v": b"", "/w": b""}, {"/w": b""}
    repair, (client, sound) = repair_of(java, other)
    repair._first_secs = 0.05
    submit = client.submit
    monkeypatch.setattr(client, "submit", fail)
    for path in ("/v", "/w"):
        repair.remember(client.address, path)
    repair.remember(sound.address, "/w")
    until(lambda: not java.store and not other.store)
    # Both, each time: none is left behind as if somebody were about it.
    assert failed == ["/v", "/v", "/v", "/v", "/w"]
    assert repair.defects == 3
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["on purpose"] * 2
    until(lambda: not is_running(repair))


def test_a_shortage_of_threads_is_over_with_the_next_delete(repair_of, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    java = JavaPacemaker()
    java.store = {"/v": b"", "/w": b""}
    repair, (client,) = repair_of(java)
    # The client has its own by now.
    client.exists("/v")
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        repair.remember(client.address, "/v")
    repair.remember(client.address, "/w")
    until(lambda: not java.store)
