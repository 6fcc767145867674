"""Pacemaker's message types, and the members that belong to each type.

Names, numbers and limits are Storm's (``storm.thrift``). Types from 100 up are Stormkeeper's
extensions, which crash a Java Pacemaker. A client sends an extension only if the server has listed
it, on the same connection, in field 4 of the ``ServerInfo`` at `RESERVED_PATH`; a Java Pacemaker
answers that GET_PULSE without details. ``thrift/pacemaker.thrift`` describes the extensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Final, Generic, NamedTuple, TypeVar

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire.binary import I32, I64, STRING, STRUCT, field_header

# Headers of the exact shapes. `PATH_FIELD` is also a pulse's id and a change's path,
# `DETAILS_FIELD` the value of both.
TYPE_FIELD: Final = field_header(I32, 1)
DATA_FIELD: Final = field_header(STRUCT, 2)
ID_FIELD: Final = field_header(I32, 3)
PATH_FIELD: Final = field_header(STRING, 1)
PULSE_FIELD: Final = field_header(STRUCT, 2)
DETAILS_FIELD: Final = field_header(STRING, 2)
REVISION_FIELD: Final = field_header(I64, 3)
AGE_FIELD: Final = field_header(I64, 4)

#: Servers refuse paths with control characters.
BETWEEN_PATHS: Final = "\0"

#: Bytes of a frame without the length; default of ``pacemaker.thrift.message.size.max``.
DEFAULT_MAX_SIZE: Final = 10_485_760

#: Path of a server's ``ServerInfo``.
RESERVED_PATH: Final = "/.stormkeeper"

SIZES: Final = "sizes"

TOMBSTONE: Final = -1

#: With these a regular expression can be invalid; ``.``, ``]`` and ``}`` alone cannot.
_SPECIAL: Final = frozenset("\\^$|?*+()[{")

P = TypeVar("P", str, bytes)

#: Bytes: the buffer of the JDK's mechanisms (``maxbuf=65536``).
MAX_TOKEN: Final = 65_536

#: First number of a token's blob.
TOKEN_CODE: Final = -500


class MessageType(IntEnum):
    """Storm's ``HBServerMessageType`` and Stormkeeper's extensions."""

    CREATE_PATH = 0
    CREATE_PATH_RESPONSE = 1
    EXISTS = 2
    EXISTS_RESPONSE = 3
    SEND_PULSE = 4
    SEND_PULSE_RESPONSE = 5
    GET_ALL_PULSE_FOR_PATH = 6
    GET_ALL_PULSE_FOR_PATH_RESPONSE = 7
    GET_ALL_NODES_FOR_PATH = 8
    GET_ALL_NODES_FOR_PATH_RESPONSE = 9
    GET_PULSE = 10
    GET_PULSE_RESPONSE = 11
    DELETE_PATH = 12
    DELETE_PATH_RESPONSE = 13
    DELETE_PULSE_ID = 14
    DELETE_PULSE_ID_RESPONSE = 15
    CONTROL_MESSAGE = 16
    SASL_MESSAGE_TOKEN = 17
    NOT_AUTHORIZED = 18
    CHANGES = 100
    CHANGES_RESPONSE = 101
    HELD = 104
    HELD_RESPONSE = 105
    DELETED = 106
    DELETED_RESPONSE = 107


class Pulse(NamedTuple):
    """A path and the newest value; `details` is None in an answer without a pulse."""

    id: str
    details: bytes | None


class Columns(NamedTuple, Generic[P]):
    """Newest pulse or tombstone of each path, as columns sorted by revision.

    `ages_ms` counts from the receipt on the server's monotonic clock. `sizes` are bytes of the
    values, `TOMBSTONE` for deletions. `details` is None if values were not requested.
    """

    paths: Sequence[P]
    revisions: Sequence[int]
    ages_ms: Sequence[int]
    sizes: Sequence[int]
    details: Sequence[bytes | None] | None = None


class ChangesRequest(NamedTuple):
    """Request for changes at and below `path` since revision `after` of server `instance`.

    With a `limit` of 0 or less the server chooses the number.
    """

    path: str
    after: int
    limit: int
    instance: str | None
    values: bool = True


class Changes(NamedTuple, Generic[P]):
    """A page of changes.

    `revision` is the server's newest, `next` the `after` of the next request. With `reset` the
    reader must forget earlier pages of the path.
    """

    instance: str
    revision: int
    columns: Columns[P]
    more: bool
    reset: bool
    next: int


@dataclass(slots=True)
class Message:
    """Storm's ``HBMessage``; at most one member after `message_id` is set.

    Storm's server answers a request without `message_id` with -1.
    """

    type: int | None
    message_id: int | None = None
    path: str | None = None
    pulse: Pulse | None = None
    boolval: bool | None = None
    records: list[Pulse] | None = None
    nodes: list[str] | None = None
    #: Control codes and SASL tokens, hidden from logs.
    blob: bytes | None = field(default=None, repr=False)
    changes_request: ChangesRequest | None = None
    changes: Changes[str] | None = None


class Verb(NamedTuple):
    """Properties of a request type."""

    asks_with: str
    #: Member that the answer must have. GET_ALL_PULSE_FOR_PATH has none: Storm always answers
    #: without data, a Stormkeeper server if the pulses exceed a frame.
    answered_with: str | None
    #: In texts: ``a request to <deed> /path``.
    deed: str
    writes: bool = False
    is_short: bool = False
    #: None for Storm's own requests.
    extension: str | None = None


VERBS: Final[dict[int, Verb]] = {
    MessageType.CREATE_PATH: Verb("path", None, "create", writes=True, is_short=True),
    MessageType.EXISTS: Verb("path", "boolval", "look for", is_short=True),
    MessageType.SEND_PULSE: Verb("pulse", None, "store", writes=True, is_short=True),
    MessageType.GET_ALL_PULSE_FOR_PATH: Verb("path", None, "read all below"),
    MessageType.GET_ALL_NODES_FOR_PATH: Verb("path", "nodes", "list"),
    MessageType.GET_PULSE: Verb("path", "pulse", "read", is_short=True),
    MessageType.DELETE_PATH: Verb("path", None, "delete all below", writes=True),
    MessageType.DELETE_PULSE_ID: Verb("path", None, "delete", writes=True, is_short=True),
    MessageType.CHANGES: Verb(
        "changes_request", "changes", "read what changed below", extension="changes"
    ),
    MessageType.HELD: Verb("path", "changes", "read", extension="held"),
    MessageType.DELETED: Verb("path", "nodes", "list deletions below", extension="deleted"),
}

AUTHENTICATING: Final = (MessageType.CONTROL_MESSAGE, MessageType.SASL_MESSAGE_TOKEN)

_MEMBERS: Final = tuple(member.name for member in fields(Message))[2:]


def check_request(message: Message) -> None:
    """Raise `RemoteProtocolError` unless `message` is a request with the data of its type."""
    if message.type is None:
        raise RemoteProtocolError("message without a type")
    try:
        kind = MessageType(message.type)
    except ValueError:
        raise RemoteProtocolError(f"unknown message type {message.type}") from None
    verb = VERBS.get(kind)
    if verb is None and kind not in AUTHENTICATING:
        raise RemoteProtocolError(f"{kind.name} is not a request")
    wanted = "blob" if verb is None else verb.asks_with
    if getattr(message, wanted) is None:
        found = [member for member in _MEMBERS if getattr(message, member) is not None]
        if not found:
            raise RemoteProtocolError(f"{kind.name} without data")
        raise RemoteProtocolError(f"{kind.name} with a {found[0]} where its {wanted} is due")
    if kind is MessageType.SEND_PULSE and message.pulse and message.pulse.details is None:
        raise RemoteProtocolError(f"{kind.name} of a pulse without details")


def listing_ends_java(path: str) -> bool:
    """Return whether listing `path`, as an invalid regular expression, may end a Java Pacemaker."""
    return not _SPECIAL.isdisjoint(path)


class Control(IntEnum):
    """Codes of control messages (Storm's ``ControlMessage``)."""

    CLOSE = -100
    OK = -200
    END_OF_BATCH = -201
    SASL_TOKEN_REQUEST = -202
    SASL_COMPLETE = -203
    FAILURE = -400
