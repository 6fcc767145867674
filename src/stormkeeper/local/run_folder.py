"""The folder of a local run, its removal if the run is killed, and folders of earlier killed runs.

A run locks a file in its folder, and so does its reaper. The system releases the lock when both
have ended, so a folder whose lock can be taken is abandoned. The file holds the run's mark, which
the environment of its processes carries.

The reaper is a process: ``python -m stormkeeper.local.run_folder FOLDER MARK``. Its standard input
is a pipe from the run. A byte means that the run ended in order; the end of the pipe without a byte
means that the run was killed. Linux sends the children a signal then, but not Spark's JVM, which is
a grandchild.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from stormkeeper.daemon.children import end_marked
from stormkeeper.daemon.durable import try_lock
from stormkeeper.errors import LocalClusterError

PREFIX = "stormkeeper-local-"

#: The file that the run locks; it holds the run's mark.
OWNER = ".owner"


class RunFolder:
    """A temporary folder for the run with this `mark`; removed at the end."""

    def __init__(self, mark: str) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        except OSError as error:
            raise _no_place(error) from error
        aside = self.path / f"{OWNER}.new"
        try:
            aside.write_text(mark)
            self._owner = aside.open("r+b")
        except OSError as error:
            self.remove()
            raise _no_place(error) from error
        try_lock(self._owner, if_unsupported=False)
        # Renamed once locked, so that no other run takes it for abandoned.
        aside.rename(self.path / OWNER)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()
        self._owner.close()

    def fileno(self) -> int:
        """Return the descriptor that holds the lock, for the reaper to inherit."""
        return self._owner.fileno()

    def remove(self) -> None:
        """Remove the folder with all contents, as far as the system allows."""
        remove(self.path)


def remove_abandoned() -> int:
    """Remove the folders and processes of killed runs of this user; return how many there were."""
    removed = 0
    try:
        temporary = Path(tempfile.gettempdir())
    except OSError as error:
        raise _no_place(error) from error
    for folder in temporary.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            removed += _remove_if_abandoned(folder)
    return removed


def remove(folder: Path) -> None:
    """Remove a run's folder.

    The file with the mark goes last, so that a later run can finish an interrupted removal.
    """
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != OWNER:
                entry.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _no_place(error: OSError) -> LocalClusterError:
    return LocalClusterError(
        f"there is no place for the files of a run ({error}): set TMPDIR to a folder that can be"
        " written and has space"
    )


def _remove_if_abandoned(folder: Path) -> bool:
    if folder.lstat().st_uid != os.getuid():
        return False
    # O_NOFOLLOW: any user may put a link into a shared temporary folder.
    owner = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(owner, "r+b") as file:
        if not try_lock(file, if_unsupported=False):
            return False
        mark = file.read().decode()
        if mark:
            end_marked(mark, settle_secs=0)
        remove(folder)
    return True


#: Seconds until the processes of a killed run are killed. The system has sent them a signal, and
#: only a running batch takes longer.
SETTLE_SECS = 1.0

#: Timeout for the reaper's own end, in seconds.
END_SECS = 5.0

#: Signals that often go to a whole group or service. The reaper ends with its pipe alone.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_IN_ORDER = b"."


class Reaper:
    """Starts the reaper process of a run, and ends the reaper with the run."""

    def __init__(self, folder: RunFolder, mark: str) -> None:
        # A session of its own, so that it does not hold the terminal open.
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
        """Tell the reaper that the run has ended in order, and wait for the reaper's end."""
        try:
            self._process.communicate(_IN_ORDER, END_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(folder: Path, mark: str) -> None:
    """Wait for the end of the run; clean up if the run was killed."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1) == _IN_ORDER:
        return
    end_marked(mark, settle_secs=SETTLE_SECS)
    remove(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
