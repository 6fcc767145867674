"""Removes what a killed `storm local` leaves behind: its processes and its folder.

This is a process of its own: ``python -m stormkeeper.local.reaper FOLDER MARK``. Its standard input
is a pipe, and nobody but the run has the other end. A byte says that the run has ended in order. If
the pipe ends without a byte, the run was killed. Nothing else tells that so soon and so surely: on
Linux the children get a signal then, but Spark's JVM, which is a grandchild, gets none, and a
running batch may take long.
"""

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from stormkeeper.daemon.children import end_marked
from stormkeeper.local.folder import RunFolder, remove

#: How long the processes of a killed run may go on, in seconds. The system has told them to end,
#: and all but a running batch do so at once.
SETTLE_SECS = 1.0

#: How long the reaper of a run that has ended in order may take to end, in seconds.
END_SECS = 5.0

#: Only the end of the pipe ends it. These signals often go to a whole group or service.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_IN_ORDER = b"."


class Reaper:
    """The run's handle on its reaper: it starts the process, and ends it when it is left.

    Parameters
    ----------
    folder
        The folder of the run.
    mark
        What the processes of the run carry in their environment.
    """

    def __init__(self, folder: RunFolder, mark: str) -> None:
        # A session of its own, without the terminal, which it would hold open otherwise.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(folder.path), mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(folder.fileno(),),
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Tell it that the run has ended in order, and wait for its end."""
        try:
            self._process.communicate(_IN_ORDER, END_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(folder: Path, mark: str) -> None:
    """Wait for the end of the run."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1) == _IN_ORDER:
        return
    end_marked(mark, settle_secs=SETTLE_SECS)
    remove(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
