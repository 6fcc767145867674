"""Reads what one machine has of a topology's logs: the end of them, and what comes."""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from enum import Enum, auto
from itertools import groupby
from typing import Final, NamedTuple

from stormkeeper.client.log_server import LogServer, RemoteLog

#: Bytes asked for at a time.
_BLOCK: Final = 256 * 1024
#: Of gzip's format, by zlib's number for it.
_GZIP: Final = 31
#: Bytes of a log that are shown where nobody says since when, as on a page of Storm's.
END_BYTES: Final = 51_200

#: Is handed a line, with the port of the worker whose it is.
Show = Callable[[int, str], None]


class _Reader(NamedTuple):
    place: LogPosition
    lines: LogLines


class MachineLogs:
    """What was read of one machine's logs of one topology; each `read` goes on from there.

    Parameters
    ----------
    server
        Has the logs. It may be replaced, as by one with another address.
    storm_id
        The topology.
    ports
        Of the workers whose logs are read; None: all that are there.
    since
        Lines from before are left out, in seconds since 1970. None: a log is read from `END_BYTES`
        before its end.
    """

    def __init__(
        self,
        server: LogServer,
        storm_id: str,
        *,
        ports: Collection[int] | None = None,
        since: float | None = None,
    ) -> None:
        self.server = server
        self.ports = ports
        self._storm_id = storm_id
        self._since = since
        self._readers: dict[int, _Reader] = {}

    @property
    def read_ports(self) -> Collection[int]:
        """Of the workers of which a log was found."""
        return self._readers.keys()

    def read(self, show: Show) -> None:
        """Hand over every line that has come.

        Raises
        ------
        LogsError
            The machine does not give them. What was handed over is not handed over again.
        """
        files = self.server.files(self._storm_id)
        for port, of_a_worker in groupby(files, key=lambda file: file.port):
            if self.ports is None or port in self.ports:
                self._read_worker(port, list(of_a_worker), show)

    def end(self, show: Show) -> None:
        """Hand over the lines that have begun, as nothing more is read."""
        for port, reader in self._readers.items():
            for line in reader.lines.end():
                show(port, line)

    def _read_worker(self, port: int, files: Sequence[RemoteLog], show: Show) -> None:
        if port not in self._readers:
            self._readers[port] = self._begin(files)
        while packed := next_packed(files, self._readers[port].place):
            self._read_packed(port, packed, show)
            # What it has was taken out of the log by now, if it was not yet then.
            files = [file for file in self.server.files(self._storm_id) if file.port == port]
        while part := next_part(files, self._readers[port].place):
            data = b""
            if part.length:
                read = self.server.read(part.file, part.start, min(part.length, _BLOCK))
                if not read:
                    return  # it has become another one meanwhile
                data = read
            place, lines = self._readers[port]
            if not part.goes_on:
                for line in lines.end():
                    show(port, line)
            for line in lines.take(data):
                show(port, line)
            self._readers[port] = _Reader(place.after(part, len(data)), lines)
        for line in self._readers[port].lines.caught_up():
            show(port, line)

    def _read_packed(self, port: int, file: RemoteLog, show: Show) -> None:
        """Hand over what was not read of a packed file."""
        length = 0
        for data in self._unpacked(file):
            place, lines = self._readers[port]
            length += len(data)
            if (fresh := length - place.offset) > 0:
                for line in lines.take(data[-fresh:]):
                    show(port, line)
                self._readers[port] = _Reader(place._replace(offset=length), lines)
        place, lines = self._readers[port]
        self._readers[port] = _Reader(place.after_packed(file, length), lines)

    def _unpacked(self, file: RemoteLog) -> Iterator[bytes]:
        """Yield what a packed file has, up to where it is damaged if it is."""
        unpacker, offset = zlib.decompressobj(_GZIP), 0
        while offset < file.size:
            packed = self.server.read(file, offset, _BLOCK)
            if not packed:  # it has another name by now, or is gone
                files = self.server.files(self._storm_id)
                found = [each for each in files if each.identity == file.identity]
                if not found or found[0] == file:
                    return
                file = found[0]
                continue
            offset += len(packed)
            while packed:
                try:
                    data = unpacker.decompress(packed, _BLOCK)
                except zlib.error:
                    return
                if data:
                    yield data
                packed = unpacker.unconsumed_tail
                if unpacker.eof:
                    packed, unpacker = unpacker.unused_data, zlib.decompressobj(_GZIP)

    def _begin(self, files: Sequence[RemoteLog]) -> _Reader:
        """Return where a worker's log is read from."""
        since = self._since
        packed = [file for file in files if is_packed(file)]
        plain = [file for file in files if not is_packed(file)]
        done = frozenset(each.identity for each in packed if since is None or each.modified < since)
        # A line may begin in a packed file that is left out.
        is_whole = not done
        if not plain:
            return _Reader(LogPosition("", 0, 0.0, done), LogLines(since=since, is_whole=is_whole))
        file, start = plain[-1], 0
        if since is None:
            start = max(0, file.size - END_BYTES)
            is_whole = not start
        elif len(done) < len(packed):
            file = plain[0]
        elif file.modified < since:
            start, is_whole = file.size, True
        else:
            file = next(each for each in plain if each.modified >= since)
            start = self._start(file, since)
            is_whole = is_whole and not start
        place = LogPosition(file.identity, start, file.modified, done)
        return _Reader(place, LogLines(since=since, is_whole=is_whole))

    def _start(self, file: RemoteLog, since: float) -> int:
        """Return an offset in a file before which all is older, looking from its end."""
        start = file.size
        while start > 0:
            start = max(0, start - _BLOCK)
            data = self.server.read(file, start, _BLOCK)
            if data is None or begins_before(data, since):
                break
        return start


