"""The thread of a supervisor's slots: feeds the state machines with events, obeys instructions.

The thread waits at one place: for messages, for the ends of workers' main processes, and for the
next deadline. Other threads do long work.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from stormkeeper.daemon.children import last_lines
from stormkeeper.errors import ConfigError, StormkeeperError, SupervisorError
from stormkeeper.supervisor import process_table, slot_model
from stormkeeper.supervisor.assignments import Assigned, Orders, find_orders, find_stopped
from stormkeeper.supervisor.disk import Directories, LocalState, Needed
from stormkeeper.supervisor.disk_cleanup import CheckpointRemoval, DiskCleanup
from stormkeeper.supervisor.environments import Environments
from stormkeeper.supervisor.http_pages import FOREIGN, SupervisorStatus
from stormkeeper.supervisor.process_table import ProcessWaiter
from stormkeeper.supervisor.registration import ErrorReports, Machine, Registration
from stormkeeper.supervisor.slot_model import Restart, SlotAssignment, SlotRecord, SlotTimeouts
from stormkeeper.supervisor.slots import WRITTEN_CODES, SlotMachine, SlotState, SlotStatus
from stormkeeper.supervisor.topology_code import LocalTopologyCode, PreparationThreads
from stormkeeper.supervisor.worker_processes import WorkerFiles, WorkerLook, WorkerProcesses
from stormkeeper.topology.faults import crash

log = logging.getLogger(__name__)

#: Interval of looks after the end of a worker's main process, and how long it applies.
_SOON_SECS: Final = 0.1
_SOON_FOR_SECS: Final = 20.0

#: Longest pause between two turns, for the health page.
_REST_SECS: Final = 1.0

_STRAYS_SECS: Final = 60.0

_END_SECS: Final = 10.0
_CLEANUP_END_SECS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorContext:
    """The parts and settings of a supervisor that the slots' thread uses."""

    machine: Machine
    times: SlotTimeouts
    #: Between looks at workers' processes, and at their signs of life.
    monitor_secs: float
    beat_secs: float
    state: LocalState
    processes: WorkerProcesses
    directories: Directories
    code: LocalTopologyCode
    environments: Environments
    checkpoints: CheckpointRemoval
    files: WorkerFiles
    registration: Registration
    reports: ErrorReports


@dataclass(slots=True)
class _Worker:
    port: int
    ended_at: float = inf
    #: Last sign of life, in nanoseconds; None before the first.
    beat: int | None = None


