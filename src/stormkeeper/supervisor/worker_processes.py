"""The processes of a supervisor's workers: start, look, signals, memory.

A worker runs in a session of its own and writes its log itself, so it goes on when the supervisor
ends. The next supervisor adopts it. All that a worker starts inherits its mark, by which it is
found, whoever its parent is by then.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stormkeeper.daemon.lifecycle import DIE_WITH_PARENT
from stormkeeper.errors import SupervisorError
from stormkeeper.supervisor import local_state, process_table
from stormkeeper.supervisor.control_groups import ControlGroups
from stormkeeper.supervisor.directories import Directories
from stormkeeper.supervisor.process_table import Process, ProcessId, members
from stormkeeper.supervisor.slot_model import Event, WorkerEnded, WorkerGone

log = logging.getLogger(__name__)

#: The variables that hold the mark: the worker's id, and whose worker it is.
WORKER_MARK: Final = "STORMKEEPER_WORKER"
OWNER_MARK: Final = "STORMKEEPER_SUPERVISOR"

#: How often a wait looks again, in seconds.
_LOOK_SECS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """How a worker's process is started.

    Parameters
    ----------
    argv
        The command, without a secret: every user of the machine can read it.
    folder
        Its current folder.
    log
        File that gets its standard output and standard error, at its end.
    environment
        What is added to this process's own.
    nice
        How much less than others it gets of a busy processor, to 19; 0: as this process.
    memory_bytes
        What it and all that it starts may take, where the kernel can see to that; None: no limit.
    """

    argv: Sequence[str]
    folder: Path
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """What one look found of a worker.

    Parameters
    ----------
    process
        The worker's own process; None if nobody knows which it is.
    is_alive
        Whether that one runs.
    exit_code
        How it ended, negative where a signal ended it. None while it runs, and where that is
        unknown.
    members
        All processes of the worker that have not ended, in the order of their start.
    is_too_large
        Whether the kernel has ended some process of it, as it took too much memory.
    is_premature
        Whether it ended with the exit code of a worker that has done its work, without saying so.
    """

    process: ProcessId | None
    is_alive: bool
    exit_code: int | None
    members: tuple[ProcessId, ...]
    is_too_large: bool = False
    is_premature: bool = False

    def events(self, worker_id: str) -> list[Event]:
        """Return what is to be said of it to the machine of the worker's slot, in that order."""
        said: list[Event] = []
        if not self.is_alive:
            said.append(
                WorkerEnded(worker_id, self.exit_code, self.is_too_large, self.is_premature)
            )
        if not self.members:
            said.append(WorkerGone(worker_id))
        return said


@dataclass(slots=True)
class _Worker:
    process: ProcessId | None
    #: The child that it is, if this supervisor started it.
    child: subprocess.Popen[bytes] | None = None
    #: When its own process was last seen alive, in ticks.
    seen: int = 0
    members: tuple[ProcessId, ...] = ()


