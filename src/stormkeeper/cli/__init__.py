"""The ``storm`` command, also installed as ``stormkeeper``.

Imports nothing slow: SIGHUP must be blocked before.
"""

import os
import signal
import sys
from typing import Final, NoReturn

#: EX_IOERR of sysexits.h: standard output cannot be written to.
_UNWRITABLE: Final = 74


def main() -> None:
    # A SIGHUP for a reload would end a starting daemon. `commands`, or the daemon, unblocks SIGHUP.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    if sys.stdout is None:
        # The next opened file would become standard output.
        _end("standard output is closed; to discard the output, use >/dev/null")
    if sys.flags.optimize >= 2:
        # The parser of Storm's records is made of docstrings.
        sys.exit("storm: PYTHONOPTIMIZE=2 (-OO) removes what this program needs: use 1, or none")
    for stream in filter(None, (sys.stdout, sys.stderr)):
        # Escapes characters that the encoding lacks, as with PYTHONIOENCODING=ascii.
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
    sys.stderr.write(f"storm: {problem}\n")
    sys.exit(_UNWRITABLE)


def _fault_of_stdout() -> OSError | None:
    """Return why standard output cannot be written to, after trying a newline.

    An OSError does not name its file. Discards buffered output, which the interpreter would write
    again at the end.
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
