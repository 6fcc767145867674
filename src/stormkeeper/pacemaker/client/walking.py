"""Reading all pulses below a path of a Java Pacemaker, which has no request for that; without I/O.

It is asked for the pulse of each path, and for the names below those that have none. Not below a
pulse, too: Storm stores nothing there, and each such question costs a Java Pacemaker a look at
every key that it holds. What is listed is not always there: a path is taken for a regular
expression, and asked for the children of ``/wc-1-17`` it also lists what follows that text in
``/wc-1-1700000000``. Such a name has neither a pulse nor names below it, and leads nowhere. Below a
name that is no regular expression nobody can look: Storm's own Nimbus would end the server with it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from stormkeeper.pacemaker.wire import Message, MessageType, Pulse
from stormkeeper.pacemaker.wire.extensions import listing_ends_java

#: Questions that are asked at once: as many as may be under way on a connection.
_WIDTH: Final = 100

#: Levels that are followed below a path. Storm has two below ``/workerbeats``, and ours take no
#: path of more segments. The bound is for servers that list a path below itself.
_DEPTH: Final = 16


class Walk:
    """A walk down from a path.

    Parameters
    ----------
    path
        Where it begins; its own pulse is read too, and what lies below it in any case.
    """

    def __init__(self, path: str) -> None:
        self._root = path
        self._seen = {path}
        #: Paths whose pulses are to be asked for, with their depth below the root.
        self._paths: deque[tuple[str, int]] = deque([(path, 0)])
        #: Those without one, whose children are to be asked for.
        self._parents: deque[tuple[str, int]] = deque()
        self._asked: list[tuple[str, int]] = []
        self._asks_for_pulses = True

    def questions(self) -> list[Message]:
        """Return what is to be asked now, all at once; nothing when the walk is over."""
        self._asks_for_pulses = bool(self._paths)
        waiting = self._paths or self._parents
        self._asked = [waiting.popleft() for _ in range(min(_WIDTH, len(waiting)))]
        kind = (
            MessageType.GET_PULSE if self._asks_for_pulses else MessageType.GET_ALL_NODES_FOR_PATH
        )
        return [Message(kind, path=path) for path, _ in self._asked]

    def answered(self, answers: Sequence[Message]) -> list[Pulse]:
        """Take the answers to the questions, in their order; return the pulses among them."""
        found: list[Pulse] = []
        for (path, depth), answer in zip(self._asked, answers, strict=True):
            if not self._asks_for_pulses:
                self._take_names(path, depth, answer.nodes or [])
                continue
            pulse = answer.pulse
            if pulse is not None and pulse.details is not None:
                found.append(Pulse(path, pulse.details))
                if path != self._root:
                    continue
            if path != self._root and listing_ends_java(path):
                continue
            if depth < _DEPTH:
                self._parents.append((path, depth))
        return found

    def _take_names(self, parent: str, depth: int, names: Sequence[str]) -> None:
        for name in names:
            child = f"{parent.rstrip('/')}/{name}"
            if name and child not in self._seen:
                self._seen.add(child)
                self._paths.append((child, depth + 1))
