"""Programs that are run to their end: within a time, and with what they said last in the error."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from stormkeeper.daemon import die_with_parent
from stormkeeper.daemon.children import Child
from stormkeeper.errors import ChildError

#: How long a program may take to end when it is asked to, in seconds.
GRACE_SECS: Final = 3.0

#: Lines of its output that an error shows before those of its log.
OUTPUT_LINES: Final = 12

#: How often it is looked at, in seconds.
_POLL_SECS = 0.05

_NEVER = re.compile(r"(?!)")


def run(
    name: str,
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    secs: float,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Run a program to its end.

    It ends with the thread that runs it, and so does what it has started in its session.

    Parameters
    ----------
    name, argv, log, env
        As of `Child`; `argv` begins with a path.
    secs
        How long it may take.
    cancelled
        Asked while it runs; once it says so, the program is ended.
    progress
        Called with each line of its output, as far as the lines do not come too fast.

    Raises
    ------
    ChildError
        It cannot be started, takes longer, is cancelled, or fails; the message ends with what
        it said last.
    """
    with_us = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
    child = Child(name, [*with_us, *argv], log=log, env=env, ready=_NEVER)
    deadline = time.monotonic() + secs
    why, heard = "", 0
    try:
        while child.returncode is None and not why:
            heard = _pass_on(child, heard, progress)
            if cancelled():
                why = "when it was cancelled"
            elif time.monotonic() > deadline:
                why = f"after {secs:.0f} s"
            else:
                time.sleep(_POLL_SECS)
    finally:
        child.stop(GRACE_SECS)
    _pass_on(child, heard, progress)
    if why:
        raise ChildError(f"{name} was ended {why}:\n{_last_words(child)}")
    if child.returncode != 0:
        raise ChildError(f"{name} {child.state()}:\n{_last_words(child)}")


def _pass_on(child: Child, heard: int, progress: Callable[[str], None]) -> int:
    """Pass the lines on that came after the first `heard` ones; return how many there are now."""
    lines, count = child.output()
    for line in lines[len(lines) - min(count - heard, len(lines)) :]:
        progress(line)
    return count


def _last_words(child: Child) -> str:
    """Return the last lines of its output, which may say why, and those of its log."""
    if not child.log.stat().st_size:
        return child.log_tail()  # which is the output then
    return "\n".join([*child.output()[0][-OUTPUT_LINES:], child.log_tail()])
