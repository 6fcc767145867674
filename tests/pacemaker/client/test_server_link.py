"""What becomes of a client whose loop comes upon a defect, or is not to be had."""

import errno
import os
import re
import selectors
import socket
import threading
import time

import pytest

from stormkeeper.errors import PacemakerUnavailableError
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.connection_opener import ClientAuthentication
from stormkeeper.pacemaker.client.server_link import ServerLink
from stormkeeper.pacemaker.wire.messages import Message, MessageType
from support.mechanisms import Digest, identity
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker
from support.waiting import until


@pytest.fixture
def client():
    java = JavaPacemaker()
    java.store = {"/w": b"pulse"}
    with (
        ScriptedPacemaker(java) as peer,
        PacemakerClient(peer.address, try_timeout=0.5) as client,
    ):
        yield client


STEPS = ["_on_readable", "_on_timer", "_begin_opening", "_take_connection", "_close_socket"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_defect_costs_the_connection_only(client, monkeypatch, caplog, step, kind):
    def fail(self, *arguments, **options):
        if len(failed) < 3:
            failed.append(None)
            raise kind("on purpose")
        return do(self, *arguments, **options)

    failed, do = [], getattr(ServerLink, step)
    monkeypatch.setattr(ServerLink, step, fail)
    assert client.get_pulse("/w") == b"pulse"
    thread = client._loop._thread
    if step == "_close_socket":
        for _ in range(3):
            client.close_idle()
            assert client.get_pulse("/w") == b"pulse"
    until(lambda: client._link.defects == 3)
    assert client.get_pulse("/w") == b"pulse"
    assert client._loop._thread is thread
    assert thread.is_alive()
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["on purpose"] * 2


def test_a_defect_in_the_authentication_is_no_refusal(monkeypatch):
    def fail(self, *arguments):
        if not failed:
            failed.append(None)
            raise ValueError("on purpose")
        check(self, *arguments)

    failed, check = [], ClientAuthentication._check_end
    monkeypatch.setattr(ClientAuthentication, "_check_end", fail)
    with (
        ScriptedPacemaker(Digest()) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        assert client.get_pulse("/a") == b"1"
        assert client._link.defects == 1


def test_a_lasting_defect_lets_the_client_close(client, monkeypatch):
    def fail(*_):
        raise ValueError("on purpose")

    monkeypatch.setattr(ServerLink, "_on_timer", fail)
    assert client.get_pulse("/w") == b"pulse"
    thread = client._loop._thread
    until(lambda: client._link.defects >= 3)
    began, before = time.monotonic(), client._link.defects
    until(lambda: client._link.defects >= before + 3)
    assert time.monotonic() - began > 0.2, "it does not spin"
    client.close()
    assert not thread.is_alive()


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


def test_socket_that_cannot_be_watched_ends_the_try(client, monkeypatch):
    """The system watches so many for each user (fs.epoll.max_user_watches), and no more."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    loop = client._loop.start()
    with monkeypatch.context() as shortage:
        shortage.setattr(loop._selector, "register", refuse)
        with pytest.raises(PacemakerUnavailableError, match="No space left on device"):
            client.get_pulse("/w")
    assert client.get_pulse("/w") == b"pulse"


def test_a_busy_loop_is_not_blamed_on_the_server(client):
    assert client.get_pulse("/w") == b"pulse"
    future = client.submit(Message(MessageType.GET_PULSE, path="/w"))
    client._loop.call(time.sleep, 1.0)  # twice the timeout of a try
    assert client.answer(future).pulse.details == b"pulse"
    assert not client.last_failure
