"""Sends each pulse to one of several servers, and to another when that one fails.

Pacemakers share nothing, and nobody tells a writer where to write. These rules keep the writers of
a cluster evenly spread:

- Each writer draws a *home* at random, and also the order of the other servers. When a server dies,
  its writers therefore spread over all that are left.
- A pulse goes to the current server. If that one fails, the next servers in the order are tried.
  The server that takes the pulse becomes the current one. All this takes the deadline at most.
- A writer that is away from home checks now and then whether home answers, and goes back when it
  does. Pulses do not wait for this. After an outage each server has the writers that it had before.
- The delay before each check is random. The writers of a server that is back therefore return one
  by one, over one and a half times `LOOK_SECS`.
- If home fails again soon after the return, the delay is twice as long each time.

Moving harms nothing: of a path's pulses on two servers the one received last counts.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
)
from stormkeeper.pacemaker.client.pacemaker_client import PacemakerClient
from stormkeeper.pacemaker.wire import Message, MessageType, Pulse

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


class DeleteRepair:
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


#: The writer is a part of the pool, and logs in its name.
log = logging.getLogger("stormkeeper.pacemaker.client.pool")

#: Seconds between two looks, on average: some beats, so that a server that only restarts has its
#: writers back within half a minute, and a dead one is asked for by each of them seldom.
LOOK_SECS: Final = 15.0

#: How much longer the looks at a home that fails again and again are apart, at most.
MOST_PATIENCE: Final = 16.0

#: A failure within that many `look_secs` after a return counts as one soon after it.
_SOON: Final = 4.0

#: Checks whether a server takes writes. It stores nothing, and needs the same rights as a pulse.
_LOOK: Final = Message(MessageType.CREATE_PATH, path="/")


class Placement:
    """Decides where one client writes to, without I/O. Not safe for threads.

    Parameters
    ----------
    servers
        All of them.
    random
        Source of the choice, and of the delays.
    home
        In place of a home drawn at random.
    look_secs
        Seconds between two looks whether home is back, on average.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        random: Random,
        *,
        home: Address | None = None,
        look_secs: float = LOOK_SECS,
    ) -> None:
        order = random.sample(servers, len(servers))
        if home is not None:
            order.remove(home)
            order.insert(0, home)
        self._order = order
        self._random = random
        self._look_secs = look_secs
        self._patience = 1.0
        self._look_at = float("inf")
        self._returned_at = float("-inf")
        #: Where writes go to at present.
        self.current = self.home

    @property
    def home(self) -> Address:
        """Where writes go to when nothing is wrong."""
        return self._order[0]

    def order(self) -> list[Address]:
        """Return all servers in the order in which a write is offered to them."""
        first = self._order.index(self.current)
        return self._order[first:] + self._order[:first]

    def took(self, server: Address, instead_of: Address, now: float) -> bool:
        """Note that `server` took a pulse that was offered to `instead_of` first.

        Returns
        -------
        Whether this changes the current server.
        """
        if server == self.current or instead_of != self.current:
            return False  # another thread has noted it already
        self.current = server
        if instead_of == self.home:
            soon = now < self._returned_at + _SOON * self._look_secs
            self._patience = min(2.0 * self._patience, MOST_PATIENCE) if soon else 1.0
            self._plan_look(now)
        return True

    def look_due(self, now: float) -> Address | None:
        """Return home if it is time to check it, and plan the next check; else None."""
        if self.current == self.home or now < self._look_at:
            return None
        self._plan_look(now)
        return self.home

    def answered(self, now: float) -> Address | None:
        """Note that home answered; return the server that was current if that changes it."""
        if self.current == self.home:
            return None
        left, self.current = self.current, self.home
        self._returned_at = now
        return left

    def _plan_look(self, now: float) -> None:
        self._look_at = now + self._patience * self._look_secs * self._random.uniform(0.5, 1.5)


