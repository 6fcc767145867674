"""What a client can do wrong to a Pacemaker, by name: each entry is one way to misbehave.

An `Abuse` acts on a connection of its own and tells what it saw. It is run against a server of
every mode in `modes`; the first is the cheapest in which it means something. Whatever it does must
cost nobody else anything: that is for `test_abuse` to see.
"""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from faults.attacker import Attacker, Verdict
from stormkeeper.pacemaker.wire.binary import (
    BYTE,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
)
from stormkeeper.pacemaker.wire.messages import MessageType
from support.messages import field as thrift
from support.messages import i32, string

CLOSED, REFUSED, ANSWERED = Verdict.CLOSED, Verdict.REFUSED, Verdict.ANSWERED

#: Where nothing may be stored by any of them.
VICTIM: Final = "/workerbeats/abuse-1-1/node-6700"

PLAIN: Final = ("NONE", "DIGEST", "SCRAM", "KERBEROS", "TLS")


@dataclass(frozen=True)
class Abuse:
    """One way to misbehave, and what may come of it for the one who does."""

    name: str
    act: Callable[[Attacker], Verdict | None]
    outcomes: frozenset[Verdict]
    modes: tuple[str, ...] = PLAIN
    #: In which else of them it is tried at every change, as it meets other code of the server.
    also: tuple[str, ...] = ()

    def is_tried_at_every_change(self, mode: str) -> bool:
        return mode in (self.modes[0], *self.also)


@dataclass
class _Catalogue:
    entries: list[Abuse] = field(default_factory=list)

    def frame(self, name: str, payload: bytes, *outcomes: Verdict) -> None:
        """Send one whole frame with `payload`."""
        self.entries.append(
            Abuse(name, lambda a: a.say(i32(len(payload)) + payload), frozenset(outcomes))
        )

    def raw(self, name: str, data: bytes, *outcomes: Verdict) -> None:
        """Send bytes that need not be a frame."""
        self.entries.append(Abuse(name, lambda a: a.say(data), frozenset(outcomes)))

    def deed(
        self,
        name: str,
        *outcomes: Verdict,
        modes: tuple[str, ...] = PLAIN,
        also: tuple[str, ...] = (),
    ) -> Callable[[Callable[[Attacker], Verdict | None]], Callable[[Attacker], Verdict | None]]:
        """Do more than send bytes: the decorated function takes an `Attacker`."""

        def add(
            act: Callable[[Attacker], Verdict | None],
        ) -> Callable[[Attacker], Verdict | None]:
            self.entries.append(Abuse(name, act, frozenset(outcomes), modes, also))
            return act

        return add


catalogue = _Catalogue()
TYPE = 1
DATA = 2
ID = 3
STOP = b"\x00"


def message(kind: int | None, data: bytes | None = None, message_id: int | None = 7) -> bytes:
    """Write an ``HBMessage`` field by field, so that it can be wrong."""
    parts = [] if kind is None else [thrift(I32, TYPE, i32(kind))]
    if data is not None:
        parts.append(thrift(STRUCT, DATA, data + STOP))
    if message_id is not None:
        parts.append(thrift(I32, ID, i32(message_id)))
    return b"".join(parts) + STOP


def path(text: str | bytes) -> bytes:
    return thrift(STRING, 1, string(text))


def pulse(identity: str | bytes | None, details: bytes | None) -> bytes:
    inner = b"" if identity is None else thrift(STRING, 1, string(identity))
    inner += b"" if details is None else thrift(STRING, 2, string(details))
    return thrift(STRUCT, 2, inner + STOP)


def send(identity: str | bytes, details: bytes = b"abuse") -> bytes:
    return message(MessageType.SEND_PULSE, pulse(identity, details))


def whole(payload: bytes) -> bytes:
    return i32(len(payload)) + payload


# What ends a Java Pacemaker, each (its shortcomings are why this server exists).
catalogue.raw("a frame of no bytes", i32(0), CLOSED)
catalogue.frame("no type", message(None, path(VICTIM)), CLOSED)
for number in (-1, 19, 99, 255, 1000, 2**31 - 1):
    catalogue.frame(f"unknown type {number}", message(number, path(VICTIM)), CLOSED)
