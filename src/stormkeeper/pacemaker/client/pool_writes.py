"""Pulses of a writer to several Pacemakers, each pulse to one server.

Writers spread evenly:

- Each writer draws a random home and a random order of the other servers.
- A pulse goes to the current server, then to the next servers in the order, until the deadline. The
  server that takes the pulse becomes the current server.
- A writer away from home checks at random intervals whether the home answers, and then returns. If
  the home soon fails again, the interval doubles.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
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


class PulseSender:
    """Sends each pulse to one of several Pacemakers; thread-safe."""

    def __init__(
        self,
        clients: Mapping[Address, PacemakerClient],
        *,
        random: Random,
        retries: int,
    ) -> None:
        self._clients = clients
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
