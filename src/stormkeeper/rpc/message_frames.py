"""Thrift's messages in frames: the length in four bytes, then method, sequence number and body.

Messages are written in the strict form, which begins with a version, and also read in the older
form, as by Storm's daemons.
"""

from __future__ import annotations

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

_VERSION: Final = 0x8001
#: In bytes, as the log may show a name.
_MAX_NAME: Final = 256
NO_ZOOKEEPER: Final = "this server does not reach ZooKeeper"

#: The first bytes of Thrift's SASL transport: START, and a length below 256.
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
    """The type of a message."""

    CALL = 1
    REPLY = 2
    EXCEPTION = 3
    #: A call without an answer.
    ONEWAY = 4


class FaultKind(IntEnum):
    """The types of Thrift's ``TApplicationException`` that are written or looked for here."""

    UNKNOWN = 0
    UNKNOWN_METHOD = 1
    MISSING_RESULT = 5
    INTERNAL_ERROR = 6
    PROTOCOL_ERROR = 7


# A part of Thrift itself, not of an IDL. The type is no enum, as a peer may have others.
_Fault: Any = idl.load_text(
    "struct ApplicationException { 1: optional string message, 2: optional i32 type }", __name__
)["ApplicationException"]


def internal_error(method: str) -> str:
    """Return the beginning of an internal error's text, as in Storm's servers."""
    return f"Internal error processing {method}"


class ThriftMessage(NamedTuple):
    """A call, an answer or a fault."""

    kind: Kind
    name: str
    sequence: int
    body: bytes


def read_message(payload: bytes) -> ThriftMessage:
    """Read a frame's payload; raise `RemoteProtocolError` for a bad head."""
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
    """Return a message in the strict form, in a frame."""
    encoded = name.encode()
    head = _head.pack(_VERSION, kind, len(encoded)) + encoded + _i32.pack(sequence)
    return _i32.pack(len(head) + len(body)) + head + body


def record_frame(kind: Kind, name: str, sequence: int, record: TPayload) -> bytes:
    """Return a record in a frame; raise `SerializationError` for a bad record."""
    return frame(kind, name, sequence, encode(record))


def fault_frame(name: str, sequence: int, kind: FaultKind, text: str) -> bytes:
    body = encode(_Fault(text, int(kind)))
    return frame(Kind.EXCEPTION, name, sequence, body)


def read_fault(body: bytes) -> tuple[int, str]:
    """Return kind and text of a fault; raise `SerializationError`."""
    fault = decode(_Fault, body)
    return fault.type or FaultKind.UNKNOWN, fault.message or ""


def sasl_refusal() -> bytes:
    """Return the refusal of Thrift's SASL transport."""
    text = f"this is no server for {SASL_REMEDY}".encode()
    return bytes([_SASL_ERROR]) + len(text).to_bytes(4, "big") + text


def bad_length(length: int, max_size: int) -> RemoteProtocolError:
    raw = length.to_bytes(4, "big", signed=True)
    hint = next((hint for begin, hint in _OTHERS.items() if raw.startswith(begin)), "")
    if hint:
        return RemoteProtocolError(f"{raw!r} where a frame's length belongs; this is {hint}")
    return RemoteProtocolError(
        f"a frame of {length} bytes announced; a length is 0 to {max_size},"
        " nimbus.thrift.max_buffer_size"
    )
