"""Which writes need not be sent again, because a newer one of the same client undoes them.

All requests of a client leave in the order in which they were made, the second time too, so a
write that is sent again never comes after one that was made later. What remains is the moment
between the two: a pulse that is sent again brings back, until the newer one follows, what the
newer one had replaced already. So a write is left out when a newer one leaves nothing of it:

====================  ==========================================================
newer                 leaves nothing of an older
====================  ==========================================================
send or delete a      send or delete of the same pulse
pulse
delete a path         send or delete of a pulse at or below it, and delete of a
                      path at or below it
====================  ==========================================================

A delete of a path is not undone by a pulse that was sent below it later: the rest of the subtree
is still to be deleted, so it is sent again, before the pulse. Reads and CREATE_PATH, which stores
nothing, are never left out.
"""

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from stormkeeper.pacemaker.client.calls import Call
from stormkeeper.pacemaker.wire import MessageType

T = TypeVar("T")

_PULSE_WRITES = frozenset({MessageType.SEND_PULSE, MessageType.DELETE_PULSE_ID})


def is_write(kind: int) -> bool:
    """Whether a request of type `kind` changes what a Pacemaker holds."""
    return kind in _PULSE_WRITES or kind == MessageType.DELETE_PATH


def at_or_below(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it, by whole segments."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")


def covers(newer: tuple[int, str], older: tuple[int, str]) -> bool:
    """Whether the write `newer` leaves nothing of the write `older`; each is (type, path)."""
    kind, path = newer
    old_kind, old_path = older
    if not (is_write(kind) and is_write(old_kind)):
        return False
    if kind == MessageType.DELETE_PATH:
        return at_or_below(old_path, path)
    return old_kind in _PULSE_WRITES and old_path == path


class NewerWrites(Generic[T]):
    """The writes seen so far, going from the newest to older ones, each with its owner.

    `owner_covering` gives the same verdicts as `covers` over all of them, at the cost of the depth
    of the path instead of the number of writes.
    """

    __slots__ = ("_pulses", "_subtrees")

    def __init__(self) -> None:
        self._pulses: dict[str, T] = {}
        self._subtrees: dict[str, T] = {}

    def add(self, kind: int, path: str, owner: T) -> None:
        """Note a write that is older than all noted before."""
        if kind == MessageType.DELETE_PATH:
            self._subtrees.setdefault(path, owner)
        elif kind in _PULSE_WRITES:
            self._pulses.setdefault(path, owner)

    def owner_covering(self, kind: int, path: str) -> T | None:
        """Return the owner of a noted write that leaves nothing of this one, or None."""
        if not is_write(kind):
            return None
        if kind in _PULSE_WRITES and path in self._pulses:
            return self._pulses[path]
        if self._subtrees:
            for root in _at_or_above(path):
                if root in self._subtrees:
                    return self._subtrees[root]
        return None


def without_superseded(calls: Sequence[Call]) -> deque[Call]:
    """Tie each write that may have been done already to a newer one that undoes it.

    Parameters
    ----------
    calls
        Those that are to be sent, oldest first.

    Returns
    -------
    deque of Call
        The same, without the writes that follow others from now on.
    """
    newer: NewerWrites[Call] = NewerWrites()
    kept: deque[Call] = deque()
    for call in reversed(calls):
        owner = newer.owner_covering(call.kind, call.path) if call.was_sent else None
        if owner is None:
            newer.add(call.kind, call.path, call)
            kept.appendleft(call)
        else:
            owner.followers.append(call)
    return kept


def _at_or_above(path: str) -> list[str]:
    """Give every root for which `at_or_below(path, root)` holds."""
    roots = [path]
    for position, letter in enumerate(path):
        if letter == "/":
            roots.append(path[:position])  # "/a" of "/a/b", and "" which stands for everything
            roots.append(path[: position + 1])  # "/" of "/a", "/a/" of "/a/b"
    return roots
