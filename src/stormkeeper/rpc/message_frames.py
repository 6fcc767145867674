"""What goes around a call's arguments and around its answer: Thrift's messages, to and from bytes.

Messages are written in the strict form, which begins with a version, and read in the older form,
too, as Storm's daemons do. Each is the payload of one frame: its length in four bytes, then itself.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple

from thriftpy2.thrift import TPayload

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.thrift import idl
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.writer import encode

_unpack_i32: Final = Struct(">i").unpack_from
_unpack_old_end: Final = Struct(">bi").unpack_from
_i32: Final = Struct(">i")
_head: Final = Struct(">Hxbi")

#: The two bytes with which a message in the strict form begins.
_VERSION: Final = 0x8001
#: The longest name of a method that is taken, in bytes: so much of it may stand in a log.
_MAX_NAME: Final = 256
#: How the text of a fault begins where the server does not reach ZooKeeper.
NO_ZOOKEEPER: Final = "this server does not reach ZooKeeper"
#: How TLS and HTTP begin, which somebody may speak to a port for Thrift.
#: How a client of Thrift's SASL transport begins: the status START, and a length below 256.
SASL: Final = b"\x01\x00\x00\x00"
_SASL_ERROR: Final = 4

SASL_REMEDY: Final = (
    "SASL: this Nimbus authenticates no client, so set storm.thrift.transport:"
    " org.apache.storm.security.auth.SimpleTransportPlugin in the client's storm.yaml"
)

_OTHERS: Final = {
    b"\x16\x03": "TLS: this port speaks plain Thrift",
    b"GET ": "HTTP: this port speaks Thrift",
    b"POST": "HTTP: this port speaks Thrift",
    SASL: SASL_REMEDY,
    b"HTTP": "HTTP: that port is no Thrift service's, but perhaps a web page's",
}


class Kind(IntEnum):
    """What a message is."""

    CALL = 1
    REPLY = 2
    EXCEPTION = 3
    #: A call that nobody answers.
    ONEWAY = 4


class FaultKind(IntEnum):
    """Why a call has no answer: the kinds of Thrift's ``TApplicationException``."""

    UNKNOWN = 0
    UNKNOWN_METHOD = 1
    INVALID_MESSAGE_TYPE = 2
    WRONG_METHOD_NAME = 3
    BAD_SEQUENCE_ID = 4
    MISSING_RESULT = 5
    INTERNAL_ERROR = 6
    PROTOCOL_ERROR = 7
    INVALID_TRANSFORM = 8
    INVALID_PROTOCOL = 9
    UNSUPPORTED_CLIENT_TYPE = 10


# It belongs to Thrift itself, and so to no service's IDL. Its kind is no enum, as a peer may have
# more of them.
_Fault: Any = idl.load_text(
    "struct ApplicationException { 1: optional string message, 2: optional i32 type }", __name__
)["ApplicationException"]


def internal_error(method: str) -> str:
    """Return how Storm's servers begin the text of an internal error."""
    return f"Internal error processing {method}"


class ThriftMessage(NamedTuple):
    """A message."""

    kind: Kind
    #: The method.
    name: str
    #: Which call it is, or answers.
    sequence: int
    #: Its arguments, its answer or its fault, encoded.
    body: bytes


def read_message(payload: bytes) -> ThriftMessage:
    """Read the payload of a frame, but for the body.

    Raises
    ------
    RemoteProtocolError
        If it is no message.
    """
    try:
        (first,) = _unpack_i32(payload)
        if first < 0:
            version, kind = (first >> 16) & 0xFFFF, first & 0xFF
            if version != _VERSION:
                raise RemoteProtocolError(
                    f"a message of version {version:#06x}, where this is {_VERSION:#06x}"
                )
            (length,) = _unpack_i32(payload, 4)
            name, pos = _name(payload, 8, length)
            (sequence,) = _unpack_i32(payload, pos)
            pos += 4
        else:
            name, pos = _name(payload, 4, first)
            kind, sequence = _unpack_old_end(payload, pos)
            pos += 5
    except struct_error:
        raise RemoteProtocolError(
            f"a message that ends within its head, after {len(payload)} bytes"
        ) from None
    try:
        return ThriftMessage(Kind(kind), name, sequence, payload[pos:])
    except ValueError:
        raise RemoteProtocolError(f"a message of the unknown type {kind}") from None


def _name(payload: bytes, pos: int, length: int) -> tuple[str, int]:
    if not 0 <= length <= _MAX_NAME:
        raise RemoteProtocolError(
            f"a method's name of {length} bytes announced; it has at most {_MAX_NAME}"
        )
    name = payload[pos : pos + length]
    if len(name) < length:
        raise RemoteProtocolError("a message that ends within its method's name")
    try:
        return str(name, "utf-8"), pos + length
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"a method's name that is not UTF-8: {name[:40]!r}") from None


def frame(kind: Kind, name: str, sequence: int, body: bytes) -> bytes:
    """Return a message in its frame, in the strict form."""
    encoded = name.encode()
    head = _head.pack(_VERSION, kind, len(encoded)) + encoded + _i32.pack(sequence)
    return _i32.pack(len(head) + len(body)) + head + body


