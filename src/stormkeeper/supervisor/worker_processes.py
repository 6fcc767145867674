"""The processes of a supervisor's workers: files and command of a start, looks, signals, ends.

A worker runs in a session of its own and writes its log itself, so it goes on when the supervisor
ends, and the next supervisor adopts it. The worker's mark identifies all its processes, even when
their parents are gone.

Every user can read a command line, so the configuration is in files for this user alone: the
supervisor's ``worker.yaml``, and ``topology.json``, which takes precedence.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder
from stormkeeper.errors import ConfigError, SupervisorError
from stormkeeper.names import as_text
from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.disk import PACKAGE, PYTHON, Directories, saved_slots
from stormkeeper.supervisor.process_table import ControlGroups, Process, ProcessId, members
from stormkeeper.supervisor.slot_model import (
    Event,
    Restart,
    SlotAssignment,
    WorkerEnded,
    WorkerGone,
)
from stormkeeper.topology.plan import Claim

if TYPE_CHECKING:
    # `storm kill_workers` needs no Thrift.
    from stormkeeper.supervisor.topology_code import LocalTopologyCode

log = logging.getLogger(__name__)

#: Environment variables of the mark: the worker's id, and the supervisor's folder.
WORKER_MARK: Final = "STORMKEEPER_WORKER"
OWNER_MARK: Final = "STORMKEEPER_SUPERVISOR"

_LOOK_SECS: Final = 0.05

_KILLED_SECS: Final = 30.0

_CONF, _OVERRIDES, _ALIVE, _ENDED = "worker.yaml", "topology.json", "heartbeats/alive", "ended"
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """The command that starts a worker's process."""

    #: Without secrets.
    argv: Sequence[str]
    folder: Path
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    #: Limit of the worker with all children, set in the kernel; None: no limit.
    memory_bytes: int | None = None


class WorkerFiles:
    """The files and commands of a supervisor's workers."""

    def __init__(
        self,
        conf: Conf,
        supervisor_id: str,
        directories: Directories,
        code: LocalTopologyCode,
        next_start: Callable[[], int],
    ) -> None:
        self._conf = conf.with_values(_absolute_folders(conf))
        self._supervisor_id = supervisor_id
        self._directories = directories
        self._code = code
        self._next_start = next_start

    def command(
        self, worker_id: str, port: int, assignment: SlotAssignment, python: Path
    ) -> WorkerCommand:
        """Create the folder of a start, and return the worker's command.

        Raises `SupervisorError` without the code or disk space, and `ConfigError`.
        """
        storm_id = assignment.storm_id
        root, manifest = self._code.unpacked(storm_id), self._code.manifest(storm_id)
        values = self._code.conf(storm_id)
        conf = self._of_topology(storm_id, values)
        place = self._directories.make_worker(worker_id, storm_id, port)
        claims = start_claims(assignment, self._next_start())
        try:
            self._conf.write(place / _CONF)
            _write(place / _OVERRIDES, msgspec.json.encode(values))
            (place / PACKAGE).symlink_to(root)
            (place / PYTHON).symlink_to(python)
        except OSError as error:
            raise SupervisorError(
                f"the files of a worker cannot be written to {place} ({error}): make space, or the"
                " folder writable"
            ) from error
        argv = [str(python), "-m", "stormkeeper.worker", manifest.entry_point]
        argv += ["--root", str(root), "--overrides", str(place / _OVERRIDES)]
        argv += ["--alive", str(self.alive(worker_id)), "--storm-id", storm_id]
        argv += ["--node", self._supervisor_id, "--port", str(port)]
        argv += [part for each in claims.items() for part in ("--claim", "=".join(each))]
        argv += ["--config", str(place / _CONF)]
        return WorkerCommand(
            argv=argv,
            folder=place,
            log=self._directories.log(storm_id, port),
            environment=_environment(conf, python, place / "tmp"),
            nice=self._conf["supervisor.worker.nice"],
            memory_bytes=assignment.memory_bytes,
        )

    def alive(self, worker_id: str) -> Path:
        return self._directories.worker(worker_id) / _ALIVE

    def written_exit_code(self, worker_id: str) -> int | None:
        try:
            return int(self.alive(worker_id).with_name(_ENDED).read_text())
        except (OSError, ValueError):
            return None

    def restart(self, storm_id: str) -> Restart | None:
        """Return a topology's restart setting; None without the code."""
        try:
            return Restart.from_conf(self._of_topology(storm_id, self._code.conf(storm_id)))
        except (ConfigError, SupervisorError):
            return None

    def _of_topology(self, storm_id: str, values: Mapping[str, Any]) -> Conf:
        try:
            return self._conf.with_values(values)
        except ConfigError as error:
            raise ConfigError(f"the configuration of {storm_id}: {error}") from error


