"""The folder of a local run, and those that killed runs have left.

A run holds a lock on a file in its folder, and its reaper holds the same lock. The system releases
it when both have ended, however they ended. So a folder whose lock can be taken belongs to nobody
any more. The file holds the run's mark, by which what is left of its processes is found.
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

#: The file in a run's folder that the run locks. It holds the run's mark.
OWNER = ".owner"


class RunFolder:
    """A folder in the system's temporary folder, for the run with this `mark`; removed at the end.

    Raises
    ------
    LocalClusterError
        There is no place for it.
    """

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
        # Nobody finds the file before it is locked.
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
        """Return the descriptor that holds the lock, for the run's reaper to hold it too."""
        return self._owner.fileno()

    def remove(self) -> None:
        """Remove the folder and all that is in it, as far as the system allows."""
        remove(self.path)


def remove_abandoned() -> int:
    """Remove the folders of runs that were killed, and what is left of their processes.

    Only folders of this user are removed, and only where their lock can be taken. Returns how many
    there were.

    Raises
    ------
    LocalClusterError
        There is no temporary folder.
    """
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

    The file with the mark goes last, so that the next run can go on where this one was cut short.
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
    # No symbolic link is followed: anybody may have put one into a folder that all may write to.
    owner = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(owner, "r+b") as file:
        if not try_lock(file, if_unsupported=False):
            return False
        mark = file.read().decode()
        if mark:
            end_marked(mark, settle_secs=0)
        remove(folder)
    return True


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