_VERBS = (0, 2, 4, 6, 8, 10, 12, 14, 100, 104, 106)
for number in _VERBS:
    catalogue.frame(f"{MessageType(number).name} without data", message(number), CLOSED)
    catalogue.frame(
        f"{MessageType(number).name} with the data of another",
        message(number, path(VICTIM) if number in (4, 100) else pulse(VICTIM, b"abuse")),
        CLOSED,
    )
catalogue.frame("a pulse without id", message(4, pulse(None, b"abuse")), CLOSED)
catalogue.frame("a pulse without details", message(4, pulse(VICTIM, None)), CLOSED)
catalogue.frame("garbage for Thrift", b"\xde\xad\xbe\xef" * 8, CLOSED)
catalogue.frame("Thrift cut short", send(VICTIM)[:30], CLOSED)
catalogue.frame("a path that is no regular expression", message(8, path("/*[(")), ANSWERED, REFUSED)
catalogue.frame("a response for a request", message(5), CLOSED)
catalogue.frame("NOT_AUTHORIZED for a request", message(18), CLOSED)

# Lies about length.
for number in (-1, -(2**31), 2**31 - 1, 10_485_761):
    catalogue.raw(f"a frame of {number} bytes", i32(number) + send(VICTIM), CLOSED)
catalogue.raw("a frame that ends before its message", i32(20) + send(VICTIM), CLOSED)
for number in (-1, 2**31 - 1, 1000):
    catalogue.frame(
        f"a text of {number} bytes in a short frame",
        message(10, thrift(STRING, 1, i32(number) + b"/a")),
        CLOSED,
    )
    catalogue.frame(
        f"details of {number} bytes in a short frame",
        message(
            4,
            thrift(
                STRUCT, 2, thrift(STRING, 1, string(VICTIM)) + thrift(STRING, 2, i32(number)) + STOP
            ),
        ),
        CLOSED,
    )
catalogue.frame(
    "two thousand million elements", message(10, thrift(LIST, 77, b"\x0c" + i32(2**31 - 1))), CLOSED
)
catalogue.frame("minus one elements", message(10, thrift(SET, 77, b"\x0b" + i32(-1))), CLOSED)
catalogue.frame(
    "a map of everything", message(10, thrift(MAP, 77, b"\x0b\x0c" + i32(2**31 - 1))), CLOSED
)
catalogue.frame(
    "structs within structs", message(10, thrift(STRUCT, 77, b"\x0c\x00\x01" * 100_000)), CLOSED
)
catalogue.frame(
    "a million tiny fields", message(10, (b"\x03\x00\x4d\x01" * 1_000_000) + path(VICTIM)), CLOSED
)
catalogue.frame(
    "a list of a million empty structs",
    message(10, thrift(LIST, 77, b"\x0c" + i32(1_000_000) + STOP * 1_000_000) + path(VICTIM)),
    CLOSED,
)

# Wrong Thrift types where fields are due.
catalogue.frame("the type as a 64-bit number", thrift(I64, TYPE, bytes(8)) + STOP, CLOSED)
catalogue.frame("the type as a text", thrift(STRING, TYPE, string("SEND")) + STOP, CLOSED)
catalogue.frame(
    "the data as a number", thrift(I32, TYPE, i32(10)) + thrift(I16, DATA, b"\0\1") + STOP, CLOSED
)
catalogue.frame("the path as a number", message(10, thrift(DOUBLE, 1, bytes(8))), CLOSED)
catalogue.frame(
    "a type of Thrift that is none", message(10, thrift(BYTE + 98, 77, bytes(8))), CLOSED
)
catalogue.frame(
    "a message id of eight bytes",
    thrift(I32, TYPE, i32(10))
    + thrift(STRUCT, DATA, path("/a") + STOP)
    + thrift(I64, ID, bytes(8))
    + STOP,
    ANSWERED,
    REFUSED,
)
catalogue.frame("two members in the union", message(4, path(VICTIM) + path(VICTIM)), CLOSED)

