"""Writes to several Pacemakers: pulses, each to one server, and the deletes that servers missed.

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
after the end of the process.
"""

import logging
import threading
import time
from asyncio import TimerHandle
from collections import Counter
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
from stormkeeper.pacemaker.client.event_loop import ClientEventLoop
from stormkeeper.pacemaker.client.pacemaker_client import PacemakerClient
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse

log = logging.getLogger("stormkeeper.pacemaker.client.pool")

#: Seconds: a worker that beats every three seconds learns of a failure in time.
WRITE_DEADLINE: Final = 5.0

#: Seconds on average: a restarted server has its writers back within half a minute, and a dead
#: server gets few checks.
LOOK_SECS: Final = 15.0

#: Longest interval between checks, in `LOOK_SECS`.
MOST_PATIENCE: Final = 16.0

#: A failure within so many `LOOK_SECS` of a return doubles the interval.
_SOON: Final = 4.0

#: Seconds between attempts to send missed deletes without requests.
REPEAT_SECS: Final = 3.0

#: Needs the same permission as a pulse and stores nothing.
_CHECK: Final = Message(MessageType.CREATE_PATH, path="/")


class WriterPlacement:
    """Chooses a writer's server; not thread-safe."""

    def __init__(self, servers: Sequence[Address], random: Random) -> None:
        self._order = random.sample(servers, len(servers))
        self._random = random
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
            soon = now < self._returned_at + _SOON * LOOK_SECS
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
        self._check_at = now + self._patience * LOOK_SECS * self._random.uniform(0.5, 1.5)


@dataclass(eq=False, slots=True)
class MissedDelete:
    """A delete of a path and all below, which a server did not get."""

    path: str
    under_way: bool = False


class MissedDeletes:
    """Remembers and repeats deletes that servers missed; thread-safe."""

    def __init__(self, clients: Mapping[Address, PacemakerClient], loop: ClientEventLoop) -> None:
        self._clients = clients
        self._loop = loop
        self._lock = threading.Lock()
        #: Oldest first.
        self._missed: dict[Address, list[MissedDelete]] = {}
        # Used by the loop's thread only.
        self._timer: TimerHandle | None = None

    def remember(self, server: Address, path: str) -> None:
        with self._lock:
            # The delete of a path includes older deletes below.
            missed = self._missed.get(server, [])
            kept = [one for one in missed if not _at_or_below(one.path, path)]
            self._missed[server] = [*kept, MissedDelete(path)]
        try:
            self._loop.start()
        except PacemakerUnavailableError as error:
            log.warning("missed deletes wait for the next read: %s", error)
        self._loop.call(self._set_timer)

    def cancel(self, server: Address, path: str) -> None:
        """Cancel deletes that would delete a pulse on the way."""
        if server in self._missed:
            with self._lock:
                self._keep(server, lambda missed: not _at_or_below(path, missed.path))

    def send(self, client: PacemakerClient) -> None:
        """Send the deletes that a server missed, without waiting for answers."""
        if client.address not in self._missed:
            return
        with self._lock:
            waiting = [one for one in self._missed.get(client.address, []) if not one.under_way]
            for missed in waiting:
                missed.under_way = True
        for missed in waiting:
            try:
                future = client.submit(Message(MessageType.DELETE_PATH, path=missed.path))
            except StormkeeperError:  # closed, or no thread is available now
                missed.under_way = False
            else:
                future.add_done_callback(partial(self._settle, client.address, missed))

    def _settle(self, server: Address, missed: MissedDelete, future: Future[Message]) -> None:
        error = future.exception()
        if error is None:
            log.info("the missed delete of %s is done at %s", missed.path, server)
        elif isinstance(error, NotAuthorizedError):
            log.warning("the missed delete of %s failed: %s", missed.path, error)
        else:
            missed.under_way = False
            return
        with self._lock:
            self._keep(server, lambda other: other is not missed)

    def _keep(self, server: Address, wanted: Callable[[MissedDelete], bool]) -> None:
        kept = [missed for missed in self._missed.get(server, []) if wanted(missed)]
        if kept:
            self._missed[server] = kept
        else:
            self._missed.pop(server, None)

    # --- in the loop's thread

    def _set_timer(self) -> None:
        if self._timer is None and self._missed:
            self._timer = self._loop.start().call_later(REPEAT_SECS, self._repeat)

    def _repeat(self) -> None:
        self._timer = None
        try:
            for server in list(self._missed):
                if self._clients[server].retry_in() == 0.0:
                    self.send(self._clients[server])
        finally:
            self._set_timer()


