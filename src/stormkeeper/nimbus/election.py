"""How a Nimbus comes to lead, and stops: what follows from what happens, without I/O.

An `Election` is told events and says instructions. It knows no store, no thread and no clock. The
queue is that of `stormkeeper.state.leader_lock`: whose lock is the first may lead. The rules:

- **Every decision follows from a look** at the whole queue, which sees all that was written before
  it began. Whatever may have changed the queue, be it a watch, a lost answer, a broken connection
  or a write of our own, is followed by another look. No answer to a write is relied on.
- **Nobody queues behind himself.** A lock is taken only after a look that has none of ours, and
  while nothing else is asked of the store. What became of a lock whose answer was lost is in the
  next look: it is adopted, or deleted if it is not wanted. So is a lock of a former session.
- **A look is also what proves contact.** One that begins at `t` and has an answer was heard by the
  store at `t` or later, so the session lives until `t` plus its timeout. Who leads has a lease of
  two thirds of that. A connection that breaks ends the lease at once; only a look that begins
  after it is back, and has our lock as the first, begins another one.
- **Nobody queues, and nobody leads, without the code** of every topology that some Nimbus alive
  has. It is checked before a lock is taken, and again when it is the first. Who lacks some gives
  the lock back, fetches, and takes another. What was fetched three times in vain is done without:
  it must not keep the cluster from having a leader.
- **A Nimbus that cannot write to its disk** neither queues nor leads while one that can write is in
  the queue. So the cluster has a leader that takes uploads if any Nimbus can, and a leader anyway.
- **A leader checks again** when its code or its disk changes, and gives the lock back as above.
- **One thing at a time** is asked of the store, and one of the Nimbus; each has one answer.

The writes of a leader do not depend on any of this: each checks the lock itself, in the store
(`stormkeeper.state.leader_lock`). The lease is for what a process does without writing.
"""

from collections import Counter
from typing import Final

from stormkeeper.nimbus.election_events import (
    Check,
    Checked,
    CheckFailed,
    ConnectionChanged,
    Depose,
    Elect,
    Event,
    Fetch,
    Fetched,
    GiveUp,
    Instruction,
    Look,
    NimbusAnswer,
    NimbusInstruction,
    NotTold,
    QueueChanged,
    Recheck,
    Saw,
    Stand,
    StandAside,
    StoreAnswer,
    StoreFailed,
    StoreInstruction,
    Take,
    Told,
    Withdraw,
    Wrote,
)
from stormkeeper.state.leader_lock import Lock

NEVER: Final = float("inf")

#: How much of the session's timeout a lease lasts. A server that follows tells the one that leads
#: whom it has heard of every half tick, and a timeout is at least two ticks: so if it dies, the end
#: may come a quarter of the timeout early. The rest is for clocks that differ in speed.
LEASE_SHARE: Final = 2 / 3

#: How often the queue is looked at while nothing happens: so often in a session's timeout, which
#: renews the lease, but at least every few seconds, in case an event was missed.
LOOKS_PER_TIMEOUT: Final = 6
LOOK_SECS: Final = 5.0

#: How long a Nimbus may be the first and not lead, in seconds: then the next one has its turn.
HESITATION_SECS: Final = 30.0

#: How often the code of a topology is fetched in vain, and the pause after each time, in seconds.
FETCHES: Final = 3
FETCH_PAUSE_SECS: Final = 5.0

#: How long until it is looked again whether topologies of Java's are still there, in seconds.
FOREIGN_PAUSE_SECS: Final = 10.0

#: How long until a Nimbus whose disk fails looks again whether it is needed, in seconds.
DISK_PAUSE_SECS: Final = 10.0

#: How long a Nimbus that failed to lead leaves it to others, in seconds.
UNFIT_PAUSE_SECS: Final = 10.0

#: Pauses after failures, in seconds: the first, each twice the one before, and the longest.
FIRST_PAUSE_SECS: Final = 0.25
LONGEST_PAUSE_SECS: Final = 10.0


class _Pause:
    """The time until which nothing is tried again, and failures in a row."""

    def __init__(self) -> None:
        self.until = -NEVER
        self._failures = 0

    def failed(self, now: float) -> None:
        secs = FIRST_PAUSE_SECS * 2.0 ** min(self._failures, 30)
        self.until = now + min(secs, LONGEST_PAUSE_SECS)
        self._failures += 1

    def succeeded(self) -> None:
        self._failures = 0