# Paths that nobody should store at.
for name, text in {
    "a path that is not UTF-8": b"/workerbeats/\xff\xfe/x",
    "an overlong encoding in a path": b"/workerbeats/\xc0\xaf/x",
    "a surrogate in a path": b"/workerbeats/\xed\xa0\x80/x",
    "a NUL in a path": "/workerbeats/a\0b/x",
    "a line break in a path": "/workerbeats/a\nINFO all is well/x",
    "an escape sequence in a path": "/workerbeats/\x1b[2J/x",
    "a C1 control in a path": "/workerbeats/\x9b2J/x",
    "a path of a megabyte": "/" + "a" * 1_000_000,
    "a path of a hundred thousand segments": "/a" * 100_000,
    "the reserved path": "/.stormkeeper",
    "below the reserved path": "/.stormkeeper/pulse",
}.items():
    catalogue.frame(name, send(text), REFUSED, CLOSED)
catalogue.frame("deleting the reserved path", message(12, path("/.stormkeeper")), REFUSED)

# Requests that ask for much.
catalogue.frame(
    "changes of a negative limit",
    message(
        100,
        thrift(
            STRUCT,
            100,
            thrift(STRING, 1, string("/"))
            + thrift(I64, 2, (-5).to_bytes(8, signed=True))
            + thrift(I32, 3, i32(-(2**31)))
            + STOP,
        ),
    ),
    ANSWERED,
    REFUSED,
)
catalogue.frame(
    "changes of the future",
    message(
        100,
        thrift(
            STRUCT,
            100,
            thrift(STRING, 1, string("/"))
            + thrift(I64, 2, (2**63 - 1).to_bytes(8))
            + thrift(I32, 3, i32(1))
            + STOP,
        ),
    ),
    ANSWERED,
    REFUSED,
)

# Other protocols.
catalogue.raw("an HTTP request", b"GET / HTTP/1.1\r\nHost: pacemaker\r\n\r\n", CLOSED)
catalogue.raw("an SSH greeting", b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", CLOSED)
catalogue.raw(
    "a TLS greeting that breaks off", bytes.fromhex("1603010200010001fc0303") + bytes(64), CLOSED
)
catalogue.raw("a Redis command", b"*1\r\n$4\r\nPING\r\n", CLOSED)
for seed in range(4):
    catalogue.raw(f"random bytes {seed}", b"\x7f" + random.Random(seed).randbytes(4096), CLOSED)


# Time: what is begun and not finished.
@catalogue.deed("a frame that comes byte by byte", CLOSED, also=("TLS",))
def _drip(attacker: Attacker) -> Verdict:
    with attacker.connect() as peer:
        with contextlib.suppress(OSError):
            for byte in whole(send(VICTIM)):
                peer.sendall(bytes([byte]))
                if attacker.ended(peer, 0.05):
                    break
        return attacker.outcome(peer)


@catalogue.deed("half of a length", CLOSED)
def _half_a_length(attacker: Attacker) -> Verdict:
    return attacker.say(b"\0\0")


@catalogue.deed("a length, and nothing after it", CLOSED, also=("TLS",))
def _announced(attacker: Attacker) -> Verdict:
    return attacker.say(i32(10_485_760))


@catalogue.deed("connections that say nothing")
def _silent(attacker: Attacker) -> None:
    with contextlib.ExitStack() as peers:
        for _ in range(50):
            peers.enter_context(attacker.connect(raw=True))
        time.sleep(0.2)


@catalogue.deed("a reset in the middle of a frame", also=("TLS",))
def _reset(attacker: Attacker) -> None:
    for _ in range(20):
        with attacker.connect() as peer:
            peer.sendall(whole(send(VICTIM))[:25])
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@catalogue.deed("half-closed in the middle of a frame", CLOSED, also=("TLS",))
def _half_closed(attacker: Attacker) -> Verdict:
    with attacker.connect() as peer:
        peer.sendall(whole(send(VICTIM))[:25])
        attacker.shut(peer)
        return attacker.outcome(peer)


# Where reading is refused the answers are too small to be in anybody's way.
@catalogue.deed(
    "requests without reading the answers", CLOSED, modes=("NONE", "TLS"), also=("TLS",)
)
def _deaf(attacker: Attacker) -> Verdict:
    with attacker.connect() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ask = whole(message(6, path("/"))) * 100
        peer.settimeout(0.2)
        with contextlib.suppress(OSError):
            for _ in range(100):
                peer.sendall(ask)
        attacker.rest()
        return attacker.outcome(peer, keep_reading=True)


@catalogue.deed("ten thousand requests at once", also=("TLS",))
def _burst(attacker: Attacker) -> None:
    with attacker.connect() as peer, contextlib.suppress(OSError):
        peer.sendall(whole(message(2, path(VICTIM))) * 10_000)
        peer.settimeout(attacker.patience)
        seen = 0
        while seen < 10_000 * 19 and (data := peer.recv(1 << 20)):
            seen += len(data)


@catalogue.deed("five hundred connections, opened and closed")
def _come_and_go(attacker: Attacker) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError):
            attacker.connect(raw=True).close()