#: Bytes of a line that are held back until its end comes.
MOST_HELD: Final = 1024 * 1024

#: Bytes of the lines that are shown though they may be older than was asked for.
MOST_DOUBTFUL: Final = 51_200

#: How our daemons' lines begin: with a time, plain or as JSON.
_TIME: Final = re.compile(rb'(?:\{"time": ")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z')


class LogPosition(NamedTuple):
    """How far a worker's log was read."""

    #: Of the file.
    identity: str
    #: Bytes of it that were read.
    offset: int
    #: When it was last written to, as far as is known.
    modified: float
    #: The identities of packed files of which there is nothing to be read, or nothing more.
    done: frozenset[str] = frozenset()

    def after(self, part: LogPart, length: int) -> LogPosition:
        """Return how far was read when so many bytes of a part were."""
        file = part.file
        return LogPosition(file.identity, part.start + length, file.modified, self.done)

    def after_packed(self, file: RemoteLog, length: int) -> LogPosition:
        """Return how far was read when all of a packed file was, which is so long, unpacked."""
        offset = max(0, self.offset - length)
        return self._replace(offset=offset, done=self.done | {file.identity})


class LogPart(NamedTuple):
    """What is to be read next."""

    file: RemoteLog
    start: int
    length: int
    #: Whether it follows what was read before: else it begins with a line of its own.
    goes_on: bool


def is_packed(file: RemoteLog) -> bool:
    """Return whether a file is packed."""
    return file.file.endswith(".gz")


def next_packed(files: Sequence[RemoteLog], place: LogPosition) -> RemoteLog | None:
    """Return the packed file that is to be read next, before any `next_part`."""
    packed = (file for file in files if is_packed(file))
    return next((file for file in packed if file.identity not in place.done), None)


def next_part(files: Sequence[RemoteLog], place: LogPosition) -> LogPart | None:
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
        return LogPart(file, place.offset, file.size - place.offset, goes_on=True)
    return next((_from_its_beginning(file) for file in files[at + 1 :] if file.size), None)


def _from_its_beginning(file: RemoteLog) -> LogPart:
    return LogPart(file, 0, file.size, goes_on=False)


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


class LogLines:
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
