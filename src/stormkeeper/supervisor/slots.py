"""The state machine of a slot: events with their time go in, instructions come out.

- A slot has at most one worker: the next is started when no process of the last is left.
- A start is recorded first, so that the next supervisor looks for its worker.
- A worker with an old assignment, without a sign of life, or twice over its memory limit, is ended.
- The next assignment is prepared while the last worker ends.
- Every wait has a timeout; `SlotMachine.deadline` is the next.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from math import inf

from stormkeeper.daemon.children import how_it_ended
from stormkeeper.supervisor import slot_model
from stormkeeper.supervisor.process_table import ProcessId
from stormkeeper.supervisor.slot_model import (
    Event,
    Instruction,
    Restart,
    SlotAssignment,
    SlotOutcome,
    SlotRecord,
    SlotTimeouts,
    WorkerEvent,
)
from stormkeeper.topology.faults import UNSEEN_END

_TOO_LARGE = 2

#: Exit code of a worker that has not crashed and starts again at once, as between runs of a plain
#: script's queries.
AGAIN = 4

#: Count only if the worker itself has written them.
WRITTEN_CODES = frozenset((0, AGAIN))

_MORE = "give it more, or let it do less at a time"


class SlotState(Enum):
    """The state of a slot, as shown to users.

    `SlotMachine` does not tell `WAITING_FOR_ENVIRONMENT` from `WAITING_FOR_CODE`.
    """

    EMPTY = "empty"
    WAITING_FOR_CODE = "waiting for the code"
    WAITING_FOR_ENVIRONMENT = "waiting for the environment"
    BACKING_OFF = "waiting before the next start"
    WAITING_FOR_WORKER_START = "waiting for the worker to start"
    RUNNING = "running"
    ENDING = "ending the worker"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The status of a slot."""

    state: SlotState
    assignment: SlotAssignment | None
    worker_id: str | None
    crashes: int
    #: Why the last worker crashed or is being ended, or what prevents the next start.
    reason: str
    crashing_since: int = 0


class _Preparation:
    """The preparation of an assignment: code and environment.

    A failed or late preparation is retried after longer and longer pauses.
    """

    def __init__(
        self, assignment: SlotAssignment, times: SlotTimeouts, requests: "count[int]"
    ) -> None:
        self.assignment = assignment
        self.is_ready = False
        self.deadline = -inf
        self.reason = ""
        self._times = times
        self._requests = requests
        self._failures = 0
        self._request: int | None = None

    def proceed(self, now: float) -> list[Instruction]:
        if self.is_ready or now < self.deadline:
            return []
        if self._request is not None:
            return self._failed("code and environment were not there in time", now)
        self._request = next(self._requests)
        self.deadline = now + self._times.preparation
        return [slot_model.Prepare(self._request, self.assignment)]

    def prepared(self, request: int) -> None:
        if request == self._request:
            self.is_ready, self._request, self.reason = True, None, ""

    def not_prepared(self, request: int, reason: str, now: float) -> list[Instruction]:
        return self._failed(reason, now) if request == self._request else []

    def _failed(self, reason: str, now: float) -> list[Instruction]:
        self._request, self.reason = None, reason
        self._failures += 1
        self.deadline = now + self._times.retry(self._failures)
        return [slot_model.ReportProblem(self.assignment, reason)]


class _Phase(Enum):
    STARTING = auto()
    RUNNING = auto()
    ASKED = auto()
    LINGERING = auto()
    KILLING = auto()


_WORKING = frozenset((_Phase.STARTING, _Phase.RUNNING))


@dataclass(slots=True)
class _Worker:
    id: str
    assignment: SlotAssignment
    deadline: float
    process: ProcessId | None = None
    phase: _Phase = _Phase.STARTING
    #: Whether it ends for another assignment, which is no crash.
    is_unwanted: bool = False
    fault: str = ""
    exit_code: int | None = None
    has_ended: bool = False
    running_since: float = inf
    too_large: int = 0
    #: Time of the next report that SIGKILL has no effect.
    stuck_at: float = inf
    killed_at: float = inf


