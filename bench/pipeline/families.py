"""What a process and all that it started take: processor time, and memory that is its own."""

import contextlib
import os
from pathlib import Path

import psutil

_TICKS = os.sysconf("SC_CLK_TCK")


def members(pid):
    """Return the ids of a process and of all that it started, as far as they live."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    return []


def cpu_secs(pid):
    """Return the processor time of a family, of those included that have ended."""
    # proc(5): own time in user and system mode, and that of children that were waited for.
    return sum(_cpu_secs(member, slice(11, 15)) for member in members(pid))


def cpu_secs_of_process(pid):
    """Return the processor time of a process alone."""
    return _cpu_secs(pid, slice(11, 13))


def _cpu_secs(pid, fields):
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text()
        return sum(map(int, text.rpartition(")")[2].split()[fields])) / _TICKS
    return 0.0


def pss_mib(pid):
    """Return the memory of a family; what several processes share is divided among them."""
    kib = 0
    for member in members(pid):
        with contextlib.suppress(OSError, IndexError):
            text = Path(f"/proc/{member}/smaps_rollup").read_text()
            kib += int(text.split("\nPss:")[1].split()[0])
    return kib / 1024


def machine_secs():
    """Return the processor time of everything on this machine, of all cores."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq = map(int, fields[:7])
    return (user + nice + system + irq + softirq) / _TICKS
