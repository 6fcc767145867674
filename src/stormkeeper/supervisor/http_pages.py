"""A supervisor's HTTP pages: metrics, health, workers' logs and topologies' code.

The pages of logs are those of Storm's logviewer:

- ``/api/v1/log?file=ID/PORT/worker.log`` is the end of a log as text, or with ``start`` and
  ``length`` (bytes) another part. A compressed log stays compressed. With ``identity``, another
  file of that name is refused (409). The headers ``Log-Identity``, ``Log-Start`` and ``Log-Size``
  describe the part.
- ``/api/v1/listLogs?topoId=ID`` is a JSON list of logs; with ``port``, of one slot; with
  ``details=yes`` (ours), with size, last write and identity.
- ``/api/v1/code?topology=ID&part=stormjar.jar&sha256=…&start=N`` (ours) has bytes of a part of a
  topology's code, none at its end, for Nimbuses that have lost the code. The part's SHA-256 is in
  ZooKeeper, whose readers can get the code from a Nimbus, too.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import parse_qs

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import TEXT, Page, figure, health_page, metrics_page, refusal
from stormkeeper.supervisor.slots import SlotState, SlotStatus
from stormkeeper.supervisor.topology_code import LocalTopologyCode

LOG: Final = "/api/v1/log"
LIST: Final = "/api/v1/listLogs"
CODE: Final = "/api/v1/code"

#: Default length of a part, as in Storm.
USUAL_BYTES: Final = 51_200

_LONGEST_ID: Final = 255

_AS_IT_IS: Final = ("X-Content-Type-Options", "nosniff")

_NOT_THERE: Final = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EISDIR)
)


class _BadQueryError(Exception):
    """The query is invalid, for the reason in the message."""


class _Query:
    def __init__(self, text: str) -> None:
        try:
            self._values = parse_qs(text, keep_blank_values=True, max_num_fields=20)
        except ValueError as error:
            raise _BadQueryError("more than 20 parameters") from error

    def text(self, name: str) -> str | None:
        return self._values.get(name, [None])[0]

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        # A file's size has at most 18 digits.
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise _BadQueryError(f"{name} is {text[:40]!r}: give a number, such as {name}=1000")
        return int(text)


MOST_FILES: Final = 1024
#: Of one response, so that it is sent within seconds.
MOST_BYTES: Final = 256 * 1024

_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_CURRENT: Final = "worker.log"
_NAME: Final = re.compile(r"worker\.log(\.[0-9]{1,6}(\.gz)?)?")


class LogName(NamedTuple):
    """The name of a log: ``ID/PORT/NAME``."""

    storm_id: str
    port: int
    name: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        storm_id, _, rest = text.partition("/")
        port, _, name = rest.partition("/")
        if not is_topology(storm_id) or not _PORT.fullmatch(port) or not _NAME.fullmatch(name):
            return None
        return cls(storm_id, int(port), name)

    def __str__(self) -> str:
        return f"{self.storm_id}/{self.port}/{self.name}"


class _LogEntry(NamedTuple):
    file: str
    port: int
    #: Stays the same when the file is renamed.
    identity: str
    size: int
    modified: float


class _Piece(NamedTuple):
    identity: str
    start: int
    size: int
    data: bytes


def is_topology(storm_id: str) -> bool:
    try:
        storm_id.encode()
    except UnicodeEncodeError:
        return False
    return storm_id not in ("", ".", "..") and not {"/", "\0"}.intersection(storm_id)


class LogFiles:
    """The logs in the folder `Directories.all_artifacts`. Thread-safe.

    No other file can be reached: a name has no other parts, and no link below the folder is
    followed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self, storm_id: str, port: int | None = None) -> list[_LogEntry]:
        """Return the logs of a topology, or of a slot, by port and last write; raises `OSError`.

        ``worker.log`` is a slot's last. Includes a file that a rotation creates meanwhile.
        """
        if not is_topology(storm_id):
            return []
        found: list[_LogEntry] = []
        # A folder may be removed meanwhile, or be an operator's file.
        with suppress(FileNotFoundError, NotADirectoryError):
            slots = self._inside(storm_id).iterdir()
            ports = sorted(int(slot.name) for slot in slots if _PORT.fullmatch(slot.name))
            for each in ports if port is None else [port]:
                with suppress(FileNotFoundError, NotADirectoryError):
                    found += self._of_slot(storm_id, each)
        return found[:MOST_FILES]

    def read(self, name: LogName, start: int | None, length: int) -> _Piece:
        """Read up to `length` bytes from `start`, or else the last bytes; raises `OSError`."""
        length = min(length, MOST_BYTES)
        path = self._inside(name.storm_id, str(name.port), name.name)
        if not path.is_file():
            raise FileNotFoundError(name)
        with path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if start is None:
                start = max(0, status.st_size - length)
            # Not beyond the reported size: the file grows meanwhile.
            data = os.pread(opened.fileno(), max(0, min(length, status.st_size - start)), start)
        return _Piece(_identity(status), start, status.st_size, data)

    def _of_slot(self, storm_id: str, port: int) -> list[_LogEntry]:
        slot = self._inside(storm_id, str(port))

        def entries(files: Iterable[Path]) -> Iterator[_LogEntry]:
            for file in files:
                with suppress(FileNotFoundError):
                    status = file.lstat()
                    if _NAME.fullmatch(file.name) and stat.S_ISREG(status.st_mode):
                        size, modified = status.st_size, status.st_mtime
                        name = str(LogName(storm_id, port, file.name))
                        yield _LogEntry(name, port, _identity(status), size, modified)

        # Read first, so that a rotation meanwhile duplicates lines and loses none.
        current = [*entries([slot / _CURRENT])]
        others = entries(file for file in slot.iterdir() if file.name != _CURRENT)
        return [*sorted(others, key=lambda each: each.modified), *current]

    def _inside(self, *names: str) -> Path:
        # The top folder may be an operator's link.
        path = self._folder.resolve().joinpath(*names)
        if path.resolve() != path:
            raise FileNotFoundError(path)
        return path


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev:x}-{status.st_ino:x}"


