"""The processes of a machine, out of ``/proc`` (Linux alone), and which of them are a worker's.

A process is named by its pid *and* its start time. Linux gives a pid again to another process, so a
pid alone, noted yesterday, may be anybody's today.

A worker starts others: Spark's JVM, which starts Python workers. They may have sessions of their
own, and parents that are gone. A process belongs to a worker if one of these is true:

- its environment carries the worker's mark, which children inherit;
- it is in the worker's session, and was started before the worker was last seen alive. (Later the
  session's number may have gone to a stranger.)
- it belonged to the worker at an earlier look;
- its parent belongs to the worker.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")

#: States of a process that has ended and only waits for its parent to take note: zombie, dead.
_ENDED: Final = frozenset("ZX")

#: Places of the fields of ``/proc/<pid>/stat`` behind the name: proc(5) counts from 1, with the pid
#: and the name before them.
_STATE, _PARENT, _SESSION, _STARTED = 0, 1, 3, 19

#: What counts of ``/proc/<pid>/smaps_rollup``, in KiB.
_PROPORTIONAL: Final = frozenset(("Pss:", "SwapPss:"))
_KIB: Final = 1024


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """Who a process is.

    Parameters
    ----------
    pid
        Its number, which another process may get once it is gone.
    started
        When it was started, in ticks of the kernel's clock since the machine's.
    """

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process as one look at the table found it.

    Parameters
    ----------
    id
        Who it is.
    parent, session
        Pids of its parent and of its session's leader.
    has_ended
        Whether nothing of it is left but its exit code.
    """

    id: ProcessId
    parent: int
    session: int
    has_ended: bool


def find(pid: int) -> Process | None:
    """Return the process that has this pid now, None if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:  # ProcessLookupError, too, where it ends while it is read
        return None
    # The name is in parentheses and may have spaces and parentheses of its own.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(
        ProcessId(pid, int(fields[_STARTED])),
        parent=int(fields[_PARENT]),
        session=int(fields[_SESSION]),
        has_ended=chr(fields[_STATE][0]) in _ENDED,
    )


def is_alive(process: ProcessId) -> bool:
    """Return whether this very process runs, and not another one with its pid."""
    found = find(process.pid)
    return found is not None and found.id == process and not found.has_ended


def snapshot() -> dict[int, Process]:
    """Return all processes that there are, by pid."""
    found = (find(int(name)) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208
    return {process.id.pid: process for process in found if process is not None}


def environment(pid: int) -> dict[str, str]:
    """Return what a process was started with; nothing where this user may not read it."""
    try:
        text = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in text.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def memory_bytes(pid: int) -> int:
    """Return a process's proportional size: a page that n processes share counts 1/n.

    What has been swapped out counts too. The whole resident size where this user may not read the
    proportional one, 0 where the process has ended.
    """
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return _resident_bytes(pid)
    fields = (line.split() for line in lines)
    return sum(int(field[1]) for field in fields if field[0] in _PROPORTIONAL) * _KIB


def _resident_bytes(pid: int) -> int:
    try:
        pages = (_PROC / str(pid) / "statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Send a signal to this very process; return whether there was one to get it.

    No other process gets it, even if this one ends meanwhile and its pid is given away.

    Raises
    ------
    PermissionError
        The process is another user's.
    """
    with _held(process) as descriptor:
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        return True


def descriptor_of(process: ProcessId) -> int | None:
    """Return a descriptor that is readable once this very process has ended; None if it has.

    The caller closes it.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # From here on the pid cannot come to mean another process behind this descriptor.
    found = find(process.pid)
    if found is None or found.id != process:
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def _held(process: ProcessId) -> Iterator[int | None]:
    descriptor = descriptor_of(process)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def now_ticks() -> int:
    """Return the moment of now as processes' start times are given, rounded down."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def started_at(process: ProcessId) -> float:
    """Return when a process was started, in seconds since 1970, by the clock as it is now."""
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + process.started / os.sysconf("SC_CLK_TCK")


def boot_id() -> str:
    """Return what names this start of the machine: pids and start times are of one start."""
    return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()


def members(
    table: Mapping[int, Process],
    *,
    marked: Collection[int],
    main: ProcessId | None,
    main_seen: int,
    before: Collection[ProcessId] = (),
) -> list[ProcessId]:
    """Return the processes of one worker that have not ended, in the order of their start.

    Parameters
    ----------
    table
        All processes, by pid.
    marked
        Pids of those that carry the worker's mark.
    main
        The worker's own process, the leader of its session; None if nobody knows which it is.
    main_seen
        When that process was last seen alive, in ticks as in `ProcessId`.
    before
        What this returned at an earlier look.
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
    """For one thread, which waits; any other may wake it.

    The end of a process that is followed is noticed at once, whoever has started it.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ)
        self._descriptors: dict[str, int] = {}

    def wake(self) -> None:
        """Have the thread wait no longer, or not at all the next time."""
        # One that is full wakes all the same; one that is closed has nobody to wake.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def follow(self, name: str, process: ProcessId) -> None:
        """Have `wait` tell when a process ends; one that has ended by now is not followed."""
        if name not in self._descriptors:
            descriptor = descriptor_of(process)
            if descriptor is not None:
                self._descriptors[name] = descriptor
                self._selector.register(descriptor, selectors.EVENT_READ, name)

    def follows(self, name: str) -> bool:
        """Return whether a process of that name is followed."""
        return name in self._descriptors

    def forget(self, name: str) -> None:
        """Follow a process no more; one that is not followed is fine."""
        descriptor = self._descriptors.pop(name, None)
        if descriptor is not None:
            self._selector.unregister(descriptor)
            os.close(descriptor)

    def wait(self, timeout_secs: float) -> set[str]:
        """Wait for whatever comes first; return the names of processes that have ended.

        Those are not followed any more.
        """
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
        """Follow nothing any more."""
        for name in list(self._descriptors):
            self.forget(name)
        self._selector.close()
        self._reader.close()
        self._writer.close()
