"""Processes of the machine, any of which may end between two looks at it."""

import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import psutil

from support.waiting import DEADLINE_SECS, until

#: What a process that has ended runs, and what it is called.
NOTHING: Final = ""


def family(pid: int) -> list[psutil.Process]:
    """The process `pid` and all that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def goes_on(process: psutil.Process) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def has_ended(pid: int) -> bool:
    """Whether there is no process `pid` that goes on."""
    try:
        return not goes_on(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def name(process: psutil.Process) -> str:
    """What the program of a process is called."""
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return NOTHING


def command_line(process: psutil.Process) -> str:
    """What every user of the machine can read of it: its program and the arguments."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return NOTHING


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each that has not ended; one may end because of what another was sent."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def all_gone(processes: list[psutil.Process], deadline_secs: float = DEADLINE_SECS) -> None:
    """Wait until none of `processes` goes on."""

    def left() -> list[psutil.Process]:
        return [process for process in processes if goes_on(process)]

    try:
        until(lambda: not left(), deadline_secs)
    except AssertionError as error:
        raise AssertionError(f"still there: {left()}") from error


def worker_pid(storm_id: str) -> int:
    """Return the process id of a topology's only worker."""
    (pid,) = (
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline"])
        if "stormkeeper.worker" in (process.info["cmdline"] or [])
        and storm_id in process.info["cmdline"]
    )
    return int(pid)