class SlotMachine:
    """The state machine of a slot; the worker of a `record` counts as starting.

    `now` is in seconds of a monotonic clock.
    """

    def __init__(
        self,
        new_worker_id: Callable[[], str],
        times: SlotTimeouts,
        *,
        record: SlotRecord | None = None,
        now: float = 0.0,
    ) -> None:
        self._new_worker_id = new_worker_id
        self._times = times
        self._recorded = record or SlotRecord()
        self._wanted = self._recorded.wanted
        self._crashes = self._recorded.crashes
        self._crashing_since = self._recorded.crashing_since
        self._outcome = self._recorded.outcome
        self._worker: _Worker | None = None
        self._preparation: _Preparation | None = None
        self._requests = count(1)
        self._not_before = -inf
        self._reason = ""
        self._out: list[Instruction] = []
        if (adopted := self._recorded.worker) is not None:
            self._worker = _Worker(
                adopted.worker_id,
                adopted.assignment,
                now + times.start,
                adopted.process,
            )
        elif self._crashes:
            self._not_before = now + times.delay(self._crashes)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle an event; return instructions, to be carried out in order."""
        self._out = []
        self._handle(event, now)
        self._watch_worker(now)
        self._prepare(now)
        self._start_worker(now)
        if (record := self.record()) != self._recorded:
            self._recorded = record
            self._out.insert(0, slot_model.SaveRecord(record))
        return self._out

    @property
    def deadline(self) -> float:
        """Time of the next `Tick`; infinite if only other events can change the slot."""
        dues = [inf]
        if (worker := self._worker) is not None:
            dues.append(worker.deadline)
            if self._crashes:
                dues.append(worker.running_since + self._times.stable)
        if (preparation := self._preparation) is not None:
            if not preparation.is_ready:
                dues.append(preparation.deadline)
            elif worker is None:
                dues.append(self._not_before)
        return min(dues)

    def record(self) -> SlotRecord:
        worker = self._worker
        return SlotRecord(
            wanted=self._wanted,
            worker=slot_model.WorkerRecord(worker.id, worker.assignment, worker.process)
            if worker
            else None,
            crashes=self._crashes,
            outcome=self._outcome,
            crashing_since=self._crashing_since,
        )

    def status(self) -> SlotStatus:
        worker_id = self._worker.id if self._worker else None
        preparing = self._preparation.reason if self._preparation else ""
        reason = preparing or self._reason
        return SlotStatus(
            *(self._state(), self._wanted, worker_id, self._crashes, reason, self._crashing_since)
        )

    def _state(self) -> SlotState:
        if self._worker is not None:
            if self._worker.phase is _Phase.RUNNING:
                return SlotState.RUNNING
            is_starting = self._worker.phase in _WORKING
            return SlotState.WAITING_FOR_WORKER_START if is_starting else SlotState.ENDING
        if self._outcome is not None:
            is_completed = self._outcome is SlotOutcome.COMPLETED
            return SlotState.COMPLETED if is_completed else SlotState.FAILED
        if self._preparation is None:
            return SlotState.EMPTY
        is_ready = self._preparation.is_ready
        return SlotState.BACKING_OFF if is_ready else SlotState.WAITING_FOR_CODE

    # --- events --------------------------------------------------------------------------------

    def _handle(self, event: Event, now: float) -> None:
        match event:
            case slot_model.Wanted(assignment):
                self._want(assignment)
            case slot_model.Prepared(request):
                if self._preparation is not None:
                    self._preparation.prepared(request)
            case slot_model.PreparationFailed(request, reason):
                if self._preparation is not None:
                    self._out += self._preparation.not_prepared(request, reason, now)
            case slot_model.Tick():
                pass
            case _:
                worker = self._worker
                if worker is not None and worker.id == event.worker_id:
                    self._handle_of_worker(worker, event, now)

    def _handle_of_worker(self, worker: _Worker, event: WorkerEvent, now: float) -> None:
        match event:
            case slot_model.WorkerStarted(process=process):
                worker.process = process
            case slot_model.StartFailed(reason=reason):
                worker.fault = reason
                self._forget(worker, now, has_run=False)
            case slot_model.SignOfLife():
                if worker.phase in _WORKING:
                    if worker.phase is not _Phase.RUNNING:
                        worker.running_since = now
                    worker.phase = _Phase.RUNNING
                    worker.deadline = now + self._times.silence
            case slot_model.MemoryMeasured(memory_bytes=size):
                self._measured(worker, size, now)
            case slot_model.WorkerEnded():
                if not worker.has_ended:
                    self._ended(worker, event, now)
            case slot_model.WorkerGone():
                self._forget(worker, now)

    def _want(self, assignment: SlotAssignment | None) -> None:
        if assignment == self._wanted:
            return
        if assignment is not None and assignment.is_same_start(self._wanted):
            # The worker goes on; only the reaction to its end has changed.
            self._wanted = assignment
            if self._outcome is not None and not self._outcome.stands_under(assignment.restart):
                self._outcome = None
            return
        reason = ""
        if assignment is None or not assignment.is_same_work(self._wanted):
            self._crashes = self._crashing_since = 0
            if assignment is not None and (before := assignment.crashes) is not None:
                self._crashes, self._crashing_since = before.count, before.since_secs
                reason = before.error
        # After a new decision of the leader the next start is immediate.
        self._not_before = -inf
        self._wanted, self._outcome, self._reason = assignment, None, reason

    def _ended(self, worker: _Worker, event: slot_model.WorkerEnded, now: float) -> None:
        worker.has_ended, worker.exit_code = True, event.exit_code
        if event.is_too_large and event.exit_code not in (0, AGAIN) and not worker.fault:
            worker.fault = _ended_by_kernel(worker.assignment)
        elif event.is_premature and not worker.fault:
            worker.fault = (
                f"it ended with exit code {event.exit_code} before its queries had ended: code of"
                " the topology ends the process, as os._exit does"
            )
        if worker.phase is not _Phase.KILLING:
            worker.phase = _Phase.LINGERING
            worker.deadline = now + self._times.linger

    def _measured(self, worker: _Worker, size: int, now: float) -> None:
        limit = worker.assignment.memory_bytes
        worker.too_large = worker.too_large + 1 if limit is not None and size > limit else 0
        if limit is not None and worker.too_large >= _TOO_LARGE and worker.phase in _WORKING:
            fault = (
                f"it took {size / 2**20:.0f} MiB of memory with all that it started, and may take"
            )
            self._ask_to_end(worker, now, f"{fault} {limit / 2**20:.0f}: {_MORE}")

    # --- the worker ----------------------------------------------------------------------------

    def _watch_worker(self, now: float) -> None:
        worker = self._worker
        if worker is None:
            return
        if worker.phase in _WORKING and not worker.assignment.is_same_start(self._wanted):
            worker.is_unwanted = True
            self._ask_to_end(worker, now)
        if self._crashes and now >= worker.running_since + self._times.stable:
            self._crashes, self._crashing_since, self._reason = 0, 0, ""
        if now < worker.deadline:
            return
        match worker.phase:
            case _Phase.STARTING:
                fault = f"it gave no sign of life in the {self._times.start:g} s after its start"
                self._ask_to_end(worker, now, fault)
            case _Phase.RUNNING:
                self._ask_to_end(worker, now, f"it was silent for {self._times.silence:g} s")
            case _Phase.ASKED | _Phase.LINGERING | _Phase.KILLING:
                self._kill(worker, now)

    def _ask_to_end(self, worker: _Worker, now: float, fault: str = "") -> None:
        worker.phase, worker.fault = _Phase.ASKED, fault
        worker.running_since = inf
        worker.deadline = now + self._times.grace
        self._reason = fault
        self._out.append(slot_model.TerminateWorker(worker.id))

    def _kill(self, worker: _Worker, now: float) -> None:
        if worker.phase is not _Phase.KILLING:
            worker.phase, worker.killed_at = _Phase.KILLING, now
            worker.stuck_at = now + self._times.stuck
        worker.deadline = now + self._times.kill_again
        self._out.append(slot_model.KillWorker(worker.id))
        if now >= worker.stuck_at:
            worker.stuck_at = now + self._times.stuck
            self._reason = (
                f"its worker {worker.id} cannot be ended: some process of it is left"
                f" {now - worker.killed_at:.0f} s after SIGKILL, as one is that waits for a disk or"
                " a mount that does not answer"
            )
            self._out.append(slot_model.ReportProblem(worker.assignment, self._reason))

    def _forget(self, worker: _Worker, now: float, *, has_run: bool = True) -> None:
        self._worker = None
        self._out.append(slot_model.RemoveWorkerFiles(worker.id))
        if worker.is_unwanted:
            self._reason = ""
            return
        if not worker.fault and worker.exit_code == AGAIN:
            return
        is_wanted = worker.assignment.is_same_start(self._wanted)
        restart = (self._wanted if is_wanted and self._wanted else worker.assignment).restart
        if not worker.fault and worker.exit_code == 0 and restart is not Restart.ALWAYS:
            if is_wanted:
                self._outcome = SlotOutcome.COMPLETED
                self._crashes, self._crashing_since, self._reason = 0, 0, ""
            return
        reason = worker.fault or _how_it_ended(worker.exit_code)
        crashes = 1
        if is_wanted:
            self._crashes += 1
            self._crashing_since = self._crashing_since or int(time.time())
            crashes, self._reason = self._crashes, reason
            self._not_before = now + self._times.delay(crashes)
            if restart is Restart.NEVER and has_run:
                self._outcome = SlotOutcome.FAILED
        self._out.append(
            slot_model.ReportCrash(worker.assignment, worker.id, reason, crashes, worker.process)
        )

    # --- the next worker -----------------------------------------------------------------------

    def _prepare(self, now: float) -> None:
        wanted, worker, preparation = self._wanted, self._worker, self._preparation
        is_needed = self._outcome is None and (worker is None or worker.is_unwanted)
        if preparation is not None and not (is_needed and preparation.assignment == wanted):
            self._preparation = preparation = None
        if wanted is None or not is_needed:
            return
        if preparation is None:
            preparation = self._preparation = _Preparation(wanted, self._times, self._requests)
        self._out += preparation.proceed(now)

    def _start_worker(self, now: float) -> None:
        preparation = self._preparation
        if self._worker is not None or preparation is None or now < self._not_before:
            return
        if not preparation.is_ready:
            return
        self._preparation = None
        wanted = preparation.assignment
        self._worker = _Worker(self._new_worker_id(), wanted, now + self._times.start)
        self._out.append(slot_model.StartWorker(self._worker.id, wanted))


def _ended_by_kernel(assignment: SlotAssignment) -> str:
    limit = assignment.memory_bytes or 0
    return (
        f"the kernel ended it: with all that it started it took more than the {limit / 2**20:.0f}"
        f" MiB of memory that it may take; {_MORE}"
    )


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return f"it ended, and {UNSEEN_END}, as another supervisor had started it"
    return f"it {how_it_ended(exit_code)}"
