"""The log of a daemon: lines of text or JSON on stderr.

Fields in a record's ``extra=`` appear in JSON only.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Hashable, Mapping, MutableMapping
from typing import Any, Final

from stormkeeper.names import printable

#: log4j's names of levels, in configuration and on the wire.
LEVELS: Final = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")

CONTINUED: Final = "  "


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


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Marks our handler, so that a second configuration does not double every line."""

    is_json = False


_TIME: Final = _LineFormatter()


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
        handler.setFormatter(_json_formatter())
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


def _json_formatter() -> logging.Formatter:
    import structlog  # noqa: PLC0415 - 150 ms and 7 MB that text does not need

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.ExtraAdder(),
            # A structured traceback would show local variables, among them secrets.
            structlog.processors.format_exc_info,
            structlog.processors.StackInfoRenderer(),
        ],
        processors=[_in_order, structlog.processors.JSONRenderer(serializer=_line)],
    )


def _in_order(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
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
    # JSON does not escape DEL.
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


#: Subjects remembered before expired subjects, or else all, are dropped.
_REMEMBERED: Final = 1_024


class LineBudget:
    """Limits log lines about a subject to a number per time span, and counts the rest."""

    __slots__ = ("_lines", "_seconds", "_spans")

    def __init__(self, lines: int, seconds: float) -> None:
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
