"""The log of a daemon: lines of text or JSON on stderr.

Fields in a record's ``extra=`` appear in JSON only.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Hashable
from typing import Any, Final

from stormkeeper.names import printable

#: log4j's names of levels, in configuration and on the wire.
LEVELS: Final = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")

CONTINUED: Final = "  "

#: Attributes of every record; the others are fields in ``extra=``.
_OF_ALL_RECORDS: Final = {*vars(logging.makeLogRecord({})), "message", "asctime"}


class _LineFormatter(logging.Formatter):
    """Text lines, in which a peer's text never passes for a record.

    Line breaks are escaped or followed by `CONTINUED`; other unprintable characters are escaped.
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


class _JsonFormatter(_LineFormatter):
    """An object per line."""

    def format(self, record: logging.LogRecord) -> str:
        first = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {k: v for k, v in vars(record).items() if k not in _OF_ALL_RECORDS}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        # JSON does not escape DEL.
        return json.dumps(first | fields | first, default=str).replace("\x7f", "\\u007f")


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Marks our handler, so that a second configuration does not double every line."""

    is_json = False


def configure_logging(level: str = "INFO", *, as_json: bool = False) -> None:
    """Send records of `level` and above to stderr; again: only change the level.

    `as_json`: an object per record, with ``time``, ``level``, ``logger``, ``message``, the record's
    fields, and ``exception`` for a traceback, also of uncaught exceptions.
    """
    root = logging.getLogger()
    root.setLevel(level)
    if any(isinstance(handler, _StderrHandler) for handler in root.handlers):
        return
    handler = _StderrHandler(sys.stderr)
    handler.is_json = as_json
    if as_json:
        handler.setFormatter(_JsonFormatter())
        sys.excepthook = _log_end_of_process
        threading.excepthook = _log_end_of_thread
    else:
        handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.addHandler(handler)


def counted(number: int, noun: str) -> str:
    """Return ``1 connection``, or ``2 connections``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_json() -> bool:
    handlers = logging.getLogger().handlers
    return any(isinstance(handler, _StderrHandler) and handler.is_json for handler in handlers)


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


#: Subjects remembered before expired subjects, or else all, are dropped.
_REMEMBERED: Final = 1_024


class LineBudget:
    """Limits log lines about a subject to a number per time span, and counts the rest."""

    __slots__ = ("_lines", "_seconds", "_spans")

    def __init__(self, lines: int = 10, seconds: float = 10.0) -> None:
        self._lines = lines
        self._seconds = seconds
        self._spans: dict[Hashable, tuple[float, int]] = {}

    def spend(self, subject: Hashable, now: float) -> int | None:
        """Return the number of suppressed lines before this line; None: suppress this line, too."""
        began, asked = self._spans.get(subject, (now, 0))
        if asked and now - began < self._seconds:
            self._spans[subject] = (began, asked + 1)
            return 0 if asked < self._lines else None
        if len(self._spans) >= _REMEMBERED:
            self._drop_expired(now)
        self._spans[subject] = (now, 1)
        return max(0, asked - self._lines)

    def _drop_expired(self, now: float) -> None:
        kept = {m: span for m, span in self._spans.items() if now - span[0] < self._seconds}
        self._spans = kept if len(kept) < _REMEMBERED else {}
