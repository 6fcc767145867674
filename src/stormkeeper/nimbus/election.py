"""The leader election as a state machine without I/O: events in, instructions out.

The Nimbus whose lock is first in the queue of `stormkeeper.state.leader_lock` may lead. The rules:

- **Every decision follows a look** at the whole queue, also after the answer to a write.
- **A Nimbus never queues behind itself**: it takes a lock only after a look without a lock of its
  own. A lock whose answer was lost, or of a former session, is adopted or deleted.
- **A look proves contact.** The session of a look that began at `t` lives until `t` plus its
  timeout; the lease is two thirds of that. A broken connection ends the lease.
- **A Nimbus without the code** that some live Nimbus has neither queues nor leads. It checks before
  it takes a lock, when the lock is first, and when its code or disk changes; it fetches code
  without a lock. After three failed fetches it leads all the same: the cluster must have a leader.
- **A Nimbus that cannot write to its disk** leaves the lead to another in the queue.

Writes are safe without the election: each checks the leader's lock in its transaction.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from stormkeeper.daemon.periodic import FailureStreak
from stormkeeper.state.leader_lock import Lock

# Events


@dataclass(frozen=True, slots=True)
class Stand:
    """Want to lead from now on."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Stop wanting to lead."""


@dataclass(frozen=True, slots=True)
class ConnectionChanged:
    """The connection to the store, or the session, changed."""

    is_connected: bool


@dataclass(frozen=True, slots=True)
class QueueChanged:
    """The queue may have changed."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """The code or the disk of this Nimbus changed."""


@dataclass(frozen=True, slots=True)
class Looked:
    """Answer to `Look`, with the session that looked."""

    queue: tuple[Lock, ...]
    session_id: int
    timeout_secs: float
    began_at: float


@dataclass(frozen=True, slots=True)
class Wrote:
    """Answer to `Take` or `GiveUp`."""


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """A `Look` failed, or a `Take` or `GiveUp`, which may have been carried out."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Answer to `Check`."""

    #: Topologies whose code only other Nimbuses have.
    lacking: frozenset[str] = frozenset()
    #: Java's topologies, which must not be taken over.
    foreign: frozenset[str] = frozenset()
    #: Whether this Nimbus cannot write to its disk, and another in the queue can.
    yields: bool = False


@dataclass(frozen=True, slots=True)
class CheckFailed:
    """A `Check` failed."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Answer to `Fetch`; the next `Check` shows the success."""


@dataclass(frozen=True, slots=True)
class Notified:
    """Answer to `Elect` or `Depose`."""


@dataclass(frozen=True, slots=True)
class NotifyFailed:
    """The Nimbus could not begin to lead."""

    #: Whether another Nimbus must lead; else the election tries again.
    is_unfit: bool


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The alarm is due."""


StoreAnswer = Looked | Wrote | StoreFailed
NimbusAnswer = Checked | CheckFailed | Fetched | Notified | NotifyFailed
Event = (
    Stand
    | Withdraw
    | ConnectionChanged
    | QueueChanged
    | Recheck
    | StoreAnswer
    | NimbusAnswer
    | TimePassed
)

# Instructions


@dataclass(frozen=True, slots=True)
class Look:
    """Read the queue, and watch our lock and the lock before."""


@dataclass(frozen=True, slots=True)
class Take:
    """Take a lock."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Delete a lock of ours."""

    lock: Lock


@dataclass(frozen=True, slots=True)
class Check:
    """Check the code, the disk and the topologies."""

    #: The first lock if it is ours: a good answer permits leading by it.
    lock: Lock | None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Copy topologies' code from other Nimbuses."""

    storm_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Elect:
    """Let the Nimbus lead by a lock."""

    lock: Lock


@dataclass(frozen=True, slots=True)
class Depose:
    """Let the Nimbus stop leading, for good or for now."""


StoreInstruction = Look | Take | GiveUp
NimbusInstruction = Check | Fetch | Elect | Depose
Instruction = StoreInstruction | NimbusInstruction


NEVER: Final = float("inf")

#: Share of the session's timeout that a lease lasts. ZooKeeper's followers report sessions every
#: half tick, and a timeout is at least two ticks: when a follower dies, the session may end a
#: quarter of the timeout early. The rest is for clocks that differ in speed.
LEASE_SHARE: Final = 2 / 3

#: Looks per session timeout, to renew the lease, and their longest interval.
LOOKS_PER_TIMEOUT: Final = 6
LOOK_SECS: Final = 5.0

#: Seconds that a Nimbus may be first without leading, before the next has its turn.
HESITATION_SECS: Final = 30.0

#: Failed fetches after which a Nimbus leads without a topology's code; pause after each.
FETCHES: Final = 3
FETCH_PAUSE_SECS: Final = 5.0

