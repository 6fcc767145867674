"""Elects the leader among Nimbuses, by the queue of locks in the cluster state.

`stormkeeper.nimbus.election` decides; here are the threads and the calls. An `Elector` has two
threads:

- *nimbus election* asks the store: it looks at the queue, takes locks and gives them up. Each of
  its calls ends by the store's own deadline. It wakes by itself, whatever is or is not told.
- *nimbus reign* asks the Nimbus: it checks and fetches code, and calls `elected` and `deposed`. It
  may be held up for as long as the Nimbus likes: the lease ends, the lock is kept or given up, and
  `is_leader` is right all the same.

The election itself is decided under a mutex, by whichever thread something happens on. So no
thread that is held up keeps it from hearing that a connection is gone.
"""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from stormkeeper import paths
from stormkeeper.errors import NoLeaderError
from stormkeeper.nimbus.election import Election
from stormkeeper.nimbus.election_events import (
    ConnectionChanged,
    Event,
    GiveUp,
    Instruction,
    Look,
    QueueChanged,
    Recheck,
    Stand,
    StandAside,
    Take,
    TimePassed,
    Withdraw,
)
from stormkeeper.nimbus.queueing import Queueing
from stormkeeper.nimbus.readiness import TopologyCode
from stormkeeper.nimbus.reigning import Deposed, Elected, Reigning
from stormkeeper.paths import NimbusId
from stormkeeper.state import leader_lock
from stormkeeper.state.storage import ConnectionState, EventType
from stormkeeper.state.storm.cluster import StormClusterState

log = logging.getLogger(__name__)

#: How long a thread sleeps at most, in seconds: nothing that was missed is missed for longer.
BACKSTOP_SECS: Final = 5.0

#: How long `Elector.close` waits for the lock to be given up and for `deposed` to return.
CLOSE_SECS: Final = 10.0

#: And for its threads where ZooKeeper is not reached: a call ends by its own deadline, and whatever
#: it would write ends with the session.
UNREACHED_SECS: Final = 1.0


