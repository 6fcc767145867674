"""The logs that workers of this machine have left, for whoever may not log in to it.

Nothing else can be reached, whatever is asked for: a name has three parts (a topology's id, a port,
``worker.log`` or what it was renamed to), each is opened below the one before it, no link is
followed, and only a regular file is read.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

#: Files in one answer: those of one topology here.
MOST_FILES: Final = 1024
#: Bytes of one answer, which has to be made and read in seconds.
MOST_BYTES: Final = 256 * 1024

_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_CURRENT: Final = "worker.log"
_NAME: Final = re.compile(r"worker\.log(\.[0-9]{1,6}(\.gz)?)?")

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
#: Whoever opens a pipe would wait for its other end.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class LogName(NamedTuple):
    """Which file: ``ID/PORT/NAME``."""

    storm_id: str
    port: int
    name: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the name that a text is, None where it can be none."""
        storm_id, _, rest = text.partition("/")
        port, _, name = rest.partition("/")
        if not is_topology(storm_id) or not _PORT.fullmatch(port) or not _NAME.fullmatch(name):
            return None
        return cls(storm_id, int(port), name)

    def __str__(self) -> str:
        return f"{self.storm_id}/{self.port}/{self.name}"


class LogFile(NamedTuple):
    """A file as it is now."""

    name: LogName
    #: The same as long as it is this file, whatever its name.
    identity: str
    #: Its bytes.
    size: int
    #: When it was last written to, in seconds since 1970.
    modified: float


class Piece(NamedTuple):
    """A part of a file."""

    identity: str
    #: Where it begins, in bytes from the file's beginning.
    start: int
    #: Bytes of the whole file.
    size: int
    data: bytes


def is_topology(storm_id: str) -> bool:
    """Return whether that can be a topology's id, and so the name of a folder."""
    try:
        storm_id.encode()
    except UnicodeEncodeError:
        return False
    return storm_id not in ("", ".", "..") and not {"/", "\0"}.intersection(storm_id)


class LogFiles:
    """The logs in a folder of what workers leave. Safe for many threads.

    Parameters
    ----------
    folder
        `Directories.all_artifacts`; it need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self, storm_id: str, port: int | None = None) -> list[LogFile]:
        """Return the logs of a topology's workers, or of those in one slot.

        They are in the order of the ports; those of a slot begin with the one that was written to
        the longest ago, and end with ``worker.log``. Where that is smaller than it was because its
        beginning was moved to another file, that one is among them.

        Raises
        ------
        OSError
            A folder cannot be read.
        """
        if not is_topology(storm_id):
            return []
        found: list[LogFile] = []
        with suppress(FileNotFoundError, NotADirectoryError), self._opened(storm_id) as topology:
            with os.scandir(topology) as entries:
                ports = sorted(int(each.name) for each in entries if _PORT.fullmatch(each.name))
            for each in ports if port is None else [port]:
                # It may be removed at any time, or be something else that an operator put there.
                with suppress(FileNotFoundError, NotADirectoryError):
                    found += self._of_slot(storm_id, each)
        return found[:MOST_FILES]

    def read(self, name: LogName, start: int | None, length: int) -> Piece:
        """Read a part of a file.

        Parameters
        ----------
        name
            Which.
        start
            Where it begins; None: so that it ends where the file does.
        length
            Its bytes, of which no more than `MOST_BYTES` are read.

        Raises
        ------
        OSError
            It is not there, cannot be read, or is no regular file.
        """
        length = min(length, MOST_BYTES)
        with self._opened(name.storm_id, str(name.port), file=name.name) as opened:
            status = os.fstat(opened)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(name)
            if start is None:
                start = max(0, status.st_size - length)
            # Not beyond the size that is told, as it grows meanwhile.
            data = os.pread(opened, max(0, min(length, status.st_size - start)), start)
        return Piece(_identity(status), start, status.st_size, data)

    def _of_slot(self, storm_id: str, port: int) -> list[LogFile]:
        def file(name: str, status: os.stat_result) -> Iterator[LogFile]:
            if stat.S_ISREG(status.st_mode):
                named = LogName(storm_id, port, name)
                yield LogFile(named, _identity(status), status.st_size, status.st_mtime)

        found: list[LogFile] = []
        current: list[LogFile] = []
        with self._opened(storm_id, str(port)) as slot:
            # First: what is taken out of it later than that is there twice, and not missing.
            with suppress(FileNotFoundError):
                status = os.stat(_CURRENT, dir_fd=slot, follow_symlinks=False)
                current += file(_CURRENT, status)
            with os.scandir(slot) as entries:
                for entry in entries:
                    if entry.name != _CURRENT and _NAME.fullmatch(entry.name):
                        with suppress(FileNotFoundError):
                            found += file(entry.name, entry.stat(follow_symlinks=False))
        return [*sorted(found, key=lambda each: each.modified), *current]

    @contextmanager
    def _opened(self, *folders: str, file: str | None = None) -> Iterator[int]:
        """Give a descriptor of what is at a path of names, none of which has a slash in it."""
        # The folder itself may be a link that the operator made.
        held = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        steps = [(name, _FOLDER) for name in folders]
        if file is not None:
            steps.append((file, _FILE))
        try:
            for name, how in steps:
                below = os.open(name, how, dir_fd=held)
                os.close(held)
                held = below
            yield held
        finally:
            os.close(held)


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev:x}-{status.st_ino:x}"
