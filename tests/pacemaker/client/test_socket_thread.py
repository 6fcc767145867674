"""What becomes of a client whose thread comes upon a defect, or is not to be had."""

import errno
import re
import selectors
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from stormkeeper.errors import PacemakerUnavailableError
from stormkeeper.pacemaker.client import PacemakerClient, socket_thread
from stormkeeper.pacemaker.client.socket_thread import SocketThread
from support.mechanisms import Digest, identity
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker
from support.waiting import until


@pytest.fixture
def client():
    java = JavaPacemaker()
    java.store = {"/w": b"pulse"}
    with ScriptedPacemaker(java) as peer, PacemakerClient(peer.address) as client:
        yield client


@pytest.mark.parametrize("step", ["_read", "_watch", "_dial", "_turn"])
@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_a_defect_costs_the_connection_and_not_the_client(client, monkeypatch, caplog, step, kind):
    def fail(self, *arguments, **options):
        if len(failed) < 3:
            failed.append(None)
            raise kind("on purpose")
        return do(self, *arguments, **options)

    failed, do = [], getattr(SocketThread, step)
    assert client.get_pulse("/w") == b"pulse"
    thread = client._thread._thread
    if step == "_dial":
        client._thread.close_idle()
    monkeypatch.setattr(SocketThread, step, fail)
    # The answer to the first may come before the thread comes to it.
    for _ in range(2):
        assert client.get_pulse("/w") == b"pulse"
    until(lambda: client.defects == 3)
    assert client.get_pulse("/w") == b"pulse"
    assert client._thread._thread is thread
    assert thread.is_alive()
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["on purpose"] * 2


def test_a_defect_in_the_authentication_is_no_refusal(monkeypatch):
    def fail(self, current):
        handshake = self._protocol._authentication
        if handshake is not None and handshake.has_begun and not failed:
            failed.append(None)
            raise ValueError("on purpose")
        read(self, current)

    failed, read = [], SocketThread._read
    monkeypatch.setattr(SocketThread, "_read", fail)
    with (
        ScriptedPacemaker(Digest()) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        assert client.get_pulse("/a") == b"1"
        assert client.defects == 1


def test_a_defect_that_stays_lets_the_client_close(client, monkeypatch):
    def fail(_self):
        raise ValueError("on purpose")

    assert client.get_pulse("/w") == b"pulse"
    thread = client._thread._thread
    monkeypatch.setattr(SocketThread, "_turn", fail)
    pauses, sleep = [], time.sleep
    shorter = SimpleNamespace(sleep=lambda secs: (pauses.append(secs), sleep(secs / 100)))
    monkeypatch.setattr(socket_thread, "time", shorter)
    client.get_pulse("/w")
    until(lambda: client.defects >= 8)
    client.close()
    assert not thread.is_alive()
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert len(pauses) == client.defects


@pytest.mark.parametrize(
    ("where", "what", "error"),
    [
        (threading.Thread, "start", RuntimeError("can't start new thread")),
        (socket, "socketpair", OSError(errno.EMFILE, "Too many open files")),
        (selectors, "DefaultSelector", OSError(errno.EMFILE, "Too many open files")),
    ],
)
def test_a_shortage_is_over_when_it_is_over(client, monkeypatch, where, what, error):
    def refuse(*_):
        raise error

    with monkeypatch.context() as shortage:
        shortage.setattr(where, what, refuse)
        for _ in range(2):
            with pytest.raises(PacemakerUnavailableError, match=re.escape(str(error))):
                client.get_pulse("/w")
    assert client.get_pulse("/w") == b"pulse"