#: Pauses after a check (Java's topologies, failing disk), a failure to lead, and other failures.
FOREIGN_PAUSE_SECS: Final = 10.0
DISK_PAUSE_SECS: Final = 10.0
UNFIT_PAUSE_SECS: Final = 10.0
FIRST_PAUSE_SECS: Final = 0.25
LONGEST_PAUSE_SECS: Final = 10.0


class _Pause:
    def __init__(self) -> None:
        self.until = -NEVER
        self._streak = FailureStreak(FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS)

    def failed(self, now: float) -> None:
        self.until = now + self._streak.record()

    def succeeded(self) -> None:
        self._streak.reset()


class Election:
    """The state machine of a Nimbus. Not safe for threads.

    At most one instruction to the store and one to the Nimbus is open; the next event of that kind
    is the answer.
    """

    def __init__(self) -> None:
        #: When `TimePassed` is due at the latest; never in the past.
        self.alarm = NEVER
        self._is_wanted = False
        self._is_connected = False
        self._queue: tuple[Lock, ...] = ()
        self._is_outdated = True
        self._look_at = -NEVER
        #: The last look's session; all sessions that looked, whose locks are ours.
        self._session_id: int | None = None
        self._session_ids: set[int] = set()
        self._may_have_locks = False
        self._lock: Lock | None = None
        #: Until when our lock is certainly first, and since when.
        self._lease_until = -NEVER
        self._first_since = NEVER
        #: Whether a check permits taking a lock, and the lock by which it permits leading.
        self._is_fit = False
        self._accepted: Lock | None = None
        #: Whether the last check may be outdated; whether the open check repeats a good one.
        self._is_doubted = False
        self._is_repeated = False
        self._has_yielded = False
        self._to_fetch: frozenset[str] = frozenset()
        self._failed_fetches: Counter[str] = Counter()
        self._is_elected = False
        #: Open instructions; whether the connection changed since the store's was given.
        self._store_request: StoreInstruction | None = None
        self._nimbus_request: NimbusInstruction | None = None
        self._asked_at = -NEVER
        self._is_look_void = False
        self._store_pause = _Pause()
        self._nimbus_pause = _Pause()

    @property
    def lock(self) -> Lock | None:
        return self._lock

    @property
    def is_over(self) -> bool:
        """Whether, after `Withdraw`, the Nimbus does not lead and has no open request."""
        return not self._is_elected and self._nimbus_request is None

    @property
    def is_out(self) -> bool:
        """Whether, after `Withdraw`, no lock is left in the queue."""
        return self._store_request is None and not self._may_have_locks

    def leads(self, now: float) -> bool:
        return self._lock is not None and self._lock == self._accepted and now < self._lease_until

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Return the instructions that follow from an event, in any order."""
        match event:
            case Stand():
                self._is_wanted = True
            case Withdraw():
                self._is_wanted = False
                self._step_back()
            case ConnectionChanged(is_connected):
                self._is_connected = is_connected
                self._is_outdated, self._is_look_void = True, True
                self._lease_until = -NEVER
            case QueueChanged():
                self._is_outdated = True
            case Recheck():
                self._doubt()
            case Looked() | Wrote() | StoreFailed():
                self._store_answered(event, now)
            case Checked() | CheckFailed() | Fetched() | Notified() | NotifyFailed():
                self._nimbus_answered(event, now)
        if self._hesitates(now):
            self._step_back()
        instructions: list[Instruction] = []
        if self._store_request is None and (store_request := self._next_store_request(now)):
            self._store_request, self._is_look_void = store_request, False
            instructions.append(store_request)
        if self._nimbus_request is None and (nimbus_request := self._next_nimbus_request(now)):
            self._nimbus_request, self._asked_at = nimbus_request, now
            if isinstance(nimbus_request, Check):
                self._is_doubted, self._is_repeated = False, not self._is_unchecked()
            instructions.append(nimbus_request)
        self.alarm = self._next_alarm(now)
        return instructions

    def _store_answered(self, answer: StoreAnswer, now: float) -> None:
        self._store_request = None
        if isinstance(answer, StoreFailed):
            self._store_pause.failed(now)
            self._is_outdated = True
            return
        self._store_pause.succeeded()
        if isinstance(answer, Wrote):
            self._is_outdated = True
        elif not self._is_look_void:
            self._record_look(answer, now)

    def _record_look(self, seen: Looked, now: float) -> None:
        self._queue, self._session_id = seen.queue, seen.session_id
        self._session_ids.add(seen.session_id)
        self._look_at = now + min(LOOK_SECS, seen.timeout_secs / LOOKS_PER_TIMEOUT)
        ours = self._our_locks()
        self._may_have_locks = bool(ours)
        former, self._lock = self._lock, None
        if self._is_wanted and self._is_fit:
            usable = (each for each in ours if each.session_id == seen.session_id)
            self._lock = next((each for each in usable if not each.revoked), None)
        if former is not None and self._lock != former:
            # Gone or revoked: the code is checked again before queueing anew.
            self._step_back()
        if not self._is_first():
            self._lease_until = -NEVER
            return
        if now >= self._lease_until:
            self._first_since = now
        self._lease_until = seen.began_at + LEASE_SHARE * seen.timeout_secs

    def _doubt(self) -> None:
        self._is_doubted = True
        if self._has_yielded:  # the disk may be mended
            self._nimbus_pause.until = -NEVER

    def _nimbus_answered(self, answer: NimbusAnswer, now: float) -> None:
        asked, self._nimbus_request = self._nimbus_request, None
        match answer, asked:
            case Checked(), Check(lock):
                if self._is_wanted:
                    self._record_check(answer, lock, now)
            case CheckFailed(), Check(_) if self._is_repeated and self._is_fit:
                # The earlier check holds until a later one succeeds.
                self._nimbus_pause.failed(now)
                self._is_doubted = True
            case Fetched(), Fetch(storm_ids):
                self._failed_fetches.update(storm_ids)
                self._to_fetch = frozenset()
            case Notified(), _:
                self._is_elected = isinstance(asked, Elect)
                self._nimbus_pause.succeeded()
            case NotifyFailed(is_unfit), _:
                self._nimbus_pause.failed(now)
                self._is_outdated = True
                if is_unfit:
                    self._nimbus_pause.until = now + UNFIT_PAUSE_SECS
                    self._step_back()
            case _:
                self._nimbus_pause.failed(now)
                self._step_back()

    def _record_check(self, found: Checked, lock: Lock | None, now: float) -> None:
        lacking = found.lacking
        self._failed_fetches = Counter({each: self._failed_fetches[each] for each in lacking})
        self._to_fetch = frozenset(each for each in lacking if self._failed_fetches[each] < FETCHES)
        self._has_yielded = found.yields and not found.foreign
        if found.foreign or found.yields:
            self._to_fetch = frozenset()
            pause = FOREIGN_PAUSE_SECS if found.foreign else DISK_PAUSE_SECS
            self._nimbus_pause.until = now + pause
            self._step_back()
        elif self._to_fetch:
            if any(self._failed_fetches[each] for each in self._to_fetch):
                self._nimbus_pause.until = now + FETCH_PAUSE_SECS
            self._step_back()
        else:
            self._nimbus_pause.succeeded()
            self._is_fit = True
            self._accepted = lock

    def _step_back(self) -> None:
        self._is_fit = False
        self._lock = None
        self._lease_until = -NEVER

    def _next_store_request(self, now: float) -> StoreInstruction | None:
        would_queue = self._is_wanted and self._is_fit
        if not self._is_connected or now < self._store_pause.until:
            return None
        if not would_queue and not self._may_have_locks:
            return None
        if self._is_outdated or now >= self._look_at:
            # The look may miss changes from now on.
            self._is_outdated = False
            return Look()
        for lock in self._our_locks():
            if lock != self._lock:
                return GiveUp(lock)
        if self._lock is None and would_queue:
            self._may_have_locks = True
            return Take()
        return None

    def _next_nimbus_request(self, now: float) -> NimbusInstruction | None:
        leads = self.leads(now)
        if self._is_elected and not leads:
            return Depose()
        if now < self._nimbus_pause.until or not self._is_wanted:
            return None
        if self._to_fetch:
            return Fetch(self._to_fetch)
        if self._is_connected and (self._is_unchecked() or self._is_doubted):
            return Check(self._lock if self._is_first() else None)
        if leads and not self._is_elected and self._lock is not None:
            return Elect(self._lock)
        return None

    def _next_alarm(self, now: float) -> float:
        times = (
            self._look_at,
            self._lease_until,
            self._store_pause.until,
            self._nimbus_pause.until,
        )
        return min((time for time in times if time > now), default=NEVER)

    def _our_locks(self) -> list[Lock]:
        return [lock for lock in self._queue if lock.session_id in self._session_ids]

    def _is_first(self) -> bool:
        return self._lock is not None and self._queue[0] == self._lock

    def _is_unchecked(self) -> bool:
        return not self._is_fit or (self._is_first() and self._accepted != self._lock)

    def _hesitates(self, now: float) -> bool:
        # Beginning to lead may take any time.
        is_beginning = isinstance(self._nimbus_request, Elect)
        acts = self._is_elected and self._nimbus_request is None
        # A leader that checks again has led until then.
        since = max(self._first_since, self._asked_at) if self._is_elected else self._first_since
        is_late = since + HESITATION_SECS <= now < self._lease_until
        return self._is_first() and is_late and not is_beginning and not acts
