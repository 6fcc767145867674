"""Ends what a `storm local` that was killed leaves: its processes, and its folder.

``python -m stormkeeper.local.reaper FOLDER MARK``, with one end of a pipe as standard input. The
other end is the run's alone. A byte on it says that the run has ended in order. Its end without a
byte says that the run was killed, which nothing else can tell so soon and so surely: on Linux the
children get a signal then, but Spark's JVM, which is a grandchild, gets none, and a running batch
may take its time.
"""

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from stormkeeper.daemon.orphans import end_marked
from stormkeeper.local.folder import RunFolder, remove

#: How long the processes of a killed run may go on, in seconds. They were told to end, and all but
#: a running batch do so at once.
SETTLE_SECS = 1.0

#: How long a reaper may take to end, in seconds.
END_SECS = 5.0

#: Its end is that of the pipe, and no signal to a group or to all processes of a service.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_IN_ORDER = b"."


class Reaper:
    """The reaper of the run that carries `mark`, until it is left; from the side of the run."""

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
        """Let it end without doing anything, and wait for that."""
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