class SlotLoop:
    """The slots of a supervisor; adopts the workers in the slots' `records`.

    Raises `SupervisorError` if workers without a record do not end.
    """

    def __init__(self, context: SupervisorContext, records: Mapping[int, SlotRecord]) -> None:
        self._context = context
        ports = dict.fromkeys(context.machine.ports)
        # A slot that is no longer configured stays until its worker is gone.
        ports |= dict.fromkeys(port for port, record in records.items() if record.worker)
        self._records = {port: records.get(port, SlotRecord()) for port in ports}
        self._workers: dict[str, _Worker] = {}
        self._adopt()
        now = time.monotonic()
        self._slots = {
            port: SlotMachine(lambda: str(uuid.uuid4()), context.times, record=record, now=now)
            for port, record in self._records.items()
        }
        self._preparations = PreparationThreads(
            context.code, context.environments, lambda *answer: self._send(answer)
        )
        self._cleanup = DiskCleanup(
            *(context.code, context.environments, context.checkpoints, context.directories),
            lambda: self.needed,
        )
        self._assignments: Assigned | None = None
        self._orders = Orders()
        self._look_due = self._measure_due = self._beats_due = now
        self._memory: dict[int, int] = {}
        self._starts = self._crashes = self._problems = 0
        self.needed = self._find_needed()
        self.status = SupervisorStatus(now)
        self._unsaved = ""
        self.failure = ""
        self.ready = threading.Event()
        self._messages: deque[tuple[int, slot_model.Event] | Assigned] = deque()
        self._waiter = ProcessWaiter()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="slots", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and self._cleanup.is_running

    def start(self) -> None:
        """Start the threads; no slot changes before the first `set_assignments`."""
        self._publish()
        self._cleanup.start()
        self._thread.start()

    def set_assignments(self, assignments: Assigned) -> None:
        """Set the cluster's assignments; thread-safe."""
        self._send(assignments)

    def close(self, timeout_secs: float = _END_SECS) -> None:
        """End the threads; the workers go on."""
        self._is_closed = True
        self._waiter.wake()
        self._preparations.close()
        self._thread.join(timeout_secs)
        self._cleanup.close(_CLEANUP_END_SECS)

    def _adopt(self) -> None:
        processes = self._context.processes
        for port, record in self._records.items():
            if (worker := record.worker) is not None:
                processes.adopt(worker.worker_id, worker.process, worker.assignment.memory_bytes)
                self._workers[worker.worker_id] = adopted = _Worker(port)
                adopted.beat = self._last_beat(worker.worker_id)
                log.info("slot %d: adopted the worker %s", port, worker.worker_id)
        if strays := processes.end_strays(_STRAYS_SECS):
            log.warning("%d workers without a record were ended", strays)

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._turn()
        except StormkeeperError as error:
            self.failure = str(error)
        except BaseException as error:
            self.failure = f"an error of this program: {error!r}"
            raise
        finally:
            self._waiter.close()

    def _turn(self) -> None:
        if self._unsaved:
            self._save()
        if self._assignments is not None:
            # First, as later events judge silence.
            self._check_beats()
        while self._messages:
            message = self._messages.popleft()
            if isinstance(message, Mapping):
                self._assignments = message
                self._assign()
            else:
                self._handle(*message)
        if self._assignments is not None:
            self._check_processes()
            now = time.monotonic()
            for port, slot in self._slots.items():
                if slot.deadline <= now:
                    self._handle(port, slot_model.Tick())
            if not self.ready.is_set():
                self._cleanup.wake()
                self.ready.set()
        self._publish()
        self._rest()

    def _assign(self) -> None:
        machine, assignments = self._context.machine, self._assignments
        assert assignments is not None
        before = self._orders.foreign
        earlier = {port: each.wanted for port, each in self._records.items() if each.wanted}
        own = machine.supervisor_id, machine.ports
        self._orders = find_orders(assignments, *own, self._restart, earlier)
        for storm_id in sorted(self._orders.foreign - before):
            log.warning("%s %s", storm_id, FOREIGN)
        for port in self._slots:
            self._handle(port, slot_model.Wanted(self._orders.wanted.get(port)))
        self._update_needed()

    def _restart(self, storm_id: str) -> Restart:
        found = self._context.files.restart(storm_id)
        if found is not None:
            return found
        wanted = (record.wanted for record in self._records.values())
        known = (each.restart for each in wanted if each and each.storm_id == storm_id)
        return next(known, Restart.ON_FAILURE)

    def _check_beats(self) -> None:
        now = time.monotonic()
        if now < self._beats_due:
            return
        self._beats_due = now + self._context.beat_secs
        for worker_id, worker in list(self._workers.items()):
            beat = self._last_beat(worker_id)
            if beat is not None and beat != worker.beat:
                worker.beat = beat
                self._handle(worker.port, slot_model.SignOfLife(worker_id))

    def _last_beat(self, worker_id: str) -> int | None:
        try:
            return self._context.files.alive(worker_id).stat().st_mtime_ns
        except OSError:
            return None

    def _check_processes(self) -> None:
        now = time.monotonic()
        if now < self._look_due or not self._workers:
            return
        is_to_measure = now >= self._measure_due
        if is_to_measure:
            self._measure_due = now + self._context.monitor_secs
        for worker_id, look in self._context.processes.look().items():
            worker = self._workers[worker_id]
            if look.is_alive and look.process is not None:
                self._waiter.follow(worker_id, look.process)
            else:
                self._waiter.forget(worker_id)
                worker.ended_at = min(worker.ended_at, now)
            judged = look if look.is_alive else self._judged(worker_id, look)
            for event in judged.events(worker_id):
                self._handle(worker.port, event)
            if is_to_measure and look.is_alive:
                size = self._context.processes.memory_bytes(worker_id)
                self._memory[worker.port] = size
                self._handle(worker.port, slot_model.MemoryMeasured(worker_id, size))
        ended = [worker.ended_at for worker in self._workers.values()]
        is_soon = any(at <= now < at + _SOON_FOR_SECS for at in ended)
        period = (
            min(_SOON_SECS, self._context.monitor_secs) if is_soon else self._context.monitor_secs
        )
        self._look_due = time.monotonic() + period

    def _judged(self, worker_id: str, look: WorkerLook) -> WorkerLook:
        """Add the exit code that an ended worker has written, as code of a user may end it, too."""
        written = self._context.files.written_exit_code(worker_id)
        if written is not None:
            return replace(look, exit_code=written)
        return replace(look, is_premature=look.exit_code in WRITTEN_CODES)

    def _rest(self) -> None:
        dues = [time.monotonic() + _REST_SECS]
        if self._workers:
            dues += [self._look_due, self._beats_due]
        if self._assignments is not None:
            dues += [slot.deadline for slot in self._slots.values()]
        if self._waiter.wait(min(dues) - time.monotonic()):
            self._look_due = -inf

    def _publish(self) -> None:
        used = frozenset(port for port, record in self._records.items() if record.worker)
        slots = {port: self._with_progress(slot.status()) for port, slot in self._slots.items()}
        self._context.registration.update(used, find_stopped(self._orders, self._records), slots)
        self._memory = {port: size for port, size in self._memory.items() if port in used}
        self.status = SupervisorStatus(
            time.monotonic(),
            slots,
            dict(self._memory),
            self._starts,
            self._crashes,
            self._problems,
            self._orders.foreign,
        )

    def _with_progress(self, slot: SlotStatus) -> SlotStatus:
        if slot.state is SlotState.WAITING_FOR_CODE and slot.assignment is not None:
            progress = self._preparations.progress(slot.assignment.storm_id)
            if progress is not None:
                state = SlotState.WAITING_FOR_ENVIRONMENT
                return replace(slot, state=state, reason=progress or slot.reason)
        return slot

    # --- the slots' instructions ---------------------------------------------------------------

    def _handle(self, port: int, event: slot_model.Event) -> None:
        if isinstance(event, slot_model.Prepared):
            # The code may have a new restart setting.
            wanted = self._orders.wanted.get(port)
            if wanted is not None and self._restart(wanted.storm_id) is not wanted.restart:
                self._assign()
        waiting = deque([event])
        while waiting:
            for one in self._slots[port].handle(waiting.popleft(), time.monotonic()):
                answer = self._carry_out(port, one)
                if answer is not None:
                    waiting.append(answer)

    def _carry_out(self, port: int, one: slot_model.Instruction) -> slot_model.Event | None:
        match one:
            case slot_model.SaveRecord(record):
                self._save_record(port, record)
            case slot_model.Prepare(request, assignment):
                self._preparations.begin(port, request, assignment.storm_id)
            case slot_model.StartWorker(worker_id, assignment):
                return self._start_worker(port, worker_id, assignment)
            case slot_model.TerminateWorker(worker_id):
                log.info("slot %d: asking the worker %s to end", port, worker_id)
                self._context.processes.terminate(worker_id)
            case slot_model.KillWorker(worker_id):
                log.warning("slot %d: killing the processes of %s that are left", port, worker_id)
                self._context.processes.kill(worker_id)
            case slot_model.ReportCrash():
                self._report_crash(port, one)
            case slot_model.ReportProblem(assignment, reason):
                self._problems += 1
                log.warning("slot %d: %s: %s", port, assignment.storm_id, reason)
                self._context.reports.put(assignment, port, reason)
            case slot_model.RemoveWorkerFiles(worker_id):
                log.info("slot %d: nothing is left of the worker %s", port, worker_id)
                self._context.processes.forget(worker_id)
                self._waiter.forget(worker_id)
                del self._workers[worker_id]
        return None

    def _save_record(self, port: int, record: SlotRecord) -> None:
        self._records[port] = record
        self._save()
        self._update_needed()

    def _save(self) -> None:
        """Save all records; after a failure, as on a full disk, workers can still be ended."""
        try:
            self._context.state.save(self._records)
        except SupervisorError as error:
            if not self._unsaved:
                log.error("no worker is started any more: %s", error)  # noqa: TRY400
            self._unsaved = str(error)
        else:
            if self._unsaved:
                log.info("the slots' records are saved again")
            self._unsaved = ""

    def _update_needed(self) -> None:
        before, self.needed = self.needed, self._find_needed()
        if before != self.needed:
            self._cleanup.wake()

    def _find_needed(self) -> Needed:
        workers = [record.worker for record in self._records.values() if record.worker]
        storm_ids = {record.wanted.storm_id for record in self._records.values() if record.wanted}
        storm_ids |= {worker.assignment.storm_id for worker in workers} | self._orders.storm_ids
        return Needed(frozenset(storm_ids), frozenset(worker.worker_id for worker in workers))

    def _start_worker(
        self, port: int, worker_id: str, assignment: SlotAssignment
    ) -> slot_model.Event:
        context, storm_id = self._context, assignment.storm_id
        if self._unsaved:
            self._workers[worker_id] = _Worker(port)
            return slot_model.StartFailed(worker_id, self._unsaved)
        try:
            python = self._preparations.python(storm_id)
            command = context.files.command(worker_id, port, assignment, python)
            process = context.processes.start(worker_id, command)
        except (SupervisorError, ConfigError) as error:
            self._workers[worker_id] = _Worker(port)  # without processes
            return slot_model.StartFailed(worker_id, str(error))
        log.info("slot %d: started a worker of %s as process %d", port, storm_id, process.pid)
        self._starts += 1
        self._workers[worker_id] = _Worker(port)
        if not self._waiter.follow(worker_id, process):
            self._look_due = -inf
        with contextlib.suppress(SupervisorError):  # for operators alone
            context.directories.note_process(worker_id, storm_id, port, process.pid)
        return slot_model.WorkerStarted(worker_id, process)

    def _report_crash(self, port: int, one: slot_model.ReportCrash) -> None:
        self._crashes += 1
        assignment = one.assignment
        file = self._context.directories.log(assignment.storm_id, port)
        log.warning(
            "slot %d: the worker %s of %s crashed (%d in a row): %s; its log is %s",
            *(port, one.worker_id, assignment.storm_id, one.crashes, one.reason, file),
        )
        self._context.reports.put(
            assignment,
            port,
            crash(port, one.crashes, one.reason),
            began=process_table.started_at(one.process) if one.process else None,
            log_end=last_lines(file) if one.process else "",
        )

    def _send(self, message: tuple[int, slot_model.Event] | Assigned) -> None:
        self._messages.append(message)
        self._waiter.wake()