def record_frame(kind: Kind, name: str, sequence: int, record: TPayload) -> bytes:
    """Return a message with a record in it, in its frame.

    Raises
    ------
    SerializationError
        If the record does not fit its schema.
    """
    return frame(kind, name, sequence, encode(record))


def fault_frame(name: str, sequence: int, kind: FaultKind, text: str) -> bytes:
    """Return the message that a call has no answer, in its frame."""
    body = encode(_Fault(text, int(kind)))
    return frame(Kind.EXCEPTION, name, sequence, body)


def read_fault(body: bytes) -> tuple[int, str]:
    """Read the body of a message of the kind EXCEPTION: why, as in `FaultKind`, and in words.

    Raises
    ------
    SerializationError
        If it is none.
    """
    fault = decode(_Fault, body)
    return fault.type or FaultKind.UNKNOWN, fault.message or ""


def sasl_refusal() -> bytes:
    """Return the message by which a client of Thrift's SASL transport learns why it is refused."""
    text = f"this is no server for {SASL_REMEDY}".encode()
    return bytes([_SASL_ERROR]) + len(text).to_bytes(4, "big") + text


def bad_length(length: int, max_size: int) -> RemoteProtocolError:
    """Return the fault of a frame whose length is negative or above `max_size`."""
    raw = length.to_bytes(4, "big", signed=True)
    hint = next((hint for begin, hint in _OTHERS.items() if raw.startswith(begin)), "")
    if hint:
        return RemoteProtocolError(f"{raw!r} where a frame's length belongs; this is {hint}")
    return RemoteProtocolError(
        f"a frame of {length} bytes announced; a length is 0 to {max_size},"
        " nimbus.thrift.max_buffer_size"
    )


_HEADER: Final = 4
_unpack_length: Final = Struct(">i").unpack_from


class FrameSplitter:
    """Cuts a stream of bytes, however it is chopped, into the payloads of its frames.

    Each byte is copied a bounded number of times, and memory is taken for bytes that came, never
    for those that a length announces.

    Parameters
    ----------
    max_size
        The largest payload that is accepted, in bytes.
    bad_length
        Makes the fault of a frame whose length is negative or above that; called with both.
    """

    __slots__ = ("_bad_length", "_max_size", "_missing", "_partial", "fault")

    def __init__(
        self, max_size: int, bad_length: Callable[[int, int], RemoteProtocolError]
    ) -> None:
        self._max_size = max_size
        self._bad_length = bad_length
        #: The beginning of a frame, with its length; empty between frames.
        self._partial = bytearray()
        #: Bytes that the length of the partial frame lacks or, once that is whole, the payload.
        self._missing = _HEADER
        #: The bad length that ended the stream, once one was met.
        self.fault: RemoteProtocolError | None = None

    @property
    def has_partial(self) -> bool:
        """Whether a frame has begun and is not whole."""
        return bool(self._partial)

    @property
    def partial_bytes(self) -> int:
        """How much has come of a frame that is not whole."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes and give the payloads that they complete.

        Frames before a bad length are not lost: they are given, `fault` is set, and the next call
        raises it.

        Raises
        ------
        RemoteProtocolError
            If a frame's length is negative or above `max_size`; by every call from then on.
        """
        payloads: list[bytes] = []
        if self.fault is None:
            pos = self._complete_partial(data, payloads) if self._partial else 0
            self._cut(data, pos, payloads)
        if self.fault is not None and not payloads:
            raise self.fault
        return payloads

    def _cut(self, data: bytes, pos: int, payloads: list[bytes]) -> None:
        """Cut whole frames out of `data` from `pos`, and keep what is left as a partial one."""
        size = len(data)
        missing = _HEADER
        while size - pos >= _HEADER:
            length = _unpack_length(data, pos)[0]
            if not self._is_allowed(length):
                return
            end = pos + _HEADER + length
            if end > size:
                missing = end - pos
                break
            payloads.append(data[pos + _HEADER : end])
            pos = end
        if pos < size:
            self._partial += memoryview(data)[pos:]
            self._missing = missing - (size - pos)

    def _complete_partial(self, data: bytes, payloads: list[bytes]) -> int:
        """Add to the partial frame what it lacks; return how many bytes of `data` that took."""
        pos = 0
        partial = self._partial
        while True:
            had_length = len(partial) >= _HEADER
            piece = memoryview(data)[pos : pos + self._missing]
            partial += piece
            pos += len(piece)
            self._missing -= len(piece)
            if self._missing:
                return pos
            if not had_length:
                length = _unpack_length(partial)[0]
                if not self._is_allowed(length):
                    return len(data)
                self._missing = length
                if length:
                    continue
            payloads.append(bytes(memoryview(partial)[_HEADER:]))
            self._partial = bytearray()
            self._missing = _HEADER
            return pos

    def _is_allowed(self, length: int) -> bool:
        if 0 <= length <= self._max_size:
            return True
        self.fault = self._bad_length(length, self._max_size)
        return False
