"""Runs a program that dies when the process that started it dies.

It is run by its path: ``python -I -S die_with_parent.py PARENT_PID PROGRAM [ARGUMENT…]``. It asks
Linux for SIGTERM at the parent's death. Then it becomes PROGRAM, which keeps both the request and
the process id. This is for programs that cannot ask for themselves, such as a JVM. It is a process
of its own because code between fork and exec is not safe in a parent with threads. It imports
nothing of ours, so that it costs a few milliseconds.

Linux counts the *thread* that started the child as its parent. So start it from a thread that lives
as long as the child should. On other systems there is no such request, and PROGRAM just runs.
"""

import ctypes
import os
import signal
import sys

#: From ``<linux/prctl.h>``.
PR_SET_PDEATHSIG = 1


def _die_with(parent: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        # The parent died before the request was made, so no signal will come.
        sys.exit(1)


if __name__ == "__main__":
    _die_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