def _at_or_below(path: str, root: str) -> bool:
    """Compare by whole segments."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")


class PulseSender:
    """Sends each pulse to one of several Pacemakers; thread-safe."""

    def __init__(
        self,
        clients: Mapping[Address, PacemakerClient],
        missed_deletes: MissedDeletes,
        *,
        random: Random,
        retries: int,
    ) -> None:
        self._clients = clients
        self._missed_deletes = missed_deletes
        self._retries = retries
        self.placement = WriterPlacement(list(clients), random)
        #: Guards the placement and `_left`.
        self._lock = threading.Lock()
        #: The server that writes left when they returned home. The next pulse closes the
        #: connection, as an earlier pulse may still be under way.
        self._left: Address | None = None

    def send_pulse(self, path: str, details: bytes) -> None:
        """Store a pulse on a server.

        Raises `NotAuthorizedError` if a server refused and no other took the pulse, and
        `PacemakerUnavailableError` if no server took the pulse in time.
        """
        message = Message(MessageType.SEND_PULSE, pulse=Pulse(path, details))
        started = time.monotonic()
        end = started + WRITE_DEADLINE
        self._check_home(started)
        begun_with = self.placement.current
        failed: dict[Address, StormkeeperError] = {}
        refused: dict[Address, NotAuthorizedError] = {}
        tries: Counter[Address] = Counter()
        while tries.total() <= self._retries:
            address = self._choose_server(refused, tries)
            if address is None or (refused and address in failed):
                break  # no server is left that might take it
            client = self._clients[address]
            left = end - time.monotonic()
            if client.retry_in() >= left:
                break
            tries[address] += 1
            self._missed_deletes.send(client)
            self._missed_deletes.cancel(address, path)
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
                self._stay_at(address, begun_with, {**failed, **refused})
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
            f" {time.monotonic() - started:.1f} s: {reasons}"
        )

    def _choose_server(
        self, refused: Mapping[Address, object], tries: Counter[Address]
    ) -> Address | None:
        """Choose by back-off, tries of this pulse (a hanging server costs a long try) and order."""
        with self._lock:
            order = self.placement.order()
        ranks = {
            address: (self._clients[address].retry_in(), tries[address])
            for address in order
            if address not in refused
        }
        return min(ranks, key=ranks.__getitem__, default=None)

    def _stay_at(
        self, server: Address, begun_with: Address, errors: Mapping[Address, StormkeeperError]
    ) -> None:
        with self._lock:
            if not self.placement.record_taken(server, begun_with, time.monotonic()):
                return
        reason = errors.get(begun_with) or self._clients[begun_with].last_failure
        log.warning("Pulses go to %s now, not to %s: %s", server, begun_with, reason)

    def _check_home(self, now: float) -> None:
        with self._lock:
            home = self.placement.pop_due_check(now)
            left, self._left = self._left, None
        if left is not None:
            self._clients[left].close_idle()
        if home is None or self._clients[home].retry_in():
            return
        try:
            future = self._clients[home].submit(_CHECK)
        except PacemakerUnavailableError:
            return  # closed, or no thread is available now
        future.add_done_callback(self._on_home_checked)

    def _on_home_checked(self, future: Future[Message]) -> None:
        # Runs in the loop's thread, which must not wait.
        if future.exception() is not None:
            return
        with self._lock:
            left = self.placement.return_home(time.monotonic())
            home = self.placement.home
            self._left = left or self._left
        if left is not None:
            log.info("Pulses go to %s again, as it answers, and not to %s", home, left)
