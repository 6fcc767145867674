"""The processes of a machine (``/proc``, Linux), and their control groups (cgroup v2).

Linux reuses pids, so a process is identified by pid and start time. A process belongs to a worker
if

- its environment has the worker's mark, which children inherit;
- it is in the worker's session (a number that may be reused) and started before the worker was
  last seen alive;
- it belonged to the worker at an earlier look; or
- its parent belongs to the worker.

The kernel ends a worker over its group's memory limit at once, with all children; measurements may
come too late. A cgroup v2 that delegates controllers can have no process, and systemd puts a
restarted service into its unit's group. So the supervisor's own group must be `LEAF`, beside the
workers' (``DelegateSubgroup=`` of systemd 254).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

log = logging.getLogger(__name__)

_PROC: Final = Path("/proc")

_ENDED: Final = frozenset("ZX")

#: Positions in ``/proc/<pid>/stat`` behind pid and name (proc(5)).
_STATE, _PARENT, _SESSION, _STARTED = 0, 1, 3, 19


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """The identity of a process."""

    pid: int
    #: In clock ticks since the machine's start.
    started: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process in a snapshot of the table."""

    id: ProcessId
    parent: int
    session: int
    has_ended: bool


def find(pid: int) -> Process | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:  # also ProcessLookupError, if it ends during the read
        return None
    # The name may have parentheses, too.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(
        ProcessId(pid, int(fields[_STARTED])),
        parent=int(fields[_PARENT]),
        session=int(fields[_SESSION]),
        has_ended=chr(fields[_STATE][0]) in _ENDED,
    )


