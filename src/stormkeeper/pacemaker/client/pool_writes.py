"""Writes to several Pacemakers: the choice of a writer's server, and missed deletes.

Writers spread evenly:

- Each writer draws a random home and a random order of the other servers.
- A pulse goes to the current server, then to the next servers in the order, until the deadline. The
  server that takes the pulse becomes the current server.
- A writer away from home checks at random intervals whether the home answers, and then returns. If
  the home soon fails again, the interval doubles.

Of two copies of a path, the one received last counts, so moving is harmless.

A missed delete is sent ahead of the next request to the server, on the same connection, so that no
read shows deleted pulses; without requests a timer sends the delete. A pulse cancels the missed
deletes of its path; other paths below stay until they expire (``pacemaker.pulse.ttl.secs``), as
after too many missed deletes or the end of the process.
"""

import logging
import threading
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import NotAuthorizedError, PacemakerUnavailableError, StormkeeperError
from stormkeeper.pacemaker.client.event_loop import ClientEventLoop
from stormkeeper.pacemaker.client.pacemaker_client import PacemakerClient
from stormkeeper.pacemaker.wire import Message, MessageType

log = logging.getLogger("stormkeeper.pacemaker.client.pool")

#: Per server: more topologies than are killed during an outage.
LIMIT: Final = 1_000

# Seconds between attempts without requests.
FIRST_SECS: Final = 1.0
LONGEST_SECS: Final = 30.0
_GROWTH: Final = 1.5

#: Seconds on average: a restarted server has its writers back within half a minute, and a dead
#: server gets few checks.
LOOK_SECS: Final = 15.0

#: Longest interval between checks, in `look_secs`.
MOST_PATIENCE: Final = 16.0

#: A failure within so many `look_secs` of a return doubles the interval.
_SOON: Final = 4.0


class WriterPlacement:
    """Chooses a writer's server, by default with a random home; not thread-safe."""

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
        self._check_at = float("inf")
        self._returned_at = float("-inf")
        self.current = self.home

    @property
    def home(self) -> Address:
        return self._order[0]

    def order(self) -> list[Address]:
        """Return all servers, the current first."""
        first = self._order.index(self.current)
        return self._order[first:] + self._order[:first]

    def record_taken(self, server: Address, instead_of: Address, now: float) -> bool:
        """Record a pulse first offered to `instead_of`; return whether `current` changed."""
        if server == self.current or instead_of != self.current:
            return False  # another thread changed it before
        self.current = server
        if instead_of == self.home:
            soon = now < self._returned_at + _SOON * self._look_secs
            self._patience = min(2.0 * self._patience, MOST_PATIENCE) if soon else 1.0
            self._plan_check(now)
        return True

    def pop_due_check(self, now: float) -> Address | None:
        """Return the home if a check is due, and plan the next check."""
        if self.current == self.home or now < self._check_at:
            return None
        self._plan_check(now)
        return self.home

    def return_home(self, now: float) -> Address | None:
        """Return to the home; return the server that was left, if any."""
        if self.current == self.home:
            return None
        left, self.current = self.current, self.home
        self._returned_at = now
        return left

    def _plan_check(self, now: float) -> None:
        self._check_at = now + self._patience * self._look_secs * self._random.uniform(0.5, 1.5)


@dataclass(eq=False, slots=True)
class MissedDelete:
    """A delete of a path and all below, which a server did not get."""

    path: str
    under_way: bool = False


class MissedDeletes:
    """Missed deletes by server, oldest first; thread-safe."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._missed: dict[Address, list[MissedDelete]] = {}

    def servers(self) -> list[Address]:
        with self._lock:
            return list(self._missed)

    def remember(self, server: Address, path: str) -> MissedDelete | None:
        """Remember a delete; return the oldest delete if dropped for lack of room."""
        with self._lock:
            # The delete of a path includes older deletes below.
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
        """Cancel deletes that would delete a pulse on the way."""
        if self._missed:
            with self._lock:
                self._keep(server, lambda missed: not _at_or_below(path, missed.path))

    def take(self, server: Address) -> list[MissedDelete]:
        """Return the deletes to send now, marked as under way."""
        if not self._missed:
            return []
        with self._lock:
            taken = [missed for missed in self._missed.get(server, []) if not missed.under_way]
            for missed in taken:
                missed.under_way = True
            return taken

    def settle(self, server: Address, missed: MissedDelete, *, done: bool) -> None:
        """Forget a finished delete, or keep the delete for another attempt."""
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
    """Remembers and repeats missed deletes; thread-safe."""

    def __init__(
        self,
        clients: Mapping[Address, PacemakerClient],
        loop: ClientEventLoop,
        *,
        first_secs: float = FIRST_SECS,
    ) -> None:
        self._clients = clients
        self._loop = loop
        self._first_secs = first_secs
        self._missed = MissedDeletes()
        self.defects = 0
        # Used by the loop's thread only.
        self._delay = first_secs
        self._timer: TimerHandle | None = None

    def remember(self, address: Address, path: str) -> None:
        forgotten = self._missed.remember(address, path)
        if forgotten is not None:
            log.warning(
                "%s missed too many deletes: the delete of %s is dropped", address, forgotten.path
            )
        try:
            self._loop.start()
        except PacemakerUnavailableError as error:
            log.warning("missed deletes wait for the next read: %s", error)
        self._loop.call(self._begin)

    def pulse_sent(self, address: Address, path: str) -> None:
        self._missed.pulse_sent(address, path)

    def send_missed_deletes(self, client: PacemakerClient) -> None:
        """Send missed deletes, without waiting for answers."""
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
            for missed in left:
                self._missed.settle(client.address, missed, done=False)

    def _settle(self, address: Address, missed: MissedDelete, future: Future[Message]) -> None:
        error = future.exception()
        refused = isinstance(error, NotAuthorizedError)
        self._missed.settle(address, missed, done=error is None or refused)
        if error is None:
            log.info("the missed delete of %s is done at %s", missed.path, address)
        elif refused:
            log.warning("the missed delete of %s failed: %s", missed.path, error)

    # --- in the loop's thread

    def _begin(self) -> None:
        self._delay = self._first_secs
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._missed.servers():
            self._timer = self._loop.start().call_later(self._delay, self._repeat)

    def _repeat(self) -> None:
        self._delay = min(_GROWTH * self._delay, LONGEST_SECS)
        for address in self._missed.servers():
            try:
                client = self._clients[address]
                if client.retry_in() == 0.0:
                    self.send_missed_deletes(client)
            except Exception:
                # Other servers need the timer.
                self.defects += 1
                if self.defects & (self.defects - 1) == 0:
                    log.exception(
                        "the deletes that %s missed wait: an internal error (%s so far)",
                        address,
                        self.defects,
                    )
        self._set_timer()


def _at_or_below(path: str, root: str) -> bool:
    """Compare by whole segments."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")
