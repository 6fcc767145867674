"""What a Pacemaker and its clients say to each other: types, members, and which go together.

Names, numbers and limits are Storm's (``storm.thrift``); from 100 up they are our own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Generic, NamedTuple, TypeVar

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire.binary import LIST, STOP, STRING, BinaryReader

#: Bytes of a frame without its length; the default of ``pacemaker.thrift.message.size.max``.
DEFAULT_MAX_SIZE: Final = 10_485_760

#: A path that our servers answer themselves (who they are) and at which nothing is ever stored.
RESERVED_PATH: Final = "/.stormkeeper"


class MessageType(IntEnum):
    """``HBServerMessageType`` of Storm, and our own from 100 up."""

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
    """A path and the value last sent for it; no `details` in an answer means: nothing stored."""

    id: str
    details: bytes | None


#: Stands for the size of a pulse that was deleted.
TOMBSTONE: Final = -1

#: A path: the bytes of the wire where it is written, a text where it is read.
P = TypeVar("P", str, bytes)


class Columns(NamedTuple, Generic[P]):
    """The newest pulse of each path, or the tombstone of a deleted one, column by column.

    A page has hundreds of them with their values, or thousands without.

    Parameters
    ----------
    paths
        Each once.
    revisions
        The server's, in ascending order.
    ages_ms
        Milliseconds since the server received the pulse, or the deletion, on its monotonic clock.
    sizes
        Lengths of the values in bytes; `TOMBSTONE` for a deleted one.
    details
        The values, None for a deleted one; None in place of all where values were not asked for.
    """

    paths: Sequence[P]
    revisions: Sequence[int]
    ages_ms: Sequence[int]
    sizes: Sequence[int]
    details: Sequence[bytes | None] | None = None


class ChangesRequest(NamedTuple):
    """Asks for what changed at or below `path` since revision `after` of server `instance`.

    A `limit` of 0 or less leaves the number of changes to the server. Without `values` the answer
    has their sizes only; a server without the extension "sizes" sends the values nevertheless.
    """

    path: str
    after: int
    limit: int
    instance: str | None
    values: bool = True


class Changes(NamedTuple):
    """One page of changes.

    `revision` is the server's newest; `next` is the `after` to ask with the next time, at once if
    there is `more`. With `reset` the answer starts from nothing: forget what is known of the paths.
    """

    instance: str
    revision: int
    columns: Columns[str]
    more: bool
    reset: bool
    next: int


@dataclass(slots=True)
class Message:
    """One ``HBMessage``; at most one of the members after `message_id` is set.

    `message_id` None means that the field is absent, which Storm's server answers with -1.
    """

    type: int | None
    message_id: int | None = None
    path: str | None = None
    pulse: Pulse | None = None
    boolval: bool | None = None
    records: list[Pulse] | None = None
    nodes: list[str] | None = None
    #: What authenticating is done with: not in a `repr`, and so in no log.
    blob: bytes | None = field(default=None, repr=False)
    changes_request: ChangesRequest | None = None
    changes: Changes | None = None


class Verb(NamedTuple):
    """What there is to know of one type of request."""

    #: The member of `Message` that it carries.
    asks_with: str
    #: The member that its answer must have. GET_ALL_PULSE_FOR_PATH is answered without data by
    #: Storm always, and by us when the pulses would not fit a frame.
    answered_with: str | None
    #: What it asks for, for people who know no types: ``a request to ... /path``.
    deed: str
    #: Whether it is a writer's: it changes what is held, or says that it will.
    writes: bool = False
    #: Whether its work is small whatever is stored.
    is_short: bool = False
    #: The extension that it belongs to; None for Storm's own.
    extension: str | None = None


#: Every request that is answered out of what a Pacemaker holds.
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

#: The messages that a client authenticates with; both carry a blob.
AUTHENTICATING: Final = (MessageType.CONTROL_MESSAGE, MessageType.SASL_MESSAGE_TOKEN)

_MEMBERS: Final = (
    "path",
    "pulse",
    "boolval",
    "records",
    "nodes",
    "blob",
    "changes_request",
    "changes",
)


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


#: Told by a server that leaves the values out of changes where they are not wanted.
SIZES: Final = "sizes"

#: Not ``.``, which stands for itself too, nor ``]`` and ``}``, which alone mean nothing.
_SPECIAL: Final = frozenset("\\^$|?*+()[{")


def listing_ends_java(path: str) -> bool:
    """Whether a Java Pacemaker may end at GET_ALL_NODES_FOR_PATH of `path`.

    It takes the path for a regular expression, and ends at one that is none. What is certain to be
    one, and to stand for itself, has none of the characters with which that can go wrong: names of
    hosts and of nearly all topologies are such.
    """
    return not _SPECIAL.isdisjoint(path)


def extensions_told(details: bytes | None) -> frozenset[str]:
    """Read the names of a server's extensions out of its ``ServerInfo``.

    Only field 4 is read, by hand, so that a client that wants nothing but this need not load a
    Thrift library.

    Parameters
    ----------
    details
        The details of the pulse at `RESERVED_PATH`; None, as a Java Pacemaker answers, means none.

    Raises
    ------
    RemoteProtocolError
        If the bytes are not a Thrift struct.
    """
    names: set[str] = set()
    if details is None:
        return frozenset()
    reader = BinaryReader(details)
    while True:
        kind, field_id = reader.field()
        if kind == STOP:
            return frozenset(names)
        if field_id == 4 and kind == LIST:
            element, count = reader.sequence()
            for _ in range(count):
                if element == STRING:
                    names.add(reader.text("name of an extension"))
                else:
                    reader.skip(element)
        else:
            reader.skip(kind)
