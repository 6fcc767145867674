"""The thread that lives the slots' lives: it tells their machines what happens, and obeys them.

All that it waits for, it waits for at one place: messages of other threads, the ends of workers'
own processes (by a descriptor of each, so that they are noticed at once), and the next time to do
something. Whatever takes long is done by others, which answer by a message.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from stormkeeper.errors import ConfigError, StateError, StormkeeperError, SupervisorError
from stormkeeper.supervisor import process_table, slot_model
from stormkeeper.supervisor.assignments import Assigned, Orders, orders, stopped
from stormkeeper.supervisor.cleanup import CheckpointRemoval, Cleanup, Needed
from stormkeeper.supervisor.directories import Directories
from stormkeeper.supervisor.environments import Environments
from stormkeeper.supervisor.launch import Launcher, Preparations
from stormkeeper.supervisor.local_state import LocalState
from stormkeeper.supervisor.process_table import ProcessWaiter
from stormkeeper.supervisor.registration import ErrorReports, Machine, Registration, last_lines
from stormkeeper.supervisor.slot_model import Restart, SlotAssignment, SlotRecord, SlotTimeouts
from stormkeeper.supervisor.slots import SAID, SlotMachine, SlotState, SlotStatus
from stormkeeper.supervisor.status_pages import FOREIGN, SupervisorStatus
from stormkeeper.supervisor.topology_code import LocalTopologyCode
from stormkeeper.supervisor.worker_processes import WorkerLook, WorkerProcesses
from stormkeeper.topology.faults import crash

log = logging.getLogger(__name__)

#: How often it is looked whether anything is left of a worker whose own process has ended, in
#: seconds, and for how long so often: a look costs some milliseconds.
_SOON_SECS: Final = 0.1
_SOON_FOR_SECS: Final = 20.0

#: How long a turn rests at most, in seconds, so that one can see that this thread goes on.
_REST_SECS: Final = 1.0

#: How long nothing is made of the end of an adopted worker while it cannot be read whether it was
#: done, in seconds: most outages are shorter, and one that has crashed is not to wait for longer.
_UNREAD_SECS: Final = 120.0

#: How long workers of an unknown past may take to end when they are killed, in seconds.
_STRAYS_SECS: Final = 60.0

#: How long the thread may take to end, in seconds.
_END_SECS: Final = 10.0


@dataclass(slots=True)
class _Worker:
    """A worker of which something may be left."""

    port: int
    #: When it was first seen that its own process has ended, or is not known.
    ended_at: float = inf
    #: The last change of its sign of life, in nanoseconds; None before the first one.
    beat: int | None = None
    #: Whether the queries of a worker that has ended are done; None before that was asked.
    is_done: bool | None = None
    #: Whether it was said that this could not be read.
    is_told: bool = False


class SlotLoop:
    """The slots of one supervisor.

    Parameters
    ----------
    means
        What it works with.
    records
        What was written down of the slots before. The workers that they name are adopted.

    Raises
    ------
    SupervisorError
        Workers of an earlier supervisor, of which nothing was written down, do not end.
    """

    def __init__(self, means: SupervisorContext, records: Mapping[int, SlotRecord]) -> None:
        self._means = means
        ports = dict.fromkeys(means.machine.ports)
        # A slot that is not configured any more is a slot until its worker is gone.
        ports |= dict.fromkeys(port for port, record in records.items() if record.worker)
        self._records = {port: records.get(port, SlotRecord()) for port in ports}
        self._workers: dict[str, _Worker] = {}
        self._adopt()
        now = time.monotonic()
        self._slots = {
            port: SlotMachine(lambda: str(uuid.uuid4()), means.times, record=record, now=now)
            for port, record in self._records.items()
        }
        self._preparing = Preparations(
            means.code, means.environments, lambda *said: self._send(said)
        )
        self._tidying = Cleanup(
            *(means.code, means.environments, means.checkpoints, means.directories),
            lambda: self.needed,
        )
        self._assignments: Assigned | None = None
        self._orders = Orders()
        self._look_at = self._measure_at = self._beats_at = now
        self._memory: dict[int, int] = {}
        self._launches = self._crashes = self._problems = 0
        self.needed = self._what_is_needed()
        self.seen = SupervisorStatus(now)
        #: Why the slots could not be written down last; empty if they are.
        self._unsaved = ""
        #: Why the thread has ended that was not told to; empty if it did not.
        self.failure = ""
        #: Set once the slots know what they are to run.
        self.ready = threading.Event()
        self._lock = threading.Lock()
        self._messages: deque[tuple[int, slot_model.Event] | Assigned] = deque()
        self._waiting = ProcessWaiter()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="slots", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether its threads go on."""
        return self._thread.is_alive() and self._tidying.is_running

    def start(self) -> None:
        """Begin. Nothing is done before the first `order`."""
        self._tell()
        self._tidying.start()
        self._thread.start()

    def order(self, assignments: Assigned) -> None:
        """Say what is assigned in the cluster, by the topologies' ids; from any thread."""
        self._send(assignments)

    def close(self) -> None:
        """End the thread; the workers go on."""
        self._is_closed = True
        self._waiting.wake()
        self._preparing.close()
        self._thread.join(_END_SECS)
        self._tidying.close()

    # --- the thread ----------------------------------------------------------------------------

    def _adopt(self) -> None:
        processes = self._means.processes
        for port, record in self._records.items():
            if (worker := record.worker) is not None:
                processes.adopt(worker.worker_id, worker.process, worker.assignment.memory_bytes)
                self._workers[worker.worker_id] = adopted = _Worker(port)
                adopted.beat = self._last_beat(worker.worker_id)
                log.info("slot %d: looking after the worker %s again", port, worker.worker_id)
        if strays := processes.end_strays(_STRAYS_SECS):
            log.warning("%d workers ran of which nothing was written down: they were ended", strays)

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
            self._waiting.close()

    def _turn(self) -> None:
        if self._unsaved:
            self._save()
        if self._assignments is not None:
            # First: silence is judged by whatever comes after.
            self._listen()
        for message in self._received():
            if isinstance(message, Mapping):
                self._assignments = message
                self._order()
            else:
                self._hear(*message)
        if self._assignments is not None:
            self._look()
            now = time.monotonic()
            for port, slot in self._slots.items():
                if slot.deadline <= now:
                    self._hear(port, slot_model.Tick())
            if not self.ready.is_set():
                self._tidying.wake()
                self.ready.set()
        self._tell()
        self._rest()

    def _order(self) -> None:
        """Tell the slots what they are to run, by what is assigned and known by now."""
        machine, assignments = self._means.machine, self._assignments
        assert assignments is not None
        before = self._orders.foreign
        earlier = {port: each.wanted for port, each in self._records.items() if each.wanted}
        own = machine.supervisor_id, machine.ports
        self._orders = orders(assignments, *own, self._restart, earlier)
        for storm_id in sorted(self._orders.foreign - before):
            log.warning("%s %s", storm_id, FOREIGN)
        for port in self._slots:
            self._hear(port, slot_model.Wanted(self._orders.wanted.get(port)))
        self._note_what_is_needed()

    def _restart(self, storm_id: str) -> Restart:
        """Return what a topology says of workers that end, or what was known of that last."""
        found = self._means.launching.restart(storm_id)
        if found is not None:
            return found
        wanted = (record.wanted for record in self._records.values())
        known = (each.restart for each in wanted if each and each.storm_id == storm_id)
        return next(known, Restart.ON_FAILURE)

    def _listen(self) -> None:
        """Look for signs of life."""
        now = time.monotonic()
        if now < self._beats_at:
            return
        self._beats_at = now + self._means.beat_secs
        for worker_id, worker in list(self._workers.items()):
            beat = self._last_beat(worker_id)
            if beat is not None and beat != worker.beat:
                worker.beat = beat
                self._hear(worker.port, slot_model.WorkerBeat(worker_id))

    def _last_beat(self, worker_id: str) -> int | None:
        try:
            return self._means.launching.alive(worker_id).stat().st_mtime_ns
        except OSError:
            return None

    def _look(self) -> None:
        """Look at the processes of the workers, if it is time."""
        now = time.monotonic()
        if now < self._look_at or not self._workers:
            return
        is_to_measure = now >= self._measure_at
        if is_to_measure:
            self._measure_at = now + self._means.monitor_secs
        for worker_id, look in self._means.processes.look().items():
            worker = self._workers[worker_id]
            if look.is_alive and look.process is not None:
                self._waiting.follow(worker_id, look.process)
            else:
                self._waiting.forget(worker_id)
                worker.ended_at = min(worker.ended_at, now)
            judged = look if look.is_alive else self._judged(worker_id, look, now)
            if judged is None:
                continue  # by the next look it may be known
            for event in judged.events(worker_id):
                self._hear(worker.port, event)
            if is_to_measure and look.is_alive:
                size = self._means.processes.memory_bytes(worker_id)
                self._memory[worker.port] = size
                self._hear(worker.port, slot_model.MemoryMeasured(worker_id, size))
        ended = [worker.ended_at for worker in self._workers.values()]
        is_soon = any(at <= now < at + _SOON_FOR_SECS for at in ended)
        period = min(_SOON_SECS, self._means.monitor_secs) if is_soon else self._means.monitor_secs
        self._look_at = time.monotonic() + period

    def _judged(self, worker_id: str, look: WorkerLook, now: float) -> WorkerLook | None:
        """Return with which exit code a worker has ended; None: that will be known later.

        Exit code 0 alone proves nothing, as user code can end the process with any code. So a
        worker says that its queries have ended: in a file, or else in the cluster's state.
        """
        said = self._means.launching.said_end(worker_id)
        if said is not None:
            return replace(look, exit_code=said)
        code, worker = look.exit_code, self._workers[worker_id]
        if code is None:
            is_done = self._is_done(worker, now)
            return None if is_done is None else replace(look, exit_code=0 if is_done else None)
        is_done = code == 0 and self._is_done(worker, now)
        if is_done is None:
            return None
        return replace(look, is_premature=code in SAID and not is_done)

    def _is_done(self, worker: _Worker, now: float) -> bool | None:
        """Return whether all queries of a worker are done that has not said how it ended.

        None: that cannot be read, and there is time to ask again.
        """
        record = self._records[worker.port].worker
        if worker.is_done is None and record is not None:
            queries, storm_id = record.assignment.claims.keys(), record.assignment.storm_id
            try:
                worker.is_done = queries <= self._means.ended_queries(storm_id)
            except StateError as error:
                if not worker.is_told:
                    log.warning("what %s has ended cannot be read yet: %s", storm_id, error)
                    worker.is_told = True
                if now < worker.ended_at + _UNREAD_SECS:
                    return None
                worker.is_done = False
        return bool(worker.is_done)

    def _rest(self) -> None:
        """Wait for a message, for the end of a worker's process, or for the next thing to do."""
        dues = [time.monotonic() + _REST_SECS]
        if self._workers:
            dues += [self._look_at, self._beats_at]
        if self._assignments is not None:
            dues += [slot.deadline for slot in self._slots.values()]
        if self._waiting.wait(min(dues) - time.monotonic()):
            self._look_at = -inf

    def _tell(self) -> None:
        """Say how the slots are, where it is asked for."""
        used = frozenset(port for port, record in self._records.items() if record.worker)
        slots = {port: self._with_progress(slot.status()) for port, slot in self._slots.items()}
        self._means.registration.tell(used, stopped(self._orders, self._records), slots)
        self._memory = {port: size for port, size in self._memory.items() if port in used}
        self.seen = SupervisorStatus(
            time.monotonic(),
            slots,
            dict(self._memory),
            self._launches,
            self._crashes,
            self._problems,
            self._orders.foreign,
        )

    def _with_progress(self, slot: SlotStatus) -> SlotStatus:
        """Say what pip does in a slot that waits for the environment of its topology."""
        if slot.state is SlotState.WAITING_FOR_ENVIRONMENT and slot.assignment is not None:
            progress = self._preparing.progress(slot.assignment.storm_id)
            return replace(slot, reason=progress or slot.reason)
        return slot

    # --- what the slots say --------------------------------------------------------------------

    def _hear(self, port: int, event: slot_model.Event) -> None:
        """Tell a slot what has happened, and do what it says."""
        if isinstance(event, slot_model.Prepared):
            # Now it may be known what the topology says of its workers.
            self._reorder(port)
        waiting = deque([event])
        while waiting:
            for one in self._slots[port].handle(waiting.popleft(), time.monotonic()):
                answer = self._carry_out(port, one)
                if answer is not None:
                    waiting.append(answer)

    def _reorder(self, port: int) -> None:
        wanted = self._orders.wanted.get(port)
        if wanted is None:
            return
        if self._restart(wanted.storm_id) is not wanted.restart:
            self._order()

    def _carry_out(self, port: int, one: slot_model.Instruction) -> slot_model.Event | None:
        match one:
            case slot_model.SaveRecord(record):
                self._write_down(port, record)
            case slot_model.FetchCode(request, assignment):
                self._preparing.fetch(port, request, assignment.storm_id)
            case slot_model.PrepareEnvironment(request, assignment):
                self._preparing.build(port, request, assignment.storm_id)
            case slot_model.AbandonRequest(request):
                self._preparing.abandon(port, request)
            case slot_model.LaunchWorker(worker_id, assignment):
                return self._launch(port, worker_id, assignment)
            case slot_model.TerminateWorker(worker_id):
                log.info("slot %d: asking the worker %s to end", port, worker_id)
                self._means.processes.terminate(worker_id)
            case slot_model.KillWorker(worker_id):
                log.warning("slot %d: ending what is left of %s by force", port, worker_id)
                self._means.processes.kill(worker_id)
            case slot_model.ReportCrash():
                self._report_crash(port, one)
            case slot_model.ReportProblem(assignment, reason):
                self._problems += 1
                log.warning("slot %d: %s: %s", port, assignment.storm_id, reason)
                self._means.reports.put(assignment, port, reason)
            case slot_model.RemoveWorkerFiles(worker_id):
                log.info("slot %d: nothing is left of the worker %s", port, worker_id)
                self._means.processes.forget(worker_id)
                self._waiting.forget(worker_id)
                del self._workers[worker_id]
        return None

    def _write_down(self, port: int, record: SlotRecord) -> None:
        self._records[port] = record
        self._save()
        self._note_what_is_needed()

    def _save(self) -> None:
        """Write all slots down; where that fails, as on a full disk, workers can still be ended."""
        try:
            self._means.state.save(self._records)
        except SupervisorError as error:
            if not self._unsaved:
                log.error("no worker is started any more: %s", error)  # noqa: TRY400
            self._unsaved = str(error)
        else:
            if self._unsaved:
                log.info("the slots are written down again")
            self._unsaved = ""

    def _note_what_is_needed(self) -> None:
        before, self.needed = self.needed, self._what_is_needed()
        if before != self.needed:
            self._tidying.wake()

    def _what_is_needed(self) -> Needed:
        workers = [record.worker for record in self._records.values() if record.worker]
        storm_ids = {record.wanted.storm_id for record in self._records.values() if record.wanted}
        storm_ids |= {worker.assignment.storm_id for worker in workers} | self._orders.storm_ids
        return Needed(frozenset(storm_ids), frozenset(worker.worker_id for worker in workers))

    def _launch(self, port: int, worker_id: str, assignment: SlotAssignment) -> slot_model.Event:
        means, storm_id = self._means, assignment.storm_id
        if self._unsaved:
            self._workers[worker_id] = _Worker(port)
            return slot_model.LaunchFailed(worker_id, self._unsaved)
        try:
            python = self._preparing.python(storm_id)
            command = means.launching.command(worker_id, port, assignment, python)
            process = means.processes.start(worker_id, command)
        except (SupervisorError, ConfigError) as error:
            self._workers[worker_id] = _Worker(port)  # of which nothing is left
            return slot_model.LaunchFailed(worker_id, str(error))
        log.info("slot %d: started a worker of %s as process %d", port, storm_id, process.pid)
        self._launches += 1
        self._workers[worker_id] = _Worker(port)
        self._waiting.follow(worker_id, process)
        if not self._waiting.follows(worker_id):
            self._look_at = -inf  # it has ended already
        with contextlib.suppress(SupervisorError):  # it is for people alone
            means.directories.note_process(worker_id, storm_id, port, process.pid)
        return slot_model.WorkerStarted(worker_id, process)

    def _report_crash(self, port: int, one: slot_model.ReportCrash) -> None:
        self._crashes += 1
        assignment = one.assignment
        file = self._means.directories.log(assignment.storm_id, port)
        log.warning(
            "slot %d: the worker %s of %s crashed (%d in a row): %s; its log is %s",
            port,
            one.worker_id,
            assignment.storm_id,
            one.crashes,
            one.reason,
            file,
        )
        self._means.reports.crashed(
            assignment,
            port,
            crash(port, one.crashes, one.reason),
            began=process_table.started_at(one.process) if one.process else None,
            log_end=last_lines(file) if one.process else "",
        )

    # --- messages ------------------------------------------------------------------------------

    def _send(self, message: tuple[int, slot_model.Event] | Assigned) -> None:
        with self._lock:
            self._messages.append(message)
        self._waiting.wake()

    def _received(self) -> list[tuple[int, slot_model.Event] | Assigned]:
        with self._lock:
            messages = list(self._messages)
            self._messages.clear()
        return messages


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorContext:
    """What the thread works with.

    Parameters
    ----------
    machine
        Whose slots.
    times
        How long each step of a slot's life may take.
    monitor_secs, beat_secs
        How often the workers' processes are looked at, and their signs of life.
    ended_queries
        Returns which queries of a topology have said that they were done.
    """

    machine: Machine
    times: SlotTimeouts
    monitor_secs: float
    beat_secs: float
    ended_queries: Callable[[str], frozenset[str]]
    state: LocalState
    processes: WorkerProcesses
    directories: Directories
    code: LocalTopologyCode
    environments: Environments
    checkpoints: CheckpointRemoval
    launching: Launcher
    registration: Registration
    reports: ErrorReports
