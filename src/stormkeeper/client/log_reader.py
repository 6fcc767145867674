"""Reads the logs of a topology's workers from a machine: the end, or since a time, and on.

A log grows, is renamed when a new log begins (``worker.log.1``), or is emptied. The reader knows a
file by identity and continues at the offset: through a renamed file, then newer files.
Stormkeeper's workers move the log's beginning into a packed file (``worker.log.1.gz``). So an
offset into a log counts in a packed file that appears afterwards.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from itertools import groupby
from typing import Final, NamedTuple

from stormkeeper.client.log_server import LogServer, RemoteLog

_BLOCK: Final = 256 * 1024
#: zlib's number for the gzip format.
_GZIP: Final = 31
#: Bytes from a log's end by default, as on Storm's page.
END_BYTES: Final = 51_200
#: Bytes of an incomplete line.
MOST_HELD: Final = 1024 * 1024
#: Bytes of lines without a time that are shown at the end: they may be too old.
MOST_DOUBTFUL: Final = 51_200

#: The time before a line of Stormkeeper's daemons, plain or as JSON.
_TIME: Final = re.compile(rb'(?:\{"time": ")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z')

#: Gets a worker's port and a line.
Show = Callable[[int, str], None]


class LogPosition(NamedTuple):
    """How far a worker's log is read: `offset` bytes of the file with that identity.

    `done` has the identities of read packed files.
    """

    identity: str
    offset: int
    modified: float
    done: frozenset[str] = frozenset()

    def after(self, part: LogPart, length: int) -> LogPosition:
        file = part.file
        return LogPosition(file.identity, part.start + length, file.modified, self.done)

    def after_packed(self, file: RemoteLog, length: int) -> LogPosition:
        offset = max(0, self.offset - length)
        return self._replace(offset=offset, done=self.done | {file.identity})


class LogPart(NamedTuple):
    """The next part to read; with `goes_on` a continuation, maybe inside a line."""

    file: RemoteLog
    start: int
    length: int
    goes_on: bool


def is_packed(file: RemoteLog) -> bool:
    return file.file.endswith(".gz")


def next_packed(files: Sequence[RemoteLog], position: LogPosition) -> RemoteLog | None:
    """Return the next packed file; packed files come before any `next_part`."""
    packed = (file for file in files if is_packed(file))
    return next((file for file in packed if file.identity not in position.done), None)


def next_part(files: Sequence[RemoteLog], position: LogPosition) -> LogPart | None:
    """Return the next part of a worker's unpacked files."""
    files = [file for file in files if not is_packed(file)]
    at = next((n for n, file in enumerate(files) if file.identity == position.identity), None)
    if at is None:
        # The file is gone. Files with new lines are newer.
        newer = [file for file in files if file.modified >= position.modified] or files[-1:]
        return next((_whole(file) for file in newer if file.size), None)
    file = files[at]
    if file.size < position.offset:
        return _whole(file)  # even an empty part, which sets the offset back
    if file.size > position.offset:
        return LogPart(file, position.offset, file.size - position.offset, goes_on=True)
    return next((_whole(file) for file in files[at + 1 :] if file.size), None)


def _whole(file: RemoteLog) -> LogPart:
    return LogPart(file, 0, file.size, goes_on=False)


def time_of(line: bytes) -> float | None:
    """Return the time of a line in seconds since 1970, or None.

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
    times = (time_of(line) for line in data.split(b"\n")[1:])
    first = next((time for time in times if time is not None), None)
    return first is not None and first < moment


class LogLines:
    """Splits the pieces of a worker's log into lines, and drops lines older than `since`.

    A topology's output and the indented lines of a message have no time. Such a line is dropped if
    a later line is too old; at the log's end the last `MOST_DOUBTFUL` bytes are shown. Unless
    `is_whole`, the first piece begins inside a line, which is dropped.
    """

    def __init__(self, *, since: float | None = None, is_whole: bool = True) -> None:
        self._since = since
        self._held = b""
        self._is_cut = not is_whole
        self._age = _Age.NEW if since is None else _Age.DOUBTFUL
        self._doubtful: deque[bytes] = deque()
        self._doubtful_bytes = 0

    def take(self, data: bytes) -> Iterator[str]:
        *ended, self._held = (self._held + data).split(b"\n")
        if len(self._held) > MOST_HELD:
            ended.append(self._held)
            self._held = b""
        for line in ended:
            if self._is_cut:
                self._is_cut = False
            else:
                yield from self._filtered(line)

    def caught_up(self) -> Iterator[str]:
        """Yield the doubtful lines at the log's end; later lines are new."""
        yield from self._cleared()
        self._since, self._age = None, _Age.NEW

    def end(self) -> Iterator[str]:
        held, self._held = self._held, b""
        if held and not self._is_cut:
            yield from self._filtered(held)
        self._is_cut = False

    def _filtered(self, line: bytes) -> Iterator[str]:
        """Yield lines that are known to be new."""
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
    """A line's age compared to `since`."""

    OLD = auto()
    DOUBTFUL = auto()
    NEW = auto()


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="replace")


