"""Knows which requests the server of a connection understands; without I/O.

A Java Pacemaker ends at a message type that it does not know, and at a listing of a path that is no
regular expression. The first such request on a connection therefore waits, with those that follow,
until the server has been asked what it is (see `stormkeeper.pacemaker.wire.extensions`).
"""

from enum import Enum
from typing import Final

from stormkeeper.errors import UnsupportedExtensionError
from stormkeeper.pacemaker.client.answers import type_name
from stormkeeper.pacemaker.client.calls import Call
from stormkeeper.pacemaker.wire import RESERVED_PATH, VERBS, Message, MessageType, encode
from stormkeeper.pacemaker.wire.extensions import (
    extensions_told,
    listing_ends_java,
)

_NEVER: Final = float("inf")


class Verdict(Enum):
    """What becomes of a call."""

    SEND = "send"
    #: Keep it: the server is being asked.
    HOLD = "hold"
    #: Keep it, and send `question`.
    ASK = "ask"
    #: The server does not have it.
    REFUSE = "refuse"


class ServerExtensions:
    """What one connection's server has, and the calls that wait to hear of it."""

    __slots__ = ("_asking", "_held", "_told", "may_read")

    def __init__(self) -> None:
        self._held: list[Call] = []
        #: Extensions that the server told of; None before it was asked.
        self._told: frozenset[str] | None = None
        self._asking = False
        #: Whether the server answers this client when it is asked who it is; None before.
        self.may_read: bool | None = None

    def verdict(self, call: Call) -> Verdict:
        """Decide on a call; one that is to wait is held from now on."""
        extension = VERBS[call.kind].extension
        if extension is None and not _lists_what_ends_java(call):
            return Verdict.SEND
        if self._told is not None:
            # Every server of ours has some extension.
            is_there = bool(self._told) if extension is None else extension in self._told
            return Verdict.SEND if is_there else Verdict.REFUSE
        self._held.append(call)
        if self._asking:
            return Verdict.HOLD
        self._asking = True
        return Verdict.ASK

    def told(self, answer: Message) -> None:
        """Take the server's answer about itself.

        Raises
        ------
        RemoteProtocolError
            If it is not readable.
        """
        self._told = extensions_told(answer.pulse.details if answer.pulse else None)
        self.may_read = True

    def refused(self) -> None:
        """Note that the server does not say what it is. The next call asks again."""
        self._asking = False
        self.may_read = False

    def release(self) -> list[Call]:
        """Return the calls that wait, oldest first, and hold them no longer."""
        held, self._held = self._held, []
        return held

    def forget_settled(self) -> None:
        """Hold no calls that have ended meanwhile."""
        self._held = [call for call in self._held if not call.settled]


def question(now: float) -> Call:
    """Make the client's own call that asks a server what it is.

    It has no deadline: it lives as long as the connection, whose patience bounds it.
    """
    frame = encode(Message(MessageType.GET_PULSE, 0, path=RESERVED_PATH))
    return Call(MessageType.GET_PULSE, RESERVED_PATH, frame, _NEVER, now)


def unsupported(peer: str, call: Call) -> UnsupportedExtensionError:
    """Make the error of a call that may not be sent to the server `peer`."""
    if _lists_what_ends_java(call):
        return UnsupportedExtensionError(
            f"{peer} is a Java Pacemaker, and what lies below {call.path} was not asked for: it"
            " takes a path for a regular expression, and ends at one that is none"
        )
    return UnsupportedExtensionError(
        f"{peer} has not told that it has the extension {VERBS[call.kind].extension!r}, so"
        f" {type_name(call.kind)} {call.path} was not sent (it would end a Java Pacemaker)"
    )


def _lists_what_ends_java(call: Call) -> bool:
    return call.kind == MessageType.GET_ALL_NODES_FOR_PATH and listing_ends_java(call.path)