def snapshot() -> dict[int, Process]:
    found = (find(int(name)) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208
    return {process.id.pid: process for process in found if process is not None}


def environment(pid: int) -> dict[str, str]:
    """Return a process's initial environment; empty if unreadable for this user."""
    try:
        text = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in text.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def memory_bytes(pid: int) -> int:
    """Return a process's size, with swap; a page that n processes share counts 1/n.

    Falls back to the resident size; 0 if the process has ended.
    """
    try:
        process = psutil.Process(pid)
        try:
            found = process.memory_full_info()
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
    except psutil.Error:
        return 0
    return int(found.pss + found.swap)


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Send a signal to this process, not to a later one with the same pid; False if ended."""
    descriptor = descriptor_of(process)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def descriptor_of(process: ProcessId) -> int | None:
    """Return a descriptor that becomes readable at the process's end; None if ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # From here on the descriptor means this process alone.
    found = find(process.pid)
    if found is None or found.id != process:
        os.close(descriptor)
        return None
    return descriptor


def now_ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def started_at(process: ProcessId) -> float:
    """Return a process's start time, in seconds since 1970 by the present clock."""
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + process.started / os.sysconf("SC_CLK_TCK")


def boot_id() -> str:
    return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()


def members(
    table: Mapping[int, Process],
    *,
    marked: Collection[int],
    main: ProcessId | None,
    main_seen: int,
    before: Collection[ProcessId] = (),
) -> list[ProcessId]:
    """Return the running processes of a worker, in the order of start.

    `marked` are the pids with the worker's mark, `main_seen` is the time in ticks when the process
    `main` was last alive, and `before` is the last result.
    """
    known = frozenset(before)
    found = {
        pid
        for pid, process in table.items()
        if pid in marked
        or process.id in known
        or (main is not None and _is_of_session(process, main, main_seen))
    }
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    open_ends = list(found)
    while open_ends:
        new = set(children.get(open_ends.pop(), ())) - found
        found |= new
        open_ends += new
    return sorted(
        (table[pid].id for pid in found if not table[pid].has_ended),
        key=lambda process: (process.started, process.pid),
    )


def _is_of_session(process: Process, main: ProcessId, main_seen: int) -> bool:
    return process.session == main.pid and main.started <= process.id.started <= main_seen


class ProcessWaiter:
    """Waits in a thread for ends of processes, of any parent, or for `wake` by other threads."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ)
        self._descriptors: dict[str, int] = {}

    def wake(self) -> None:
        """End the present `wait`, or else the next."""
        # A full socket wakes all the same; after a close no thread waits.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def follow(self, name: str, process: ProcessId) -> bool:
        """Wait for a process's end, too; return False if the process has ended."""
        if name not in self._descriptors:
            descriptor = descriptor_of(process)
            if descriptor is None:
                return False
            self._descriptors[name] = descriptor
            self._selector.register(descriptor, selectors.EVENT_READ, name)
        return True

    def forget(self, name: str) -> None:
        descriptor = self._descriptors.pop(name, None)
        if descriptor is not None:
            self._selector.unregister(descriptor)
            os.close(descriptor)

    def wait(self, timeout_secs: float) -> set[str]:
        """Wait for an end, a wake, or the timeout; return the names of ended processes."""
        ended: set[str] = set()
        for key, _ in self._selector.select(max(0.0, timeout_secs)):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._reader.recv(4096)
            else:
                ended.add(key.data)
        for name in ended:
            self.forget(name)
        return ended

    def close(self) -> None:
        for name in list(self._descriptors):
            self.forget(name)
        self._selector.close()
        self._reader.close()
        self._writer.close()


# --- control groups ------------------------------------------------------------------------------

#: Name of the supervisor's own group, as in the systemd unit.
LEAF: Final = "supervisor"

_PREFIX: Final = "worker-"

#: Joins the group before the worker starts, so that no child is outside.
_INTO_GROUP: Final = 'echo $$ > "$0" && exec "$@"'


class NoControlGroupsError(Exception):
    """Control groups cannot be used here, for the reason in the message."""


class ControlGroups:
    """The groups of a supervisor's workers, in the folder of the parent group `above`."""

    def __init__(self, above: Path) -> None:
        self.above = above

    @classmethod
    def here(cls, proc: Path = Path("/proc")) -> ControlGroups:
        """Return the groups beside this process's own; raises `NoControlGroupsError`."""
        own = _own_group(proc / "self")
        if own.name != LEAF:
            raise NoControlGroupsError(
                f"the control group of this process is not named {LEAF!r}: run it by systemd 254 or"
                f" newer, with Delegate=yes and DelegateSubgroup={LEAF}"
            )
        above = own.parent
        try:
            if "memory" not in (above / "cgroup.controllers").read_text().split():
                raise NoControlGroupsError(f"{above} has no controller of memory")
            (above / "cgroup.subtree_control").write_text("+memory")
        except OSError as error:
            raise NoControlGroupsError(f"{above} cannot be used: {error.strerror}") from error
        return cls(above)

    def make(self, worker_id: str, limit_bytes: int) -> None:
        """Create the group of a worker; raises `OSError` and leaves no group if that fails."""
        group = self._group(worker_id)
        group.mkdir(exist_ok=True)
        try:
            _limit(group, limit_bytes)
        except OSError:
            self.remove(worker_id)
            raise

    def into(self, worker_id: str, argv: Sequence[str]) -> list[str]:
        return ["/bin/sh", "-c", _INTO_GROUP, str(self._group(worker_id) / "cgroup.procs"), *argv]

    def limit_again(self, worker_id: str, limit_bytes: int) -> None:
        """Limit an adopted worker's group, if any, as after a restart of the unit."""
        group = self._group(worker_id)
        if group.is_dir():
            try:
                _limit(group, limit_bytes)
            except OSError as error:
                log.warning("the kernel does not limit the worker %s: %s", worker_id, error)

    def is_exceeded(self, worker_id: str) -> bool:
        """Return whether the kernel has ended a process of a worker at the limit."""
        try:
            lines = (self._group(worker_id) / "memory.events").read_text().splitlines()
        except OSError:
            return False
        counts = dict(line.split(maxsplit=1) for line in lines)
        # Without ``oom``, the machine or a parent group was out of memory.
        return all(counts.get(name, "0") != "0" for name in ("oom", "oom_kill"))

    def remove(self, worker_id: str) -> None:
        _remove(self._group(worker_id))

    def remove_others(self, worker_ids: Collection[str]) -> None:
        kept = {self._group(worker_id) for worker_id in worker_ids}
        for group in self.above.glob(f"{_PREFIX}*"):
            if group not in kept:
                _remove(group)

    def _group(self, worker_id: str) -> Path:
        return self.above / f"{_PREFIX}{worker_id}"


def _own_group(process: Path) -> Path:
    try:
        groups = (process / "cgroup").read_text().splitlines()
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    except OSError as error:
        raise NoControlGroupsError(f"{process} does not tell its group: {error}") from error
    own = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    for mount in mounts:
        if own is None or mount[mount.index("-") + 1] != "cgroup2":
            continue
        root, place = mount[3], Path(mount[4])
        if Path(own).is_relative_to(root) and ".." not in Path(own).parts:
            return place / Path(own).relative_to(root)
    raise NoControlGroupsError("this machine has no cgroup v2, or does not show it here")


def _limit(group: Path, limit_bytes: int) -> None:
    # Swapped memory counts as well.
    for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
        if (group / name).exists():  # not every kernel has both
            (group / name).write_text(value)
    (group / "memory.max").write_text(str(limit_bytes))


def _remove(group: Path) -> None:
    try:
        with contextlib.suppress(FileNotFoundError):
            group.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            log.warning("the control group %s cannot be removed: %s", group, error)
