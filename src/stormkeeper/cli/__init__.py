"""The ``storm`` command, also installed as ``stormkeeper``.

Nothing is imported here that takes time: a hangup has to be held back before.
"""

import os
import signal
import sys


def main() -> None:
    """Run the command that the process was started with, and exit."""
    # It would end a daemon that is told to reload while it starts. What this holds back comes when
    # it is let through: by the daemon that heeds it, or as soon as it is another command's.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    if sys.stdout is None:
        # What the process opens next would take its place, and be written to.
        sys.exit("storm: standard output is closed; where nobody is to read it, use >/dev/null")
    from stormkeeper.cli.commands import storm

    name = sys.argv[0].rpartition("/")[2]
    try:
        storm.main(prog_name=name if name in {"storm", "stormkeeper"} else "storm")
    except OSError as error:
        fault = None if error.filename else _fault_of_stdout()
        if fault is None:
            raise
        sys.exit(f"storm: cannot write to standard output: {fault.strerror}")


def _fault_of_stdout() -> OSError | None:
    """Return why standard output cannot be written to; None if it can.

    An error does not tell which file it is about, so that a newline is tried. What is still to be
    written is given up, as it would be tried again at the process's end.
    """
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError as fault:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        return fault
    return None
