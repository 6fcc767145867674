"""The deletes that a server did not get, to be made good when it is back.

A topology that is killed leaves nothing behind on any Pacemaker, even on one that was out of reach
when it was killed. What is remembered is bounded: of each server the newest deletes. A pulse that
we send to a server after it missed a delete ends that delete there, since to make it good would
delete what is newer; what else lies below the path stays until it expires. So does what a delete
missed that is forgotten, as there were too many or the process that remembered has ended:
``pacemaker.pulse.ttl.secs`` takes the rest.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.pacemaker.wire import MessageType

#: Deletes that are remembered of one server: more topologies than are killed during any outage.
LIMIT: Final = 1_000


@dataclass(eq=False, slots=True)
class MissedDelete:
    """A DELETE_PATH or DELETE_PULSE_ID that a server did not get."""

    kind: MessageType
    path: str
    #: Whether somebody is making it good now.
    under_way: bool = False

    def is_in(self, newer: "MissedDelete") -> bool:
        """Whether nothing is left of it after a newer delete."""
        if newer.kind == MessageType.DELETE_PATH:
            return _at_or_below(self.path, newer.path)
        return self.kind == newer.kind and self.path == newer.path

    def is_ended_by_pulse(self, path: str) -> bool:
        """Whether a pulse of `path` is among what it deletes."""
        if self.kind == MessageType.DELETE_PATH:
            return _at_or_below(path, self.path)
        return path == self.path


class MissedDeletes:
    """What each server missed, oldest first. Safe for many threads.

    Parameters
    ----------
    limit
        Deletes that are remembered of one server.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        #: Servers that missed nothing are not in it.
        self._missed: dict[Address, list[MissedDelete]] = {}

    def servers(self) -> list[Address]:
        """Return the servers that missed something."""
        with self._lock:
            return list(self._missed)

    def remember(self, server: Address, kind: MessageType, path: str) -> MissedDelete | None:
        """Note that `server` missed a delete; return the oldest one if that had to give way."""
        with self._lock:
            newest = MissedDelete(kind, path)
            kept = [missed for missed in self._missed.get(server, []) if not missed.is_in(newest)]
            kept.append(newest)
            forgotten = kept.pop(0) if len(kept) > self._limit else None
            self._missed[server] = kept
            return forgotten

    def pulse_sent(self, server: Address, path: str) -> None:
        """Note that a pulse of `path` is on its way to `server`."""
        if self._missed:
            with self._lock:
                self._keep(server, lambda missed: not missed.is_ended_by_pulse(path))

    def take(self, server: Address) -> list[MissedDelete]:
        """Return what nobody is making good at `server`; from now on somebody is."""
        if not self._missed:
            return []
        with self._lock:
            taken = [missed for missed in self._missed.get(server, []) if not missed.under_way]
            for missed in taken:
                missed.under_way = True
            return taken

    def settle(self, server: Address, missed: MissedDelete, *, done: bool) -> None:
        """Note how an attempt ended: forget the delete, or leave it for another attempt."""
        with self._lock:
            missed.under_way = False
            if done:
                self._keep(server, lambda other: other is not missed)

    def _keep(self, server: Address, wanted: Callable[[MissedDelete], bool]) -> None:
        kept = [missed for missed in self._missed.get(server, []) if wanted(missed)]
        if kept:
            self._missed[server] = kept
        else:
            self._missed.pop(server, None)


def _at_or_below(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it, by whole segments."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")
