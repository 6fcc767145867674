"""The pages of a supervisor that have its workers' logs and its topologies' code.

Logs are at the addresses of Storm's logviewer.

``/api/v1/log?file=ID/PORT/worker.log`` is the end of a log, as text, or with ``start`` and
``length`` another part, in bytes. A packed one, such as ``worker.log.1.gz``, stays packed. With
``identity`` it is refused (409) if the file has become another one. The headers ``Log-Identity``,
``Log-Start`` and ``Log-Size`` say what part of which file it is.

``/api/v1/listLogs?topoId=ID`` is a JSON list of the files there are; with ``port``, of those of one
slot. With ``details=yes``, which is ours, it has what `LogFile` says of each.

``/api/v1/code?topology=ID&part=stormjar.jar&sha256=…&start=N`` has some bytes of a part of a
topology's code, none at its end. It is for Nimbuses that have lost the code. Only a client that
knows the SHA-256 of the part gets it: ZooKeeper has that, so whoever knows it could read the code
from a Nimbus as well.
"""

import errno
import json
import os
from collections.abc import Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from stormkeeper.daemon.http import TEXT, Page, refusal
from stormkeeper.supervisor.log_files import MOST_BYTES, LogFile, LogFiles, LogName, is_topology
from stormkeeper.supervisor.topology_code import TopologyCode

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


def queries(logs: LogFiles) -> dict[str, Callable[[str], Page]]:
    """Return what makes each page of the logs; see `stormkeeper.daemon.http`."""
    return {
        LOG: _guarded(lambda query: _part(logs, query)),
        LIST: _guarded(lambda query: _list(logs, query)),
    }


def code_queries(code: TopologyCode) -> dict[str, Callable[[str], Page]]:
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


def _code(code: TopologyCode, query: _Query) -> Page:
    asked = [query.text(name) for name in ("topology", "part", "sha256")]
    storm_id, part, sha256 = (text or "" for text in asked)
    start = query.number("start") or 0
    if not is_topology(storm_id) or len(storm_id.encode()) > _LONGEST_ID:
        raise _BadQueryError("say whose: topology=ID")
    data = code.read(storm_id, part, sha256, start, MOST_BYTES)
    return Page(HTTPStatus.OK, data, "application/octet-stream", (_AS_IT_IS,))


def _details(file: LogFile) -> dict[str, str | int | float]:
    return {
        "file": str(file.name),
        "port": file.name.port,
        "identity": file.identity,
        "size": file.size,
        "modified": file.modified,
    }