@catalogue.deed("more connections than one address may have", CLOSED)
def _crowd(attacker: Attacker) -> Verdict:
    with contextlib.ExitStack() as peers:
        opened = [
            peers.enter_context(attacker.connect(raw=True))
            for _ in range(attacker.connections_per_address + 20)
        ]
        return attacker.outcome(opened[-1])


@catalogue.deed("a pulse larger than all that may be held", REFUSED)
def _too_much(attacker: Attacker) -> Verdict:
    return attacker.say(whole(send(VICTIM, bytes(attacker.store_bytes))))


@catalogue.deed("a flood of pulses beyond what may be held")
def _fill(attacker: Attacker) -> None:
    """Fill the store by many pulses, then take them away: what was there stays."""
    size = attacker.store_bytes // 20
    with attacker.connect() as peer:
        for number in range(30):
            attacker.ask(peer, whole(send(f"/flood/{number}", bytes(size))))
        attacker.ask(peer, whole(message(12, path("/flood"))))


def control(code: int) -> bytes:
    return message(16, thrift(STRING, 7, string(struct.pack(">h", code))), None)


def token(data: bytes, code: int = -500, length: int | None = None) -> bytes:
    size = len(data) if length is None else length
    return message(17, thrift(STRING, 7, string(struct.pack(">hi", code, size) + data)), None)


ASK, COMPLETE = -202, -203
_SASL = ("DIGEST", "SCRAM", "KERBEROS")
_TOKENS = ("DIGEST", "SCRAM")


def _sasl(name: str, *frames: bytes, modes: tuple[str, ...] = _SASL) -> None:
    data = b"".join(map(whole, frames))
    catalogue.entries.append(
        Abuse(name, lambda a: a.say(data, keep_reading=True), frozenset({CLOSED}), modes)
    )


