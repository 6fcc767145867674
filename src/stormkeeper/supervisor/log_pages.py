"""The pages of a supervisor that have its workers' logs and its topologies' code.

Logs are at the addresses of Storm's logviewer.

``/api/v1/log?file=ID/PORT/worker.log`` is the end of a log, as text, or with ``start`` and
``length`` another part, in bytes. A packed one, such as ``worker.log.1.gz``, stays packed. With
``identity`` it is refused (409) if the file has become another one. The headers ``Log-Identity``,
``Log-Start`` and ``Log-Size`` say what part of which file it is.

``/api/v1/listLogs?topoId=ID`` is a JSON list of the files there are; with ``port``, of those of one
slot. With ``details=yes``, which is ours, it has what `LogEntry` says of each.

``/api/v1/code?topology=ID&part=stormjar.jar&sha256=…&start=N`` has some bytes of a part of a
topology's code, none at its end. It is for Nimbuses that have lost the code. Only a client that
knows the SHA-256 of the part gets it: ZooKeeper has that, so whoever knows it could read the code
from a Nimbus as well.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import parse_qs

from stormkeeper.daemon.http import TEXT, Page, refusal
from stormkeeper.supervisor.topology_code import LocalTopologyCode

LOG: Final = "/api/v1/log"
LIST: Final = "/api/v1/listLogs"
CODE: Final = "/api/v1/code"

#: Bytes of a part whose length is not said, as in Storm.
USUAL_BYTES: Final = 51_200

#: Bytes of a topology's id, which is the name of a folder.
_LONGEST_ID: Final = 255

#: What a browser must not take a worker's words for.
_AS_IT_IS: Final = ("X-Content-Type-Options", "nosniff")

_NOT_THERE: Final = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EISDIR)
)


class _BadQueryError(Exception):
    """What is asked for makes no sense; the message says why."""


class _Query:
    """What stands behind the question mark."""

    def __init__(self, text: str) -> None:
        try:
            self._values = parse_qs(text, keep_blank_values=True, max_num_fields=20)
        except ValueError as error:
            raise _BadQueryError("more than 20 parameters") from error

    def text(self, name: str) -> str | None:
        """Return a parameter, None where it is not given."""
        values = self._values.get(name)
        return None if values is None else values[0]

    def number(self, name: str) -> int | None:
        """Return a parameter that is a number."""
        text = self.text(name)
        if text is None:
            return None
        # (Eighteen digits: what a file's size may have.)
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise _BadQueryError(f"{name} is {text[:40]!r}: give a number, such as {name}=1000")
        return int(text)


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


class LogEntry(NamedTuple):
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

    def all(self, storm_id: str, port: int | None = None) -> list[LogEntry]:
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
        found: list[LogEntry] = []
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

    def _of_slot(self, storm_id: str, port: int) -> list[LogEntry]:
        def file(name: str, status: os.stat_result) -> Iterator[LogEntry]:
            if stat.S_ISREG(status.st_mode):
                named = LogName(storm_id, port, name)
                yield LogEntry(named, _identity(status), status.st_size, status.st_mtime)

        found: list[LogEntry] = []
        current: list[LogEntry] = []
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


def queries(logs: LogFiles) -> dict[str, Callable[[str], Page]]:
    """Return what makes each page of the logs; see `stormkeeper.daemon.http`."""
    return {
        LOG: _guarded(lambda query: _part(logs, query)),
        LIST: _guarded(lambda query: _list(logs, query)),
    }


def code_queries(code: LocalTopologyCode) -> dict[str, Callable[[str], Page]]:
    """Return what makes the page of the code."""
    return {CODE: _guarded(lambda query: _code(code, query), "code")}


def _guarded(make: Callable[[_Query], Page], what: str = "log") -> Callable[[str], Page]:
    def page(text: str) -> Page:
        try:
            return make(_Query(text))
        except _BadQueryError as error:
            return refusal(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            if error.errno in _NOT_THERE or isinstance(error, FileNotFoundError):
                return refusal(HTTPStatus.NOT_FOUND, f"there is no such {what} on this machine")
            why = os.strerror(error.errno or 0)
            return refusal(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"this supervisor cannot read it: {why}"
            )

    return page


def _part(logs: LogFiles, query: _Query) -> Page:
    file = query.text("file")
    if file is None:
        raise _BadQueryError("say which: file=ID/PORT/worker.log")
    name = LogName.parse(file)
    if name is None:
        return refusal(HTTPStatus.NOT_FOUND, "no log has that name: they are ID/PORT/worker.log")
    start, length = query.number("start"), query.number("length")
    piece = logs.read(name, start, USUAL_BYTES if length is None else length)
    told = (
        ("Log-Identity", piece.identity),
        ("Log-Start", str(piece.start)),
        ("Log-Size", str(piece.size)),
    )
    if query.text("identity") not in (None, piece.identity):
        return refusal(HTTPStatus.CONFLICT, "the file of that name is another one now")
    if piece.start > piece.size:
        return refusal(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"the file has {piece.size} bytes"
        )
    kind = "application/gzip" if name.name.endswith(".gz") else TEXT
    return Page(HTTPStatus.OK, piece.data, kind, (*told, _AS_IT_IS))


def _list(logs: LogFiles, query: _Query) -> Page:
    storm_id = query.text("topoId")
    if storm_id is None:
        raise _BadQueryError("say whose: topoId=ID")
    files = logs.all(storm_id, query.number("port"))
    if query.text("details") == "yes":
        body = json.dumps([_details(file) for file in files])
    else:
        body = json.dumps(sorted(str(file.name) for file in files))
    return Page(HTTPStatus.OK, body.encode(), "application/json", (_AS_IT_IS,))


def _code(code: LocalTopologyCode, query: _Query) -> Page:
    asked = [query.text(name) for name in ("topology", "part", "sha256")]
    storm_id, part, sha256 = (text or "" for text in asked)
    start = query.number("start") or 0
    if not is_topology(storm_id) or len(storm_id.encode()) > _LONGEST_ID:
        raise _BadQueryError("say whose: topology=ID")
    data = code.read(storm_id, part, sha256, start, MOST_BYTES)
    return Page(HTTPStatus.OK, data, "application/octet-stream", (_AS_IT_IS,))


def _details(file: LogEntry) -> dict[str, str | int | float]:
    return {
        "file": str(file.name),
        "port": file.name.port,
        "identity": file.identity,
        "size": file.size,
        "modified": file.modified,
    }
