"""What of a worker's log is to be read next, and which of its lines are shown; pure.

A log grows, is renamed for a new one to begin (``worker.log.1``), or is emptied. A reader knows the
file by its identity and goes on from its offset there: through what was renamed, and then through
what is newer.

Our workers move the beginning of their log into a packed file (``worker.log.1.gz``) and take it out
of the log, which stays the same file. So what was read of a log was read of each packed file that
has come since, as far as it goes, and the log's own bytes come after those.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Final, NamedTuple

from stormkeeper.client.log_server import LogFile

#: Bytes of a line that are held back until its end comes.
MOST_HELD: Final = 1024 * 1024

#: Bytes of the lines that are shown though they may be older than was asked for.
MOST_DOUBTFUL: Final = 51_200

#: How our daemons' lines begin: with a time, plain or as JSON.
_TIME: Final = re.compile(rb'(?:\{"time": ")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z')


class Place(NamedTuple):
    """How far a worker's log was read."""

    #: Of the file.
    identity: str
    #: Bytes of it that were read.
    offset: int
    #: When it was last written to, as far as is known.
    modified: float
    #: The identities of packed files of which there is nothing to be read, or nothing more.
    done: frozenset[str] = frozenset()

    def after(self, part: Part, length: int) -> Place:
        """Return how far was read when so many bytes of a part were."""
        file = part.file
        return Place(file.identity, part.start + length, file.modified, self.done)

    def after_packed(self, file: LogFile, length: int) -> Place:
        """Return how far was read when all of a packed file was, which is so long, unpacked."""
        offset = max(0, self.offset - length)
        return self._replace(offset=offset, done=self.done | {file.identity})


class Part(NamedTuple):
    """What is to be read next."""

    file: LogFile
    start: int
    length: int
    #: Whether it follows what was read before: else it begins with a line of its own.
    goes_on: bool


def is_packed(file: LogFile) -> bool:
    """Return whether a file is packed."""
    return file.file.endswith(".gz")


def next_packed(files: Sequence[LogFile], place: Place) -> LogFile | None:
    """Return the packed file that is to be read next, before any `next_part`."""
    packed = (file for file in files if is_packed(file))
    return next((file for file in packed if file.identity not in place.done), None)


def next_part(files: Sequence[LogFile], place: Place) -> Part | None:
    """Return what is to be read next, None where all has been.

    Parameters
    ----------
    files
        Of one worker, as `LogServer.files` returns them; the packed ones do not count.
    place
        How far was read.
    """
    files = [file for file in files if not is_packed(file)]
    at = next((n for n, file in enumerate(files) if file.identity == place.identity), None)
    if at is None:
        # It is gone. What was written to since is newer than it was.
        newer = [file for file in files if file.modified >= place.modified] or files[-1:]
        return next((_from_its_beginning(file) for file in newer if file.size), None)
    file = files[at]
    if file.size < place.offset:
        return _from_its_beginning(file)  # which may be its end, too, and is to be remembered
    if file.size > place.offset:
        return Part(file, place.offset, file.size - place.offset, goes_on=True)
    return next((_from_its_beginning(file) for file in files[at + 1 :] if file.size), None)


def _from_its_beginning(file: LogFile) -> Part:
    return Part(file, 0, file.size, goes_on=False)


def time_of(line: bytes) -> float | None:
    """Return when a line was logged, in seconds since 1970, None where it does not say.

    Examples
    --------
    >>> time_of(b"1970-01-01T00:01:00.500Z INFO stormkeeper.worker a word")
    60.5
    >>> time_of(b"a word")
    """
    found = _TIME.match(line)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(f"{found[1].decode()}+00:00").timestamp()
    except ValueError:
        return None


def begins_before(data: bytes, moment: float) -> bool:
    """Return whether the first line in `data` that says its time was logged before `moment`.

    Its first line may be the rest of one, which does not count.
    """
    times = (time_of(line) for line in data.split(b"\n")[1:])
    first = next((time for time in times if time is not None), None)
    return first is not None and first < moment


class Lines:
    """Makes lines of the pieces of a worker's log.

    Not every line says when it was logged: what a topology prints does not, nor does the further
    text of a message, which is indented. With `since`, such a line is left out where one that
    follows it says that it is older. Of those at the end, which may be of any time, the last
    `MOST_DOUBTFUL` bytes are shown.

    Parameters
    ----------
    since
        Lines from before are left out, in seconds since 1970.
    is_whole
        Whether the first piece begins with the beginning of a line. Else what comes before the
        second line is left out.
    """

    def __init__(self, *, since: float | None = None, is_whole: bool = True) -> None:
        self._since = since
        self._held = b""
        self._is_cut = not is_whole
        self._age = _Age.NEW if since is None else _Age.DOUBTFUL
        #: Those that may be older.
        self._doubtful: deque[bytes] = deque()
        self._doubtful_bytes = 0

    def take(self, data: bytes) -> Iterator[str]:
        """Yield the lines that end with `data`."""
        *ended, self._held = (self._held + data).split(b"\n")
        if len(self._held) > MOST_HELD:
            ended.append(self._held)
            self._held = b""
        for line in ended:
            if self._is_cut:
                self._is_cut = False
            else:
                yield from self._judged(line)

    def caught_up(self) -> Iterator[str]:
        """Yield the doubtful lines, as nothing follows them now; what comes later is new."""
        yield from self._cleared()
        self._since, self._age = None, _Age.NEW

    def end(self) -> Iterator[str]:
        """Yield the line that has begun, as nothing more comes of it."""
        held, self._held = self._held, b""
        if held and not self._is_cut:
            yield from self._judged(held)
        self._is_cut = False

    def _judged(self, line: bytes) -> Iterator[str]:
        """Yield what is to be shown when there is this line, too."""
        time = None if self._since is None else time_of(line)
        if time is not None and self._since is not None:
            self._age = _Age.NEW if time >= self._since else _Age.OLD
            if self._age is _Age.OLD:
                self._doubtful.clear()
                self._doubtful_bytes = 0
        elif self._age is _Age.OLD and not line[:1].isspace():
            self._age = _Age.DOUBTFUL
        if self._age is _Age.NEW:
            yield from self._cleared()
            yield _text(line)
        elif self._age is _Age.DOUBTFUL:
            self._doubtful.append(line)
            self._doubtful_bytes += len(line) + 1
            while self._doubtful_bytes > MOST_DOUBTFUL:
                self._doubtful_bytes -= len(self._doubtful.popleft()) + 1

    def _cleared(self) -> Iterator[str]:
        while self._doubtful:
            yield _text(self._doubtful.popleft())
        self._doubtful_bytes = 0


class _Age(Enum):
    """Of a line, beside the moment since which lines are shown."""

    OLD = auto()
    DOUBTFUL = auto()
    NEW = auto()


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")