_sasl("a request to authenticate where there is nothing to", control(ASK), modes=("NONE", "TLS"))
_sasl("a token where there is nothing to authenticate", token(b"abc"), modes=("NONE", "TLS"))
_sasl("a token before its time", token(b"abc"), modes=_TOKENS)
_sasl("two requests to authenticate", control(ASK), control(ASK), modes=_TOKENS)
_sasl("an answer that is garbage", control(ASK), token(b"\xff" * 64), modes=_TOKENS)
_sasl("an empty answer", control(ASK), token(b""), modes=_TOKENS)
_sasl("an answer of a megabyte", control(ASK), token(b"a" * 1_000_000), modes=_TOKENS)
_sasl("an answer without end of a quote", control(ASK), token(b'username="x'), modes=("DIGEST",))
_sasl(
    "an answer that says everything twice",
    control(ASK),
    token(b'username="x",username="y",nonce="a",nonce="b",nc=00000001,qop=auth'),
    modes=("DIGEST",),
)
_sasl("a name that is not there", control(ASK), token(b"n,,r=abc"), modes=("SCRAM",))
_sasl("a binding to a channel", control(ASK), token(b"p=tls-unique,,n=a,r=b"), modes=("SCRAM",))
_sasl("a proof before its time", control(ASK), token(b"c=biws,r=abc,p=AAAA"), modes=("SCRAM",))
_sasl("a nonce of no bytes", control(ASK), token(b"n,,n=nimbus,r="), modes=("SCRAM",))
_sasl("a ticket that is garbage", token(b"\x60\x82" + bytes(64)), modes=("KERBEROS",))
_sasl("that it is complete, says the client", control(COMPLETE))
_sasl("a control code that is none", control(-999))
_sasl("a control message of no bytes", message(16, thrift(STRING, 7, string(b"")), None))
_sasl("a token of a negative length", control(ASK), token(b"abc", length=-5))
_sasl("a token that is longer than its message", control(ASK), token(b"abc", length=2**31 - 1))
_sasl("a token under another code", control(ASK), token(b"abc", code=-501))


@catalogue.deed("reading in the middle of authenticating", REFUSED, CLOSED, modes=_TOKENS)
def _impatient(attacker: Attacker) -> Verdict:
    with attacker.connect() as peer:
        attacker.ask(peer, whole(control(ASK)))
        answer = attacker.ask(peer, whole(message(10, path(attacker.secret_path))))
        return attacker.judge(answer)


@catalogue.deed("reading without authenticating", REFUSED, modes=_SASL)
def _unauthenticated(attacker: Attacker) -> Verdict:
    verdicts = set()
    for verb in (2, 6, 8, 10):
        with attacker.connect() as peer:
            where = path(attacker.secret_path)
            verdicts.add(attacker.judge(attacker.ask(peer, whole(message(verb, where)))))
    assert len(verdicts) == 1
    return verdicts.pop()


@catalogue.deed("an authentication that is never finished", CLOSED, modes=_TOKENS)
def _unfinished(attacker: Attacker) -> Verdict:
    return attacker.say(whole(control(ASK)), keep_reading=True)


@catalogue.deed("a wrong password", CLOSED, modes=_TOKENS)
def _wrong_password(attacker: Attacker) -> Verdict:
    return attacker.authenticate("not the password")


@catalogue.deed("a ticket of somebody who may not read", CLOSED, modes=("KERBEROS",))
def _stranger(attacker: Attacker) -> Verdict:
    return attacker.authenticate("a-stranger")


@catalogue.deed("an answer that was given before", CLOSED, modes=_SASL, also=("KERBEROS",))
def _replayed(attacker: Attacker) -> Verdict:
    return attacker.replay()


@catalogue.deed("plain frames to a server with TLS", CLOSED, modes=("TLS",))
def _plain_to_tls(attacker: Attacker) -> Verdict:
    return attacker.say(whole(send(VICTIM)), raw=True, keep_reading=True)


@catalogue.deed("garbage in the middle of TLS", CLOSED, modes=("TLS",))
def _garbage_in_tls(attacker: Attacker) -> Verdict:
    return attacker.say(
        b"\x16\x03\x01\x00\x05hello" + bytes(range(256)) * 4, raw=True, keep_reading=True
    )


@catalogue.deed("a TLS greeting, and nothing after it", CLOSED, modes=("TLS",))
def _tls_never_finished(attacker: Attacker) -> Verdict:
    return attacker.say(b"\x16\x03\x01\x02\x00", raw=True, keep_reading=True)


@catalogue.deed("TLS that is too old", CLOSED, modes=("TLS",))
def _old_tls(attacker: Attacker) -> Verdict:
    return attacker.old_tls()


def abuses() -> Iterator[Abuse]:
    """Every way to misbehave that we know of."""
    names = [entry.name for entry in catalogue.entries]
    assert len(set(names)) == len(names)
    yield from catalogue.entries