def _absolute_folders(conf: Conf) -> dict[str, str]:
    """Return shared folders as absolute paths, as each worker has another current folder."""
    named = {
        key: conf[key]
        for key in ("storm.local.dir", "topology.checkpoint.dir")
        if conf[key] is not None and ":" not in conf[key]
    }
    return {key: str(folder(key, value).absolute()) for key, value in named.items()}


def _environment(conf: Conf, python: Path, temporary: Path) -> dict[str, str]:
    chosen = conf["topology.environment"] or {}
    return {
        # Removed with the worker's folder.
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        **{name: as_text(value) for name, value in chosen.items()},
        "PYSPARK_PYTHON": str(python),
    }


def _write(file: Path, data: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as opened:
        opened.write(data)


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """The state of a worker's processes."""

    process: ProcessId | None
    is_alive: bool
    exit_code: int | None
    members: tuple[ProcessId, ...]
    is_too_large: bool = False
    #: As in `WorkerEnded`.
    is_premature: bool = False

    def events(self, worker_id: str) -> list[Event]:
        """Return the events for the slot's state machine, in order."""
        events: list[Event] = []
        if not self.is_alive:
            events.append(
                WorkerEnded(worker_id, self.exit_code, self.is_too_large, self.is_premature)
            )
        if not self.members:
            events.append(WorkerGone(worker_id))
        return events


@dataclass(slots=True)
class _Worker:
    process: ProcessId | None
    child: subprocess.Popen[bytes] | None = None
    seen: int = 0
    members: tuple[ProcessId, ...] = ()


class WorkerProcesses:
    """The workers of a supervisor, identified by its folder `owner`. Not thread-safe."""

    def __init__(self, owner: str, groups: ControlGroups | None = None) -> None:
        self._owner = owner
        self._groups = groups
        self._workers: dict[str, _Worker] = {}

    def start(self, worker_id: str, command: WorkerCommand) -> ProcessId:
        """Start a worker's process; raises `SupervisorError` if that fails."""
        environment = {**os.environ, **command.environment}
        environment |= {WORKER_MARK: worker_id, OWNER_MARK: self._owner}
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
        except (OSError, ValueError) as error:  # ValueError for a text with NUL
            raise SupervisorError(f"the worker {worker_id} cannot be started: {error}") from error
        # The pid is not reused before this process reaps it.
        found = process_table.find(child.pid)
        if found is None:
            child.kill()  # it could not be watched, and another will be started
            child.wait()
            raise SupervisorError(
                f"the worker {worker_id} was ended: /proc does not show its process {child.pid};"
                " mount /proc"
            )
        if command.nice:
            # At once, as the worker's children inherit it.
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, child.pid, command.nice)
        self._workers[worker_id] = _Worker(found.id, child, found.id.started, (found.id,))
        return found.id

    def _in_group(self, worker_id: str, command: WorkerCommand) -> Sequence[str]:
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
        """Take over a worker of an earlier supervisor; an unrecorded `process` is looked for."""
        self._workers[worker_id] = _Worker(process)
        if self._groups is not None and memory_bytes is not None:
            self._groups.limit_again(worker_id, memory_bytes)

    def forget(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)
        if self._groups is not None:
            self._groups.remove(worker_id)

    def look(self) -> dict[str, WorkerLook]:
        """Look at all processes of the machine, 0.1 ms for each; return each worker's state."""
        found = self._look_once()
        if not all(look.members for look in found.values()):
            # One look may miss a child with a lower pid whose parent ended meanwhile, and a process
            # within exec, which has no environment for a moment.
            time.sleep(_LOOK_SECS)
            found = self._look_once()
        return found

    def _look_once(self) -> dict[str, WorkerLook]:
        now = process_table.now_ticks()
        table = process_table.snapshot()
        marked = self._marked(table)
        return {
            worker_id: self._look_at(worker_id, worker, table, marked.get(worker_id, set()), now)
            for worker_id, worker in self._workers.items()
        }

    def terminate(self, worker_id: str) -> None:
        """Send SIGTERM to a worker's main process, and SIGCONT if suspended."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.process is not None:
            _send(worker.process, signal.SIGTERM)
            _send(worker.process, signal.SIGCONT)

    def kill(self, worker_id: str) -> None:
        """Kill all processes of a worker; the next call kills processes started meanwhile."""
        if worker_id in self._workers:
            for process in self.look()[worker_id].members:
                _send(process, signal.SIGKILL)

    def memory_bytes(self, worker_id: str) -> int:
        """Return the memory of the processes of the last look; a shared page counts once."""
        worker = self._workers.get(worker_id)
        found = worker.members if worker is not None else ()
        return sum(process_table.memory_bytes(process.pid) for process in found)

    def strays(self) -> set[str]:
        """Return the ids of running workers that were neither started nor adopted here."""
        return self._marked(process_table.snapshot()).keys() - self._workers.keys()

    def end_strays(self, timeout_secs: float) -> int:
        """Kill the `strays`; return their number, or raise `SupervisorError`.

        Without this before the first start, a slot may have two workers.
        """
        strays = self.strays()
        for worker_id in strays:
            self.adopt(worker_id, None)
        if left := self.wait_ended(strays, timeout_secs, by_force=True):
            raise SupervisorError(
                f"workers that an earlier supervisor of {self._owner} has left do not end"
                f" ({', '.join(sorted(left))}): restart the machine, or free what they wait for"
            )
        for worker_id in strays:
            self.forget(worker_id)
        if self._groups is not None:
            self._groups.remove_others(self._workers)
        return len(strays)

    def wait_ended(
        self, worker_ids: Collection[str], timeout_secs: float, *, by_force: bool = False
    ) -> set[str]:
        """Wait until no process of these workers is left; return those with processes.

        `by_force` kills the processes until then.
        """
        deadline = time.monotonic() + timeout_secs
        while True:
            looks = self.look()
            left = {worker_id for worker_id in worker_ids if looks[worker_id].members}
            if not left or time.monotonic() > deadline:
                return left
            for worker_id in left if by_force else ():
                self.kill(worker_id)
            time.sleep(_LOOK_SECS)

    def _marked(self, table: Mapping[int, Process]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for pid, process in table.items():
            if process.has_ended or pid == os.getpid():
                continue
            given = process_table.environment(pid)
            if given.get(OWNER_MARK) == self._owner and (worker_id := given.get(WORKER_MARK)):
                found.setdefault(worker_id, set()).add(pid)
        return found

    def _look_at(
        self,
        worker_id: str,
        worker: _Worker,
        table: Mapping[int, Process],
        marked: set[int],
        now: int,
    ) -> WorkerLook:
        if worker.process is None:
            worker.process = _session_leader(table, marked)
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
        if is_alive:
            return WorkerLook(worker.process, is_alive, None, worker.members)
        exit_code = worker.child.poll() if worker.child is not None else None
        is_too_large = self._groups is not None and self._groups.is_exceeded(worker_id)
        return WorkerLook(worker.process, is_alive, exit_code, worker.members, is_too_large)


def _session_leader(table: Mapping[int, Process], marked: set[int]) -> ProcessId | None:
    leaders = [table[pid].id for pid in marked if table[pid].session == pid]
    return min(leaders, key=lambda process: process.started, default=None)


def _send(process: ProcessId, number: signal.Signals) -> None:
    try:
        process_table.send(process, number)
    except PermissionError:
        log.warning(
            "process %d of a worker is another user's, and got no %s: end it by hand",
            *(process.pid, number.name),
        )


@dataclass(frozen=True, slots=True)
class EndedWorker:
    """A worker that `end_workers` has ended; topology and port are None without a record."""

    worker_id: str
    topology: str | None
    port: int | None
    #: None if the main process had ended before.
    pid: int | None
    by_force: bool


def end_workers(directories: Directories, grace_secs: float) -> list[EndedWorker]:
    """End all workers with a record or the mark of a supervisor; raises `SupervisorError`.

    Workers have `grace_secs` to finish their batches before they are killed.
    """
    slots = {
        record.worker.worker_id: (record.worker, port)
        for port, record in saved_slots(directories.local_state).items()
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
    by_force = processes.wait_ended(found, grace_secs)
    if left := processes.wait_ended(by_force, _KILLED_SECS, by_force=True):
        raise SupervisorError(
            f"these workers cannot be ended, even by force: {', '.join(sorted(left))}; restart the"
            " machine, or free what they wait for"
        )
    ended = []
    for worker_id, look in found.items():
        known, port = slots.get(worker_id, (None, None))
        storm_id = known.assignment.storm_id if known is not None else None
        pid = look.process.pid if look.process is not None and look.is_alive else None
        ended.append(EndedWorker(worker_id, storm_id, port, pid, worker_id in by_force))
    return ended


def start_claims(assignment: SlotAssignment, number: int) -> dict[str, str]:
    claims = {query: Claim.parse(text) for query, text in assignment.claims.items()}
    return {query: str(claim._replace(launch=number)) for query, claim in claims.items()}