@dataclass
class _WorkerLog:
    """How far a worker's log is read, and the lines of the read pieces."""

    position: LogPosition
    lines: LogLines


@dataclass(eq=False)
class MachineLogs:
    """Reads a machine's logs of a topology; each `read` continues the last.

    `ports` None: all workers. Without `since`, in seconds since 1970, each log's last `END_BYTES`
    are read. Another `server` may replace the first.
    """

    server: LogServer
    storm_id: str
    ports: Collection[int] | None = None
    since: float | None = None
    _logs: dict[int, _WorkerLog] = field(default_factory=dict, init=False, repr=False)

    @property
    def read_ports(self) -> Collection[int]:
        return self._logs.keys()

    def read(self, show: Show) -> None:
        """Show new lines; raises `LogsError` if the machine does not answer."""
        files = self.server.files(self.storm_id)
        for port, of_a_worker in groupby(files, key=lambda file: file.port):
            if self.ports is None or port in self.ports:
                for line in self._new_lines(port, list(of_a_worker)):
                    show(port, line)

    def end(self, show: Show) -> None:
        """Show the incomplete lines."""
        for port, log in self._logs.items():
            for line in log.lines.end():
                show(port, line)

    def _new_lines(self, port: int, files: Sequence[RemoteLog]) -> Iterator[str]:
        if port not in self._logs:
            self._logs[port] = self._begin(files)
        log = self._logs[port]
        while packed := next_packed(files, log.position):
            yield from self._packed_lines(log, packed)
            # The worker has now cut the packed bytes from the log.
            files = [file for file in self.server.files(self.storm_id) if file.port == port]
        while part := next_part(files, log.position):
            data = b""
            if part.length:
                data = self.server.read(part.file, part.start, min(part.length, _BLOCK)) or b""
                if not data:
                    return  # another file has this name now
            if not part.goes_on:
                yield from log.lines.end()
            yield from log.lines.take(data)
            log.position = log.position.after(part, len(data))
        yield from log.lines.caught_up()

    def _packed_lines(self, log: _WorkerLog, file: RemoteLog) -> Iterator[str]:
        length = 0
        for data in self._unpacked(file):
            length += len(data)
            if (fresh := length - log.position.offset) > 0:
                yield from log.lines.take(data[-fresh:])
                log.position = log.position._replace(offset=length)
        log.position = log.position.after_packed(file, length)

    def _unpacked(self, file: RemoteLog) -> Iterator[bytes]:
        """Yield a file's unpacked bytes, up to any damage."""
        unpacker, offset = zlib.decompressobj(_GZIP), 0
        while offset < file.size:
            packed = self.server.read(file, offset, _BLOCK)
            if not packed:  # renamed or gone
                files = self.server.files(self.storm_id)
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

    def _begin(self, files: Sequence[RemoteLog]) -> _WorkerLog:
        since = self.since
        packed = [file for file in files if is_packed(file)]
        plain = [file for file in files if not is_packed(file)]
        done = frozenset(each.identity for each in packed if since is None or each.modified < since)
        # A line may begin in an unread packed file.
        is_whole = not done
        if not plain:
            return _WorkerLog(
                LogPosition("", 0, 0.0, done), LogLines(since=since, is_whole=is_whole)
            )
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
        position = LogPosition(file.identity, start, file.modified, done)
        return _WorkerLog(position, LogLines(since=since, is_whole=is_whole))

    def _start(self, file: RemoteLog, since: float) -> int:
        """Return an offset before which all lines are too old; reads from the end."""
        start = file.size
        while start > 0:
            start = max(0, start - _BLOCK)
            data = self.server.read(file, start, _BLOCK)
            if data is None or begins_before(data, since):
                break
        return start
