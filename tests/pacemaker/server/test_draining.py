"""The end of a real daemon: what has come is answered, and it does not take long."""

import os
import signal
import socket
import ssl
import time

import pytest

from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.certificates import certificates, tls_conf
from support.engines import ENGINES
from support.pacemaker import PacemakerProcess
from support.plain_client import Client
from support.waiting import until


def requests(count, size=100):
    return b"".join(
        encode(Message(MessageType.SEND_PULSE, n, pulse=Pulse(f"/w/{n}", bytes(size))))
        for n in range(count)
    )


@pytest.mark.parametrize("engine", [*ENGINES, "tls"])
def test_received_requests_are_answered_before_the_end(start_pacemaker, engine):
    conf = tls_conf() if engine == "tls" else {"pacemaker.engine": engine}
    context = ssl.create_default_context(cafile=certificates().server.authority)
    server = start_pacemaker(conf=conf)
    tls = context if engine == "tls" else None
    with Client(server, tls) as idle, Client(server, tls) as busy, Client(server, tls) as deaf:
        for client in (idle, busy, deaf):
            client.send("/large", bytes(1_000_000))
        if tls is None:  # once for each engine will do: it takes all the time that there is
            deaf.socket.sendall(encode(Message(MessageType.GET_PULSE, 1, path="/large")) * 100)
        server.suspend()  # so that requests and signal are there at once
        busy.socket.sendall(requests(200))
        os.kill(server.pid, signal.SIGTERM)
        server.resume()
        began = time.monotonic()
        assert [busy.receive().message_id for _ in range(200)] == list(range(200))
        assert busy.receive() is None
        assert idle.receive() is None
        assert server.wait() == 0
        assert time.monotonic() - began < 30
    assert "stopping: 3 connections" in server.log
    deafs = 1 if tls is None else 0
    assert f"stopped: closed 3 connections, of which {deafs} had unread answers\n" in server.log
    assert "closing" not in server.log
    assert "Traceback" not in server.log


def test_draining_server_accepts_no_connection(start_pacemaker):
    server = start_pacemaker()
    with Client(server) as deaf:
        deaf.send("/large", bytes(1_000_000))
        deaf.socket.sendall(encode(Message(MessageType.GET_PULSE, 1, path="/large")) * 100)
        until(lambda: deaf.socket.recv(1))
        os.kill(server.pid, signal.SIGTERM)
        until(lambda: "stopping" in server.log)
        with pytest.raises(ConnectionRefusedError):
            until(lambda: connects(server))
        assert server.wait() == 0


def connects(server):
    """Connect once; a connection that is still accepted into the backlog is reset."""
    with socket.create_connection((server.host, server.port), 5):
        return False


class PatientPacemaker(PacemakerProcess):
    """A daemon that waits for answers to be taken as long as any test lasts."""

    program = (
        "-c",
        "from stormkeeper.pacemaker.server import pacemaker_server\n"
        "pacemaker_server.DRAIN = 600.0\n"
        "from stormkeeper.cli import main; main()",
    )


def test_later_signal_ends_the_daemon_at_once():
    with PatientPacemaker() as server, Client(server) as deaf:
        deaf.send("/large", bytes(1_000_000))
        deaf.socket.sendall(encode(Message(MessageType.GET_PULSE, 1, path="/large")) * 100)
        until(lambda: deaf.socket.recv(1))
        server.suspend()  # so that both signals are there at once, and so the same
        os.kill(server.pid, signal.SIGTERM)
        os.kill(server.pid, signal.SIGINT)
        server.resume()
        until(lambda: "stopping" in server.log)
        time.sleep(1.2)
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM
        assert server.log.count("ended at once by a second SIGTERM") == 1
        assert "Traceback" not in server.log
