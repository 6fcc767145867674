"""Runs a program that ends with the thread that started it, such as a JVM.

Usage: ``python -I -S die_with_parent.py PARENT_PID PROGRAM [ARGUMENT…]``. Asks Linux for SIGTERM at
the parent's death, then becomes PROGRAM. A process of its own, because code between fork and exec
is unsafe in a parent with threads; imports nothing of ours, to start in a few milliseconds.
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
        sys.exit(1)  # the parent died before the request: no signal would come


if __name__ == "__main__":
    _die_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