class Election:
    """The state machine of one Nimbus. Not safe for threads.

    Events go into `handle`, which returns instructions. Of each kind, those of the store and those
    of the Nimbus, at most one is under way. Its answer is the next event of that kind.
    """

    def __init__(self) -> None:
        #: When `TimePassed` is due at the latest; never in the past.
        self.alarm = NEVER
        #: Whether to lead is wanted, and from when on.
        self._is_wanted = False
        self._not_before = -NEVER
        self._is_connected = False
        #: The queue as it was seen last, and whether it may be another one by now.
        self._line: tuple[Lock, ...] = ()
        self._is_outdated = True
        self._look_at = -NEVER
        #: The session that looked last, and all that did: their locks are ours.
        self._session_id: int | None = None
        self._session_ids: set[int] = set()
        #: Whether a lock of ours may be there: one was taken since a look had none.
        self._may_have_locks = False
        #: The lock that we queue by, as it was seen last.
        self._lock: Lock | None = None
        #: Until when it is the first for certain; and since when it is, without a pause.
        self._lease_until = -NEVER
        self._first_since = NEVER
        #: Whether a check has found nothing that keeps us from taking a lock, and the lock by which
        #: nothing keeps us from leading.
        self._is_fit = False
        self._accepted: Lock | None = None
        #: Whether the last check may not hold any more, and whether one is repeated for that.
        self._is_doubted = False
        self._is_repeated = False
        #: Whether the last check has left the lead to one that can write.
        self._yielded = False
        self._to_fetch: frozenset[str] = frozenset()
        #: How often the code of each topology was fetched in vain.
        self._in_vain: Counter[str] = Counter()
        #: Whether the Nimbus was told that it leads.
        self._is_told = False
        #: What is under way, and whether the connection has changed since the store was asked.
        self._of_store: StoreInstruction | None = None
        self._of_nimbus: NimbusInstruction | None = None
        self._asked_at = -NEVER
        self._is_void = False
        self._store_pause = _Pause()
        self._nimbus_pause = _Pause()

    @property
    def lock(self) -> Lock | None:
        """The lock that is in the queue, as far as is known."""
        return self._lock

    @property
    def is_over(self) -> bool:
        """Whether, after `Withdraw`, the Nimbus is done with it."""
        return not self._is_told and self._of_nimbus is None

    @property
    def is_out(self) -> bool:
        """Whether, after `Withdraw`, no lock is left in the queue."""
        return self._of_store is None and not self._may_have_locks

    def leads(self, now: float) -> bool:
        """Return whether this Nimbus leads, at `now`."""
        return self._lock is not None and self._lock == self._accepted and now < self._lease_until

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take note of what happened, by `now`, and return what is to be done, in any order."""
        match event:
            case Stand():
                self._is_wanted, self._not_before = True, -NEVER
            case StandAside(secs):
                self._is_wanted, self._not_before = True, now + secs
                self._step_back()
            case Withdraw():
                self._is_wanted = False
                self._step_back()
            case ConnectionChanged(is_connected):
                self._is_connected = is_connected
                self._is_outdated, self._is_void = True, True
                self._lease_until = -NEVER
            case QueueChanged():
                self._is_outdated = True
            case Recheck():
                self._doubt()
            case Saw() | Wrote() | StoreFailed():
                self._store_answered(event, now)
            case Checked() | CheckFailed() | Fetched() | Told() | NotTold():
                self._nimbus_answered(event, now)
        if self._hesitates(now):
            self._step_back()
        instructions: list[Instruction] = []
        if self._of_store is None and (of_store := self._next_of_store(now)):
            self._of_store, self._is_void = of_store, False
            instructions.append(of_store)
        if self._of_nimbus is None and (of_nimbus := self._next_of_nimbus(now)):
            self._of_nimbus, self._asked_at = of_nimbus, now
            if isinstance(of_nimbus, Check):
                self._is_doubted, self._is_repeated = False, not self._is_unchecked()
            instructions.append(of_nimbus)
        self.alarm = self._next_alarm(now)
        return instructions

    # --- what happens ----------------------------------------------------------------------------

    def _store_answered(self, answer: StoreAnswer, now: float) -> None:
        self._of_store = None
        if isinstance(answer, StoreFailed):
            self._store_pause.failed(now)
            self._is_outdated = True
            return
        self._store_pause.succeeded()
        if isinstance(answer, Wrote):
            self._is_outdated = True
        elif not self._is_void:
            self._see(answer, now)

    def _see(self, seen: Saw, now: float) -> None:
        self._line, self._session_id = seen.line, seen.session_id
        self._session_ids.add(seen.session_id)
        self._look_at = now + min(LOOK_SECS, seen.timeout_secs / LOOKS_PER_TIMEOUT)
        ours = self._ours()
        self._may_have_locks = bool(ours)
        former, self._lock = self._lock, None
        if self._stands(now) and self._is_fit:
            usable = (each for each in ours if each.session_id == seen.session_id)
            self._lock = next((each for each in usable if not each.revoked), None)
        if former is not None and self._lock != former:
            # It is gone, or was revoked: whoever queues anew looks first what code there is by now.
            self._step_back()
        if not self._is_first():
            self._lease_until = -NEVER
            return
        if now >= self._lease_until:
            self._first_since = now
        self._lease_until = seen.began_at + LEASE_SHARE * seen.timeout_secs

    def _doubt(self) -> None:
        self._is_doubted = True
        if self._yielded:  # the disk may be mended
            self._nimbus_pause.until = -NEVER

    def _nimbus_answered(self, answer: NimbusAnswer, now: float) -> None:
        asked, self._of_nimbus = self._of_nimbus, None
        match answer, asked:
            case Checked(), Check(lock):
                if self._stands(now):
                    self._judge(answer, lock, now)
            case CheckFailed(), Check(_) if self._is_repeated and self._is_fit:
                # What was found before holds until something else is known.
                self._nimbus_pause.failed(now)
                self._is_doubted = True
            case Fetched(), Fetch(storm_ids):
                self._in_vain.update(storm_ids)
                self._to_fetch = frozenset()
            case Told(), _:
                self._is_told = isinstance(asked, Elect)
                self._nimbus_pause.succeeded()
            case NotTold(is_unfit), _:
                self._nimbus_pause.failed(now)
                self._is_outdated = True
                if is_unfit:
                    self._nimbus_pause.until = now + UNFIT_PAUSE_SECS
                    self._step_back()
            case _:
                self._nimbus_pause.failed(now)
                self._step_back()

    def _judge(self, found: Checked, lock: Lock | None, now: float) -> None:
        """Decide whether a lock may be taken, or led by if there is one."""
        lacking = found.lacking
        self._in_vain = Counter({each: self._in_vain[each] for each in lacking})
        self._to_fetch = frozenset(each for each in lacking if self._in_vain[each] < FETCHES)
        self._yielded = found.yields and not found.foreign
        if found.foreign or found.yields:
            self._to_fetch = frozenset()
            pause = FOREIGN_PAUSE_SECS if found.foreign else DISK_PAUSE_SECS
            self._nimbus_pause.until = now + pause
            self._step_back()
        elif self._to_fetch:
            if any(self._in_vain[each] for each in self._to_fetch):
                self._nimbus_pause.until = now + FETCH_PAUSE_SECS
            self._step_back()
        else:
            self._nimbus_pause.succeeded()
            self._is_fit = True
            self._accepted = lock

    def _step_back(self) -> None:
        """Lead by no lock that there is, and take none before the next check."""
        self._is_fit = False
        self._lock = None
        self._lease_until = -NEVER

    # --- what follows ----------------------------------------------------------------------------

    def _next_of_store(self, now: float) -> StoreInstruction | None:
        would_queue = self._stands(now) and self._is_fit
        if not self._is_connected or now < self._store_pause.until:
            return None
        if not would_queue and not self._may_have_locks:
            return None
        if self._is_outdated or now >= self._look_at:
            # What happens from now on may be in what it sees, or not.
            self._is_outdated = False
            return Look()
        for lock in self._ours():
            if lock != self._lock:
                return GiveUp(lock)
        if self._lock is None and would_queue:
            self._may_have_locks = True
            return Take()
        return None

    def _next_of_nimbus(self, now: float) -> NimbusInstruction | None:
        leads = self.leads(now)
        if self._is_told and not leads:
            return Depose()
        if now < self._nimbus_pause.until or not self._stands(now):
            return None
        if self._to_fetch:
            return Fetch(self._to_fetch)
        if self._is_connected and (self._is_unchecked() or self._is_doubted):
            return Check(self._lock if self._is_first() else None)
        if leads and not self._is_told and self._lock is not None:
            return Elect(self._lock)
        return None

    def _next_alarm(self, now: float) -> float:
        """Return when something may be due; what is past has been seen to."""
        times = (
            self._not_before,
            self._look_at,
            self._lease_until,
            self._store_pause.until,
            self._nimbus_pause.until,
        )
        return min((time for time in times if time > now), default=NEVER)

    def _stands(self, now: float) -> bool:
        return self._is_wanted and now >= self._not_before

    def _ours(self) -> list[Lock]:
        """Return our locks in the queue, those of former sessions among them."""
        return [lock for lock in self._line if lock.session_id in self._session_ids]

    def _is_first(self) -> bool:
        return self._lock is not None and self._line[0] == self._lock

    def _is_unchecked(self) -> bool:
        """Return whether a check has to come before the next step to the lead."""
        return not self._is_fit or (self._is_first() and self._accepted != self._lock)

    def _hesitates(self, now: float) -> bool:
        """Return whether we are the first for long, and the Nimbus has not come to lead."""
        # To begin to lead may take as long as it likes.
        is_beginning = isinstance(self._of_nimbus, Elect)
        acts = self._is_told and self._of_nimbus is None
        # A leader that checks again has led until then.
        since = max(self._first_since, self._asked_at) if self._is_told else self._first_since
        is_late = since + HESITATION_SECS <= now < self._lease_until
        return self._is_first() and is_late and not is_beginning and not acts
