"""Makes good the deletes that servers missed, as soon as they are back.

Whoever is about to ask a server something calls `make_good` first: the deletes go ahead of it on
the same connection, so what is read is already without what was deleted. For servers that nobody
asks, a thread tries now and then; it lives only while something is missed, and nothing that goes
wrong with one server, not even a defect of ours, ends it or keeps it from the others.
"""

import logging
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import NotAuthorizedError, StormkeeperError
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.missed_deletes import MissedDelete, MissedDeletes
from stormkeeper.pacemaker.wire import Message, MessageType

log = logging.getLogger(__name__)

#: Seconds before the first attempt of the thread, and between two attempts at most.
FIRST_SECS: Final = 1.0
LONGEST_SECS: Final = 30.0

#: How much longer the thread waits each time.
_GROWTH: Final = 1.5

#: Seconds that `close` waits for the thread, which does nothing that takes long.
_JOIN_SECS: Final = 5.0


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
        #: How often the thread failed of what it should never fail of.
        self.defects = 0
        #: Set when there is a reason not to sleep on.
        self._news = threading.Event()

    def remember(self, address: Address, kind: MessageType, path: str) -> None:
        """Take note that a server missed a delete."""
        forgotten = self._missed.remember(address, kind, path)
        if forgotten is not None:
            log.warning(
                "%s missed too many deletes: %s %s is not made good any more",
                address,
                forgotten.kind.name,
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
        """Take note that a pulse of `path` is about to be sent to a server."""
        self._missed.pulse_sent(address, path)

    def make_good(self, client: PacemakerClient) -> None:
        """Send a server what it missed, without waiting, ahead of whatever is sent to it next."""
        left = deque(self._missed.take(client.address))
        try:
            while left:
                missed = left[0]
                future = client.submit(Message(missed.kind, path=missed.path))
                left.popleft()
                future.add_done_callback(partial(self._settle, client.address, missed))
        except StormkeeperError:  # the client was closed
            pass
        finally:
            # Whatever it failed of: they are nobody's now, and so to be tried again.
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
            log.info("%s %s is made good at %s", missed.kind.name, missed.path, address)
        elif refused:
            log.warning("%s %s is not made good: %s", missed.kind.name, missed.path, error)

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
                    # Without this thread nothing would be made good any more where nobody asks.
                    self.defects += 1
                    if self.defects & (self.defects - 1) == 0:
                        log.exception(
                            "what %s missed is not made good yet, by a defect of Stormkeeper (%s"
                            " so far)",
                            address,
                            self.defects,
                        )