class WorkerProcesses:
    """The workers of one supervisor. For one thread.

    Parameters
    ----------
    owner
        What names this supervisor's place on the machine, the same at each start of it: its folder.
    groups
        Where the kernel limits their memory; None: nowhere.
    """

    def __init__(self, owner: str, groups: ControlGroups | None = None) -> None:
        self._owner = owner
        self._groups = groups
        self._workers: dict[str, _Worker] = {}

    def start(self, worker_id: str, command: WorkerCommand) -> ProcessId:
        """Start a worker's process.

        Raises
        ------
        SupervisorError
            It cannot be started; nothing of it runs.
        """
        environment = {**os.environ, **command.environment}
        environment |= {WORKER_MARK: worker_id, OWNER_MARK: self._owner}
        # It must not die with whoever this supervisor should die with.
        environment.pop(DIE_WITH_PARENT, None)
        argv = self._in_group(worker_id, command)
        try:
            with command.log.open("ab") as log_file:
                child = subprocess.Popen(
                    argv,
                    cwd=command.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:  # the latter of a text with NUL
            raise SupervisorError(f"the worker {worker_id} cannot be started: {error}") from error
        # Nobody else gets its pid before this process has taken note of its end.
        found = process_table.find(child.pid)
        if found is None:
            raise SupervisorError(
                f"the worker {worker_id} was started as process {child.pid}, which /proc does not"
                " show: mount /proc"
            )
        if command.nice:
            # Now, as what it starts is as nice as it is then.
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, child.pid, command.nice)
        self._workers[worker_id] = _Worker(found.id, child, found.id.started, (found.id,))
        return found.id

    def _in_group(self, worker_id: str, command: WorkerCommand) -> Sequence[str]:
        """Return the command that starts a worker in a group of its own, if it is to have one."""
        if self._groups is None or command.memory_bytes is None:
            return command.argv
        try:
            self._groups.make(worker_id, command.memory_bytes)
        except OSError as error:
            log.warning("the kernel will not limit the memory of %s: %s", worker_id, error)
            return command.argv
        return self._groups.into(worker_id, command.argv)

    def adopt(
        self, worker_id: str, process: ProcessId | None, memory_bytes: int | None = None
    ) -> None:
        """Take over a worker that a supervisor before this one has started, or was about to.

        Parameters
        ----------
        worker_id
            Its id.
        process
            Its own process, None if that was not written down: then it is looked for.
        memory_bytes
            As in its command.
        """
        self._workers[worker_id] = _Worker(process)
        if self._groups is not None and memory_bytes is not None:
            self._groups.limit_again(worker_id, memory_bytes)

    def forget(self, worker_id: str) -> None:
        """Look no more for a worker of which nothing is left."""
        self._workers.pop(worker_id, None)
        if self._groups is not None:
            self._groups.remove(worker_id)

    def look(self) -> dict[str, WorkerLook]:
        """Look at all processes of the machine; return what was found, by worker id.

        It costs about 0.1 ms for each process that the machine has.
        """
        found = self._look_once()
        if not all(look.members for look in found.values()):
            # That nothing is left must be certain. One look may miss a process that was started,
            # with a lower pid, by one that ended while the table was read; and one that is just
            # becoming another program, which has no environment for a moment.
            time.sleep(_LOOK_SECS)
            found = self._look_once()
        return found

    def _look_once(self) -> dict[str, WorkerLook]:
        now = process_table.now_ticks()
        table = process_table.snapshot()
        marked = self._marked(table)
        return {
            worker_id: self._with_memory(
                worker_id, self._look_at(worker, table, marked.get(worker_id, set()), now)
            )
            for worker_id, worker in self._workers.items()
        }

    def terminate(self, worker_id: str) -> None:
        """Ask a worker's own process to end; one that is suspended is continued, to hear of it."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.process is not None:
            _send(worker.process, signal.SIGTERM)
            _send(worker.process, signal.SIGCONT)

    def kill(self, worker_id: str) -> None:
        """End all processes of a worker by force. What they start meanwhile, the next call ends."""
        if worker_id in self._workers:
            for process in self.look()[worker_id].members:
                _send(process, signal.SIGKILL)

    def memory_bytes(self, worker_id: str) -> int:
        """Return what the processes take together that the last look found.

        A page that several of them share (Spark forks its Python workers) counts once.
        """
        worker = self._workers.get(worker_id)
        found = worker.members if worker is not None else ()
        return sum(process_table.memory_bytes(process.pid) for process in found)

    def strays(self) -> set[str]:
        """Return the ids of workers of this place that nobody has started or adopted here."""
        return self._marked(process_table.snapshot()).keys() - self._workers.keys()

    def end_strays(self, timeout_secs: float) -> int:
        """End by force the workers of this place that nobody has started or adopted here.

        There are some only where what a supervisor had written down was lost. Call it before the
        first launch, or a slot may have two.

        Returns
        -------
        int
            How many workers there were.

        Raises
        ------
        SupervisorError
            Some were still there after `timeout_secs`.
        """
        deadline = time.monotonic() + timeout_secs
        strays = self.strays()
        for worker_id in strays:
            self.adopt(worker_id, None)
        while left := [one for one, look in self.look().items() if one in strays and look.members]:
            for worker_id in left:
                self.kill(worker_id)
            if time.monotonic() > deadline:
                raise SupervisorError(
                    f"workers that an earlier supervisor of {self._owner} has left do not end"
                    f" ({', '.join(left)}): restart the machine, or free what they wait for"
                )
            time.sleep(_LOOK_SECS)
        for worker_id in strays:
            self.forget(worker_id)
        if self._groups is not None:
            self._groups.remove_others(self._workers)
        return len(strays)

    def _marked(self, table: Mapping[int, Process]) -> dict[str, set[int]]:
        """Return the pids of live processes that carry this supervisor's mark, by worker id."""
        found: dict[str, set[int]] = {}
        for pid, process in table.items():
            if process.has_ended or pid == os.getpid():
                continue
            given = process_table.environment(pid)
            if given.get(OWNER_MARK) == self._owner and (worker_id := given.get(WORKER_MARK)):
                found.setdefault(worker_id, set()).add(pid)
        return found

    def _look_at(
        self, worker: _Worker, table: Mapping[int, Process], marked: set[int], now: int
    ) -> WorkerLook:
        if worker.process is None:
            worker.process = _leader(table, marked)
        is_alive = False
        if worker.process is not None:
            found = table.get(worker.process.pid)
            if found is not None and found.id == worker.process and not found.has_ended:
                is_alive, worker.seen = True, now
        worker.members = tuple(
            members(
                table,
                marked=marked,
                main=worker.process,
                main_seen=worker.seen,
                before=worker.members,
            )
        )
        exit_code = worker.child.poll() if worker.child is not None and not is_alive else None
        return WorkerLook(worker.process, is_alive, exit_code, worker.members)

    def _with_memory(self, worker_id: str, look: WorkerLook) -> WorkerLook:
        if look.is_alive or self._groups is None:
            return look
        return replace(look, is_too_large=self._groups.is_exceeded(worker_id))


