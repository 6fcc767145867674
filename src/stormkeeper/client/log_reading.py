"""Reads what one machine has of a topology's logs: the end of them, and what comes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from stormkeeper.client.log_parts import (
    Lines,
    Place,
    begins_before,
    is_packed,
    next_packed,
    next_part,
)
from stormkeeper.client.log_server import LogFile, LogServer

#: Bytes asked for at a time.
_BLOCK: Final = 256 * 1024
#: Of gzip's format, by zlib's number for it.
_GZIP: Final = 31
#: Bytes of a log that are shown where nobody says since when, as on a page of Storm's.
END_BYTES: Final = 51_200

#: Is handed a line, with the port of the worker whose it is.
Show = Callable[[int, str], None]


class _Reader(NamedTuple):
    place: Place
    lines: Lines


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

    def _read_worker(self, port: int, files: Sequence[LogFile], show: Show) -> None:
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

    def _read_packed(self, port: int, file: LogFile, show: Show) -> None:
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

    def _unpacked(self, file: LogFile) -> Iterator[bytes]:
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

    def _begin(self, files: Sequence[LogFile]) -> _Reader:
        """Return where a worker's log is read from."""
        since = self._since
        packed = [file for file in files if is_packed(file)]
        plain = [file for file in files if not is_packed(file)]
        done = frozenset(each.identity for each in packed if since is None or each.modified < since)
        # A line may begin in a packed file that is left out.
        is_whole = not done
        if not plain:
            return _Reader(Place("", 0, 0.0, done), Lines(since=since, is_whole=is_whole))
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
        place = Place(file.identity, start, file.modified, done)
        return _Reader(place, Lines(since=since, is_whole=is_whole))

    def _start(self, file: LogFile, since: float) -> int:
        """Return an offset in a file before which all is older, looking from its end."""
        start = file.size
        while start > 0:
            start = max(0, start - _BLOCK)
            data = self.server.read(file, start, _BLOCK)
            if data is None or begins_before(data, since):
                break
        return start