class PulseWriter:
    """Writes each pulse to one server; safe for many threads.

    Parameters
    ----------
    clients
        The client of each server.
    placement
        Decides which. It belongs to the writer from now on.
    repair
        Hears of every pulse before it is sent, and sends missed deletes ahead of it.
    deadline
        Seconds after which a write has failed.
    retries
        Tries of a write after the first.
    clock
        Monotonic seconds.
    """

    def __init__(
        self,
        clients: Mapping[Address, PacemakerClient],
        placement: Placement,
        repair: DeleteRepair,
        *,
        deadline: float,
        retries: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._placement = placement
        self._repair = repair
        self._deadline = deadline
        self._retries = retries
        self._clock = clock
        self._lock = threading.Lock()
        #: The server that was left for home. Its connection is closed with the next pulse: a pulse
        #: may have been under way on it when home answered.
        self._left: Address | None = None

    @property
    def server(self) -> Address:
        """The server that writes go to at present."""
        return self._placement.current

    def send_pulse(self, path: str, details: bytes) -> None:
        """Store `details` as the newest pulse of `path` on one server.

        Raises
        ------
        NotAuthorizedError
            If a server refused it and no other took it.
        PacemakerUnavailableError
            If none took it in time.
        """
        message = Message(MessageType.SEND_PULSE, pulse=Pulse(path, details))
        started = self._clock()
        end = started + self._deadline
        self._look(started)
        begun_with = self._placement.current
        failed: dict[Address, StormkeeperError] = {}
        refused: dict[Address, NotAuthorizedError] = {}
        tries: Counter[Address] = Counter()
        while tries.total() <= self._retries:
            address = self._next(refused, tries)
            if address is None or (refused and address in failed):
                break  # no server is left that might take it
            client = self._clients[address]
            left = end - self._clock()
            if client.retry_in() >= left:
                break
            tries[address] += 1
            self._repair.make_good(client)
            self._repair.pulse_sent(address, path)
            try:
                future = client.submit(
                    message, deadline=left, started=started, tries=tries[address]
                )
                client.answer(future, left)
            except PacemakerClosedError:
                raise
            except NotAuthorizedError as error:
                refused[address] = error
            except (PacemakerUnavailableError, RemoteProtocolError) as error:
                failed[address] = error
            else:
                self._stay_with(address, begun_with, {**failed, **refused})
                return
        if refused:
            raise next(iter(refused.values()))
        reasons = "; ".join(
            str(failed.get(address) or f"{address} failed just now ({client.last_failure})")
            for address, client in self._clients.items()
        )
        counted = "1 try" if tries.total() == 1 else f"{tries.total()} tries"
        raise PacemakerUnavailableError(
            f"no Pacemaker took the write in {counted} and"
            f" {self._clock() - started:.1f} s: {reasons}"
        )

    def _next(self, refused: Mapping[Address, object], tries: Counter[Address]) -> Address | None:
        """Choose the server that may be tried soonest.

        Of several, choose the one that was tried least for this pulse, so that a server that hangs
        comes after the others: each of its tries is a long one. Then the order decides.
        """
        with self._lock:
            order = self._placement.order()
        ranks = {
            address: (self._clients[address].retry_in(), tries[address])
            for address in order
            if address not in refused
        }
        return min(ranks, key=ranks.__getitem__, default=None)

    def _stay_with(
        self, server: Address, begun_with: Address, errors: Mapping[Address, StormkeeperError]
    ) -> None:
        with self._lock:
            if not self._placement.took(server, begun_with, self._clock()):
                return
        reason = errors.get(begun_with) or self._clients[begun_with].last_failure
        log.warning("Pulses go to %s now, not to %s: %s", server, begun_with, reason)

    def _look(self, now: float) -> None:
        """Check whether home is back, if it is time. This does not wait for the answer."""
        with self._lock:
            home = self._placement.look_due(now)
            left, self._left = self._left, None
        if left is not None:
            self._clients[left].rest()
        if home is None or self._clients[home].retry_in():
            return
        try:
            future = self._clients[home].submit(_LOOK)
        except PacemakerUnavailableError:
            return  # it is closed, and the pulse will fail; or the system has no thread for it now
        future.add_done_callback(self._looked)

    def _looked(self, future: Future[Message]) -> None:
        # This runs in the client's thread, which must not wait.
        if future.exception() is not None:
            return
        with self._lock:
            left = self._placement.answered(self._clock())
            home = self._placement.home
            self._left = left or self._left
        if left is not None:
            log.info("Pulses go to %s again, as it answers, and not to %s", home, left)


def _at_or_below(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it, by whole segments."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")
