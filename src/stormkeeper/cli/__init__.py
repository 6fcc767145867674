"""The ``storm`` command, also installed as ``stormkeeper``.

Nothing is imported here that takes time: a hangup has to be held back before.
"""

import os
import signal
import sys
from typing import Final, NoReturn

#: Exit code where standard output cannot be written to, by the name of EX_IOERR in sysexits.h: none
#: of those by which commands say what they found.
_UNWRITABLE: Final = 74


def main() -> None:
    """Run the command that the process was started with, and exit."""
    # It would end a daemon that is told to reload while it starts. What this holds back comes when
    # it is let through: by the daemon that heeds it, or as soon as it is another command's.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    if sys.stdout is None:
        # What the process opens next would take its place, and be written to.
        _end("standard output is closed; where nobody is to read it, use >/dev/null")
    if sys.getfilesystemencoding() == "ascii" or sys.flags.optimize >= 2:
        from stormkeeper.daemon.spark_environment import restart_if_unfit

        restart_if_unfit()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        # What the encoding of the output lacks, as with PYTHONIOENCODING=ascii, is escaped.
        stream.reconfigure(errors="backslashreplace")
    name = sys.argv[0].rpartition("/")[2]
    try:
        from stormkeeper.cli.commands import storm

        storm.main(prog_name=name if name in {"storm", "stormkeeper"} else "storm")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if "No usable temporary directory" in str(error):
            _end("there is no temporary folder: set TMPDIR to a folder that can be written")
        fault = None if error.filename else _fault_of_stdout()
        if fault is None:
            raise
        _end(f"cannot write to standard output: {fault.strerror}")


def _end(problem: str) -> NoReturn:
    """End the command, as nobody would read what it prints."""
    sys.stderr.write(f"storm: {problem}\n")
    sys.exit(_UNWRITABLE)


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
