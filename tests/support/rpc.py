"""A small service, its server on loopback, and clients that speak bytes."""

import socket
import sys
import threading
import types
from contextlib import contextmanager
from struct import pack, unpack

from stormkeeper.daemon.sockets import listen
from stormkeeper.rpc.server import ServerLimits, ThriftServer
from stormkeeper.thrift import idl
from support.waiting import DEADLINE_SECS

example = types.ModuleType("example_of_calls")
vars(example).update(
    idl.load_text(
        """
exception Missing { 1: required string msg }
exception Unknown { 1: required string msg }
service Example {
  string echo(1: required string text)
  binary blob(1: required i32 size)
  void nothing()
  string fails(1: string how) throws (1: Missing missing)
  i32 held(1: string name)
  oneway void tell(1: string text)
}
""",
        example.__name__,
    )
)
sys.modules[example.__name__] = example


class Handler:
    """Carries out the small service's calls; `held` waits until it is let go."""

    def __init__(self):
        self.told = []
        self.holding = []
        self.let_go = threading.Event()

    def echo(self, text):
        return text

    def blob(self, size):
        return b"x" * size

    def nothing(self):
        self.told.append("nothing")
        return "ignored"

    def fails(self, how):
        raise {
            "declared": example.Missing("wc is not alive"),
            "undeclared": example.Unknown("SECRET"),
            "ours": ValueError("SECRET"),
            "unfit": example.Missing(b"no text"),
        }[how]

    def held(self, name):
        self.holding.append(name)
        assert self.let_go.wait(DEADLINE_SECS)

    def tell(self, text):
        self.told.append(text)


@contextmanager
def served(handler, service=example.Example, drain=0.0, **limits):
    """Yield a server of `handler` and where it listens; at its end no connection is waited for."""
    listener = listen("127.0.0.1", 0, keys="", backlog=64)
    place = listener.getsockname()
    server = ThriftServer(service, handler, ServerLimits(**limits), name="test")
    server.start(listener)
    try:
        yield server, place
    finally:
        if isinstance(handler, Handler):
            handler.let_go.set()
        server.stop(drain)


def dial(place):
    """Return a socket that is connected to a server, and gives up some time."""
    connected = socket.create_connection(place, DEADLINE_SECS)
    connected.settimeout(DEADLINE_SECS)
    return connected


def call_bytes(name, body=b"\0", sequence=1, kind=1):
    """Return a call in its frame, made by nobody's code but this."""
    encoded = name.encode()
    payload = pack(">HBBi", 0x8001, 0, kind, len(encoded)) + encoded + pack(">i", sequence) + body
    return pack(">i", len(payload)) + payload


def text_body(text):
    """Return arguments that are one string."""
    return b"\x0b\0\x01" + pack(">i", len(text.encode())) + text.encode() + b"\0"


def number_body(number):
    """Return arguments that are one i32."""
    return b"\x08\0\x01" + pack(">i", number) + b"\0"


def received(connected, size):
    """Return so many bytes, or fewer where the server ended the connection."""
    data = b""
    while len(data) < size:
        try:
            piece = connected.recv(size - len(data))
        except ConnectionResetError:
            break
        if not piece:
            break
        data += piece
    return data


def answer_of(connected):
    """Return the next answer, as (kind, name, sequence, body); None at the connection's end."""
    head = received(connected, 4)
    if len(head) < 4:
        return None
    payload = received(connected, unpack(">i", head)[0])
    version, kind, length = unpack(">HxBi", payload[:8])
    assert version == 0x8001
    name, rest = payload[8 : 8 + length].decode(), payload[8 + length :]
    return kind, name, unpack(">i", rest[:4])[0], rest[4:]


def is_ended(connected):
    """Wait until the server ends the connection; False if something comes before that."""
    return received(connected, 1) == b""


@contextmanager
def scripted(*parts):
    """Yield where a server listens that plays one of `parts` with each connection, in turn.

    A part is called with the connection, which is closed after it.
    """
    listener = listen("127.0.0.1", 0, keys="", backlog=8)
    listener.settimeout(DEADLINE_SECS)

    def play():
        for part in parts:
            try:
                connected, _ = listener.accept()
            except OSError:  # the test is over
                return
            with connected:
                connected.settimeout(DEADLINE_SECS)
                part(connected)

    thread = threading.Thread(target=play, name="scripted", daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        # Closing alone would leave it waiting.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(DEADLINE_SECS)
