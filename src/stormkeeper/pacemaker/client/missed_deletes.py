"""The deletes that a server did not get, made good as soon as it is back.

A killed topology leaves nothing behind on any Pacemaker, even if one could not be reached when the
topology was killed. The newest deletes of each server are remembered. A pulse that we send to the
server cancels the missed deletes that would delete it; what else lies below their paths stays until
it expires. So does what a forgotten delete missed, because there were too many or the process has
ended: ``pacemaker.pulse.ttl.secs`` removes the rest.

`Repair.make_good` is called before a request to a server. The missed deletes then go ahead of the
request on the same connection, so no read shows what was deleted. If nobody asks a server, a thread
sends them from time to time. It lives only while a delete is missed. A failure with one server,
even a defect of ours, neither ends it nor keeps it from the other servers.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import NotAuthorizedError, StormkeeperError
from stormkeeper.pacemaker.client.single import PacemakerClient
from stormkeeper.pacemaker.wire import Message, MessageType

log = logging.getLogger(__name__)

#: Deletes that are remembered of one server: more topologies than are killed during any outage.
LIMIT: Final = 1_000

#: Seconds before the first attempt of the thread, and between two attempts at most.
FIRST_SECS: Final = 1.0
LONGEST_SECS: Final = 30.0

#: How much longer the thread waits each time.
_GROWTH: Final = 1.5

#: Seconds that `close` waits for the thread, which does nothing that takes long.
_JOIN_SECS: Final = 5.0


@dataclass(eq=False, slots=True)
class MissedDelete:
    """A delete of a path, with all below it, that a server did not get."""

    path: str
    #: Whether it is being sent now.
    under_way: bool = False


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

    def remember(self, server: Address, path: str) -> MissedDelete | None:
        """Note that `server` missed a delete; return the oldest one if that had to give way."""
        with self._lock:
            # A delete of what lies above leaves nothing of an older one.
            kept = [
                missed
                for missed in self._missed.get(server, [])
                if not _at_or_below(missed.path, path)
            ]
            kept.append(MissedDelete(path))
            forgotten = kept.pop(0) if len(kept) > self._limit else None
            self._missed[server] = kept
            return forgotten

    def pulse_sent(self, server: Address, path: str) -> None:
        """Note that a pulse of `path` is on its way to `server`."""
        if self._missed:
            with self._lock:
                self._keep(server, lambda missed: not _at_or_below(path, missed.path))

    def take(self, server: Address) -> list[MissedDelete]:
        """Return the deletes to be sent to `server` now; they are marked as under way."""
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


class Repair:
    """Remembers missed deletes and makes them good. Safe for many threads.

    Parameters
    ----------
    clients
        The client of each server.
    name
        Of the thread.
    first_secs
        Seconds before the thread's first attempt.
    """

    def __init__(
        self,
        clients: Mapping[Address, PacemakerClient],
        *,
        name: str,
        first_secs: float = FIRST_SECS,
    ) -> None:
        self._clients = clients
        self._name = name
        self._first_secs = first_secs
        self._missed = MissedDeletes()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        #: How often the thread met a defect of Stormkeeper.
        self.defects = 0
        #: Set when there is a reason not to sleep on.
        self._news = threading.Event()

    def remember(self, address: Address, path: str) -> None:
        """Note that a server missed a delete."""
        forgotten = self._missed.remember(address, path)
        if forgotten is not None:
            log.warning(
                "%s missed too many deletes: that of %s is not made good any more",
                address,
                forgotten.path,
            )
        with self._lock:
            if self._closed:
                return
            self._news.set()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    # No more threads, for now: the next delete that is missed asks again.
                    log.warning("no deletes are made good yet, but ahead of reads: %s", error)
                else:
                    self._thread = thread

    def pulse_sent(self, address: Address, path: str) -> None:
        """Note that a pulse of `path` is about to be sent to a server."""
        self._missed.pulse_sent(address, path)

    def make_good(self, client: PacemakerClient) -> None:
        """Send a server the deletes that it missed, without waiting for the answers."""
        left = deque(self._missed.take(client.address))
        try:
            while left:
                missed = left[0]
                future = client.submit(Message(MessageType.DELETE_PATH, path=missed.path))
                left.popleft()
                future.add_done_callback(partial(self._settle, client.address, missed))
        except StormkeeperError:  # the client was closed
            pass
        finally:
            # These were not sent, whatever the reason: they are tried again later.
            for missed in left:
                self._missed.settle(client.address, missed, done=False)

    def close(self) -> None:
        """End the thread. What is missed still stays so."""
        with self._lock:
            self._closed = True
            self._news.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECS)

    def _settle(self, address: Address, missed: MissedDelete, future: Future[Message]) -> None:
        error = future.exception()
        refused = isinstance(error, NotAuthorizedError)
        self._missed.settle(address, missed, done=error is None or refused)
        if error is None:
            log.info("the delete of %s is made good at %s", missed.path, address)
        elif refused:
            log.warning("the delete of %s is not made good: %s", missed.path, error)

    def _run(self) -> None:
        delay = self._first_secs
        while True:
            with self._lock:
                if self._closed or not self._missed.servers():
                    self._thread = None
                    return
                if self._news.is_set():
                    self._news.clear()
                    delay = self._first_secs
            if self._news.wait(delay):
                continue
            delay = min(_GROWTH * delay, LONGEST_SECS)
            for address in self._missed.servers():
                try:
                    client = self._clients[address]
                    if client.retry_in() == 0.0:
                        self.make_good(client)
                except Exception:
                    # The thread must not end: servers that nobody asks have no other.
                    self.defects += 1
                    if self.defects & (self.defects - 1) == 0:
                        log.exception(
                            "what %s missed is not made good yet, by a defect of Stormkeeper (%s"
                            " so far)",
                            address,
                            self.defects,
                        )


def _at_or_below(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it, by whole segments."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")