def _leader(table: Mapping[int, Process], marked: set[int]) -> ProcessId | None:
    """Return the worker's own process: of those that lead a session, the first."""
    leaders = [table[pid].id for pid in marked if table[pid].session == pid]
    return min(leaders, key=lambda process: process.started, default=None)


def _send(process: ProcessId, number: signal.Signals) -> None:
    try:
        process_table.send(process, number)
    except PermissionError:
        log.warning(
            "process %d of a worker is another user's, and got no %s: end it yourself",
            process.pid,
            number.name,
        )


#: How often it is looked what is left, in seconds.
_ENDED_LOOK_SECS: Final = 0.1

#: How long killed processes may take to be gone, in seconds.
_KILLED_SECS: Final = 30.0


@dataclass(frozen=True, slots=True)
class EndedWorker:
    """A worker that was ended.

    Parameters
    ----------
    worker_id
        Its id.
    storm_id, port
        Its topology and its slot; None where nobody has written them down.
    pid
        Of its own process; None where that had ended before.
    by_force
        Whether some process of it had to be killed.
    """

    worker_id: str
    storm_id: str | None
    port: int | None
    pid: int | None
    by_force: bool


def end_workers(directories: Directories, grace_secs: float) -> list[EndedWorker]:
    """End the workers that a supervisor has written down, and those that carry its mark.

    Parameters
    ----------
    directories
        The supervisor's.
    grace_secs
        How long they may take, to finish their batches, before they are killed.

    Returns
    -------
    list of EndedWorker
        Those of which something ran.

    Raises
    ------
    SupervisorError
        Some do not end.
    """
    slots = {
        record.worker.worker_id: (record.worker, port)
        for port, record in local_state.peek(directories.local_state).items()
        if record.worker is not None
    }
    processes = WorkerProcesses(str(directories.supervisor))
    for worker, _ in slots.values():
        processes.adopt(worker.worker_id, worker.process)
    for worker_id in processes.strays():
        processes.adopt(worker_id, None)
    found = {worker_id: look for worker_id, look in processes.look().items() if look.members}
    for worker_id in found:
        processes.terminate(worker_id)
    by_force = _wait(processes, set(found), time.monotonic() + grace_secs)
    for worker_id in by_force:
        processes.kill(worker_id)
    deadline = time.monotonic() + _KILLED_SECS
    while left := _wait(processes, by_force, time.monotonic() + 1.0):
        if time.monotonic() > deadline:
            raise SupervisorError(
                f"these workers cannot be ended, even by force: {', '.join(sorted(left))}; restart"
                " the machine, or free what they wait for"
            )
        for worker_id in left:
            processes.kill(worker_id)
    ended = []
    for worker_id, look in found.items():
        known, port = slots.get(worker_id, (None, None))
        ended.append(
            EndedWorker(
                worker_id,
                known.assignment.storm_id if known is not None else None,
                port,
                look.process.pid if look.process is not None and look.is_alive else None,
                worker_id in by_force,
            )
        )
    return ended


def _wait(processes: WorkerProcesses, worker_ids: set[str], deadline: float) -> set[str]:
    """Wait until nothing is left of workers; return those of which something is at the deadline."""
    while True:
        looks = processes.look()
        left = {worker_id for worker_id in worker_ids if looks[worker_id].members}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_ENDED_LOOK_SECS)
