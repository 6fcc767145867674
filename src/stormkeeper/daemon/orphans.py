"""Processes whose parents may be long gone: found by a mark in their environment, and ended.

Whoever starts processes gives them ``STORMKEEPER_RUN`` with a value of its own. What they start
inherits it. So all of them can be found, whoever their parents are by then.
"""

import contextlib
import os
import time

import psutil

#: The variable that holds the mark.
RUN_MARK = "STORMKEEPER_RUN"

#: How long killed processes may take to be gone, in seconds.
KILLED_SECS = 2.0

#: How often a wait looks for them again, in seconds.
POLL_SECS = 0.05


def end_marked(run: str, *, settle_secs: float) -> int:
    """End every process that carries the mark of `run`, and say how many had to be ended.

    Those that are about to end get `settle_secs` for it, and do not count. The others are killed,
    and are gone when this returns.
    """
    deadline = time.monotonic() + settle_secs
    while (left := marked(run)) and time.monotonic() < deadline:
        time.sleep(POLL_SECS)
    ended = len(left)
    deadline = time.monotonic() + KILLED_SECS
    while left and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_SECS)
        left = marked(run)
    return ended


def marked(run: str) -> list[psutil.Process]:
    """Return the live processes, other than this one, that carry the mark of `run`."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_MARK) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