class Elector:
    """One Nimbus among those that would lead. Safe for many threads; `close` it.

    Parameters
    ----------
    storm
        The session that it leads in, and that its locks end with. It stays open.
    nimbus
        The addresses by which others reach this Nimbus.
    code
        The Nimbus's `stormkeeper.blobs.sync.BlobSync`, started: without topologies' code nobody
        leads. Closing it ends a fetch that is under way.
    elected
        Called with a `stormkeeper.state.storm.cluster.LeaderClusterState` when this Nimbus has come
        to lead. If it raises, `deposed` is called and the lock given back, so that another Nimbus
        may lead.
    deposed
        Called when it does not lead any more, or not for now, as the connection is gone. Then the
        object that `elected` got is disconnected. Its writes may have been refused before.
    disk_fault
        Returns why this Nimbus's disk takes no files, None where it does. A Nimbus that cannot
        write leaves the lead to one that can. Call `recheck` when the answer changes.
    may_take_over
        Whether to lead a root whose topologies a Java Nimbus has led (`--take-over`). They are
        marked as ours then.
    clock
        Seconds, monotonic.

    Notes
    -----
    `elected` and `deposed` are called on the thread *nimbus reign* alone, one at a time and in
    turn: each `elected` is followed by one `deposed` before the next. They may block. While one of
    them does, the other is due later, and `is_leader` says how it is. Until `deposed` returns this
    Nimbus does not lead again; it keeps nobody else from it for more than half a minute.

    After an interruption that the session has survived, `elected` is called again with an object
    of the same epoch (``leader.fence.epoch``): what is counted within a reign goes on.
    """

    def __init__(
        self,
        storm: StormClusterState,
        nimbus: NimbusId,
        code: TopologyCode,
        *,
        elected: Elected,
        deposed: Deposed,
        disk_fault: Callable[[], str | None] = lambda: None,
        may_take_over: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storm = storm
        self._state = storm.state
        self._clock = clock
        self._election = Election()
        # Guards the election, and what is in the hands.
        self._changed = threading.Condition()
        self._closed = False
        queueing = Queueing(self._state, nimbus, clock)
        reigning = Reigning(
            storm,
            code,
            elected=elected,
            deposed=deposed,
            may_take_over=may_take_over,
            nimbus=nimbus,
            disk_fault=disk_fault,
        )
        self._of_store = _Hand(queueing.carry_out)
        self._of_nimbus = _Hand(reigning.carry_out)
        self._registration = self._state.register(self._on_event)
        self._state.add_listener(self._on_connection)
        self._on_connection(self._state.connection)
        self._threads = [
            threading.Thread(target=self._run, args=[hand], name=name, daemon=True)
            for name, hand in (
                ("nimbus election", self._of_store),
                ("nimbus reign", self._of_nimbus),
            )
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def add_to_leader_lock_queue(self) -> None:
        """Queue for leadership, once the code of all topologies is here; returns at once."""
        self._handle(Stand())

    def remove_from_leader_lock_queue(self) -> None:
        """Leave the queue; returns at once, and `is_leader` is False from then on.

        If this Nimbus led, its lock is given up as soon as the store takes that, and another one
        leads.
        """
        self._handle(Withdraw())

    def quit_election_for(self, delay_secs: float) -> None:
        """Leave the queue, and queue again after a while; returns at once."""
        self._handle(StandAside(delay_secs))

    def recheck(self) -> None:
        """Check the code and the disk again, as they have changed; returns at once.

        A leader without code that another Nimbus has, or without a disk that takes files, gives
        the lead back.
        """
        self._handle(Recheck())

    @property
    def is_leader(self) -> bool:
        """Whether this Nimbus leads now: a leader that cannot reach the store does not.

        Between asking this and doing something, that may change. What is written is written by a
        leader all the same, or refused.
        """
        with self._changed:
            lock = self._election.lock
            # Whatever the threads have heard of so far.
            return (
                lock is not None
                and self._election.leads(self._clock())
                and self._state.connection is ConnectionState.CONNECTED
                and self._state.session_id == lock.session_id
            )

    def leader_address(self) -> NimbusId:
        """Return the addresses of the Nimbus that leads, or will in a moment.

        Raises
        ------
        NoLeaderError
            There is none.
        StateUnavailableError
            The store was not reached.
        """
        line = leader_lock.queue(self._state)
        if not line or line[0].revoked:
            raise NoLeaderError("no Nimbus leads at present: ask again in a moment")
        nimbus = line[0].nimbus
        if nimbus is None:
            raise NoLeaderError(
                f"no Nimbus leads: {line[0].holder.decode(errors='replace')!r} has the lock"
                f" {line[0].path}; ask again when it is gone"
            )
        return nimbus

    def all_nimbus_addresses(self) -> list[NimbusId]:
        """Return the addresses of all Nimbuses that are there, the leader's among them.

        Raises
        ------
        StateUnavailableError
            The store was not reached.
        """
        addresses = [
            NimbusId(each.host, each.port, each.tlsPort or 0) for each in self._storm.nimbuses()
        ]
        for lock in leader_lock.queue(self._state)[:1]:
            known = {address[:2] for address in addresses}
            if lock.nimbus is not None and lock.nimbus[:2] not in known:
                addresses.append(lock.nimbus)
        return addresses

    def close(self) -> None:
        """Leave the queue, call `deposed` if this Nimbus led, and end the threads.

        It takes ten seconds at most, and about one if the store is not reached: then the lock goes
        with the session, so close that too. A callback may call this, and is not waited for then.
        """
        deadline = self._clock() + CLOSE_SECS
        self._handle(Withdraw())
        is_own = threading.current_thread() in self._threads
        with self._changed:
            self._changed.wait_for(lambda: self._is_left(is_own), CLOSE_SECS)
            self._closed = True
            self._changed.notify_all()
        self._state.unregister(self._registration)
        self._state.remove_listener(self._on_connection)
        is_reached = self._state.connection is ConnectionState.CONNECTED
        if not is_reached:
            deadline = min(deadline, self._clock() + UNREACHED_SECS)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - self._clock()))
                if thread.is_alive() and is_reached:
                    log.warning("the thread %s still runs after the election was left", thread.name)

    def _is_left(self, is_own: bool) -> bool:
        """Return whether nothing is left to be done; `is_own`: on a thread that does it."""
        can_wait = self._state.connection is not ConnectionState.CONNECTED
        is_out = self._election.is_out or can_wait
        return self._closed or (is_out and (self._election.is_over or is_own))

    # The store's callback thread calls these two.

    def _on_connection(self, state: ConnectionState) -> None:
        self._handle(ConnectionChanged(state is ConnectionState.CONNECTED))

    def _on_event(self, _event: EventType, path: str) -> None:
        # What was missed while the connection was away is looked for when it is back.
        if paths.parent(path) == paths.LEADER_LOCK:
            self._handle(QueueChanged())

    def _handle(self, event: Event) -> None:
        """Have the election decide, and put what is to be done into the hands."""
        with self._changed:
            if self._closed:
                return
            for instruction in self._election.handle(event, self._clock()):
                is_of_store = isinstance(instruction, Look | Take | GiveUp)
                hand = self._of_store if is_of_store else self._of_nimbus
                hand.instruction = instruction
            self._changed.notify_all()

    def _run(self, hand: "_Hand") -> None:
        while (instruction := self._next(hand)) is not None:
            self._handle(hand.carry_out(instruction))

    def _next(self, hand: "_Hand") -> Instruction | None:
        """Wait for an instruction; None at the end."""
        with self._changed:
            while not self._closed:
                instruction, hand.instruction = hand.instruction, None
                if instruction is not None:
                    return instruction
                until = min(self._election.alarm - self._clock(), BACKSTOP_SECS)
                self._changed.wait(max(0.0, until))
                if self._clock() >= self._election.alarm:
                    self._handle(TimePassed())
        return None


class _Hand:
    """Carries out one instruction at a time."""

    def __init__(self, carry_out: Callable[[Any], Event]) -> None:
        self.carry_out = carry_out
        #: What is to be done next.
        self.instruction: Instruction | None = None