def log_queries(logs: LogFiles) -> dict[str, Callable[[str], Page]]:
    return {
        LOG: _guarded(lambda query: _part(logs, query)),
        LIST: _guarded(lambda query: _list(logs, query)),
    }


def code_queries(code: LocalTopologyCode) -> dict[str, Callable[[str], Page]]:
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
    headers = (
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
    return Page(HTTPStatus.OK, piece.data, kind, (*headers, _AS_IT_IS))


def _list(logs: LogFiles, query: _Query) -> Page:
    storm_id = query.text("topoId")
    if storm_id is None:
        raise _BadQueryError("say whose: topoId=ID")
    files = logs.all(storm_id, query.number("port"))
    if query.text("details") == "yes":
        body = json.dumps([each._asdict() for each in files])
    else:
        body = json.dumps(sorted(each.file for each in files))
    return Page(HTTPStatus.OK, body.encode(), "application/json", (_AS_IT_IS,))


def _code(code: LocalTopologyCode, query: _Query) -> Page:
    asked = [query.text(name) for name in ("topology", "part", "sha256")]
    storm_id, part, sha256 = (text or "" for text in asked)
    start = query.number("start") or 0
    if not is_topology(storm_id) or len(storm_id.encode()) > _LONGEST_ID:
        raise _BadQueryError("say whose: topology=ID")
    data = code.read(storm_id, part, sha256, start, MOST_BYTES)
    return Page(HTTPStatus.OK, data, "application/octet-stream", (_AS_IT_IS,))


#: Of the slots' thread, in seconds.
MAX_SILENCE: Final = 10.0

PREFIX: Final = "stormkeeper_supervisor_"

FOREIGN: Final = (
    "is not run here: a Nimbus that is not ours, such as Java's, has placed it on this supervisor;"
    " stop that Nimbus and kill the topology, or give this supervisor another storm.zookeeper.root"
)


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """The status of a supervisor's slots, with counts since the start."""

    turned_at: float
    slots: Mapping[int, SlotStatus] = field(default_factory=dict)
    memory: Mapping[int, int] = field(default_factory=dict)
    starts: int = 0
    crashes: int = 0
    problems: int = 0
    #: Topologies of another Nimbus, which do not run.
    foreign: frozenset[str] = frozenset()


def status_pages(
    status: Callable[[], SupervisorStatus],
    unready: Callable[[], str | None],
    clock: Callable[[], float],
) -> dict[str, Callable[[str], Page]]:
    """Return the handlers of the pages of metrics and health, by path.

    ``/readyz`` shows each slot, and by `unready` why the supervisor takes no new work.
    """

    def find_fault() -> str | None:
        ago = clock() - status().turned_at
        return f"the slots were last looked after {ago:.1f} s ago" if ago > MAX_SILENCE else None

    def readyz(_: str) -> Page:
        why = unready()
        lines = [why or "ready", *slot_lines(status())]
        return Page(503 if why else 200, "".join(f"{line}\n" for line in lines).encode())

    return {
        "/metrics": metrics_page(_SupervisorMetrics(status, unready)),
        "/healthz": health_page(find_fault),
        "/readyz": readyz,
    }


def slot_lines(status: SupervisorStatus) -> Iterator[str]:
    for port, slot in sorted(status.slots.items()):
        texts = [f"{port} {slot.state.value}"]
        if slot.assignment is not None:
            texts.append(slot.assignment.storm_id)
        if slot.crashes:
            texts.append(f"{slot.crashes} crashes in a row")
        if slot.reason:
            texts.append(slot.reason.splitlines()[0])
        yield ", ".join(texts)
    for storm_id in sorted(status.foreign):
        yield f"{storm_id} {FOREIGN}"


_gauge: Final = partial(figure, GaugeMetricFamily, PREFIX)
_counter: Final = partial(figure, CounterMetricFamily, PREFIX)


@dataclass(eq=False)  # a registry hashes collectors
class _SupervisorMetrics(Collector):
    _status: Callable[[], SupervisorStatus]
    _unready: Callable[[], str | None]

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield _gauge("ready", "Whether it takes new work.", self._unready() is None)
        states = [slot.state for slot in status.slots.values()]
        in_state = {state.name.lower(): states.count(state) for state in SlotState}
        yield _gauge("slots", "Slots, by what they are doing.", in_state, "state")
        yield _gauge(
            "worker_memory_bytes",
            "Memory of a worker with all that it started; a page that several share counts once.",
            {str(port): size for port, size in sorted(status.memory.items())},
            "port",
        )
        yield _counter("launches", "Workers started.", status.starts)
        text = "Workers that ended unasked, or had to be ended."
        yield _counter("crashes", text, status.crashes)
        text = "What kept slots from their work, such as code."
        yield _counter("problems", text, status.problems)
