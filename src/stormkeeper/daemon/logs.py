"""Where a daemon's log goes: stderr, one line per record, as text or as JSON.

Our code, and the libraries it uses, log with the standard library's loggers. What a record is about
may also be given as fields, with ``extra=``: ``log.warning("closing %s", peer, extra={"peer":
peer})``. Text shows the message alone, JSON the fields as well.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Hashable, Mapping, MutableMapping
from typing import Any, Final

from stormkeeper.names import printable

#: Names of log levels in configuration and on the wire, which are log4j's.
LEVELS: Final = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")

#: What the further lines of a record in a text log begin with.
CONTINUED: Final = "  "


class _LineFormatter(logging.Formatter):
    """``2026-03-01T12:00:00.123Z INFO stormkeeper.pacemaker message``, then a traceback, indented.

    Line breaks within a message are escaped, and every line of a traceback begins with `CONTINUED`.
    So nothing that a peer sent can pass for a record, and a reader of the log can tell which lines
    belong to one. Whatever else is not printable, as what a terminal obeys, is escaped everywhere.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        text = printable(super().format(record), keep="\n")
        return text.replace("\n", f"\n{CONTINUED}")


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Ours, so that configuring twice does not write every line twice."""

    is_json = False


_TIME: Final = _LineFormatter()


def configure_logging(level: str = "INFO", *, as_json: bool = False) -> None:
    """Send every logger's records of `level` and above to stderr.

    Each daemon calls it once. A further call only changes the level, as the command that runs the
    daemon may have chosen the form already.

    Parameters
    ----------
    level
        A level's name.
    as_json
        Write each record as one JSON object on one line: ``time``, ``level``, ``logger``,
        ``message``, the record's own fields, and of an error its traceback as ``exception``. What
        ends a thread or the process unexpectedly is then a record too.
    """
    root = logging.getLogger()
    root.setLevel(level)
    if any(isinstance(handler, _StderrHandler) for handler in root.handlers):
        return
    handler = _StderrHandler(sys.stderr)
    handler.is_json = as_json
    if as_json:
        handler.setFormatter(_json_formatter())
        sys.excepthook = _log_end_of_process
        threading.excepthook = _log_end_of_thread
    else:
        handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.addHandler(handler)


def counted(number: int, noun: str) -> str:
    """Return a number of things in words, such as ``1 connection`` or ``2 connections``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_json() -> bool:
    """Whether this process's log is JSON, so that what it starts may write the same."""
    handlers = logging.getLogger().handlers
    return any(isinstance(handler, _StderrHandler) and handler.is_json for handler in handlers)


def _json_formatter() -> logging.Formatter:
    import structlog  # noqa: PLC0415 - 150 ms and 7 MB that text needs not

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.ExtraAdder(),
            # As text, as in the plain log: a structured traceback would have local variables in
            # it, and so whatever secret is one.
            structlog.processors.format_exc_info,
            structlog.processors.StackInfoRenderer(),
        ],
        processors=[_in_order, structlog.processors.JSONRenderer(serializer=_line)],
    )


def _in_order(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Put what every record has first; a field of the same name does not come in its place."""
    record: logging.LogRecord = event["_record"]
    first = {
        "time": _TIME.formatTime(record),
        "level": record.levelname,
        "logger": record.name,
        "message": event["event"],
    }
    ours = {"_record", "_from_structlog", "event"}
    return first | {k: v for k, v in event.items() if k not in ours and k not in first}


def _line(fields: Mapping[str, Any], **_: object) -> str:
    """Write one line of ASCII: control characters and lone surrogates are escaped."""
    # JSON leaves the last of the control characters as it is.
    return json.dumps(fields, default=str, ensure_ascii=True).replace("\x7f", "\\u007f")


def _log_end_of_process(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger(__name__).critical(
        "the process ends: %s", kind.__name__, exc_info=(kind, error, trace)
    )


def _log_end_of_thread(hooked: threading.ExceptHookArgs) -> None:
    if hooked.exc_value is None or issubclass(hooked.exc_type, SystemExit):
        return
    logging.getLogger(__name__).critical(
        "thread %s ends: %s",
        hooked.thread.name if hooked.thread else "unknown",
        hooked.exc_type.__name__,
        exc_info=(hooked.exc_type, hooked.exc_value, hooked.exc_traceback),
    )


#: Of how many matters spans are remembered before those that are over are dropped.
_REMEMBERED: Final = 1_024


class LineBudget:
    """Lets a number of lines about a matter pass in a span of time, and counts the others.

    Parameters
    ----------
    lines
        Lines about one matter that pass in each span.
    seconds
        Its length, from the first of these lines on.

    Examples
    --------
    >>> budget = LineBudget(2, 10.0)
    >>> [budget.spend("10.0.0.1", now) for now in (0, 1, 2, 3, 11)]
    [0, 0, None, None, 2]
    """

    __slots__ = ("_lines", "_seconds", "_spans")

    def __init__(self, lines: int, seconds: float) -> None:
        self._lines = lines
        self._seconds = seconds
        #: By matter: when its span began, and the lines asked for since.
        self._spans: dict[Hashable, tuple[float, int]] = {}

    def spend(self, matter: Hashable, now: float) -> int | None:
        """Ask to write a line about `matter` at the clock's `now` (s).

        Returns
        -------
        int or None
            None if the line must not be written; else how many were left out since the last one
            that was.
        """
        began, asked = self._spans.get(matter, (now, 0))
        if asked and now - began < self._seconds:
            self._spans[matter] = (began, asked + 1)
            return 0 if asked < self._lines else None
        if len(self._spans) >= _REMEMBERED:
            self._drop_what_is_over(now)
        self._spans[matter] = (now, 1)
        return max(0, asked - self._lines)

    def _drop_what_is_over(self, now: float) -> None:
        """Forget matters of which nothing was heard for a span; if there are none, all."""
        kept = {m: span for m, span in self._spans.items() if now - span[0] < self._seconds}
        self._spans = kept if len(kept) < _REMEMBERED else {}
