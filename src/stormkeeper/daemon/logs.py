"""Where a daemon's log goes: stderr, one line per record."""

import logging
import sys
import time


class _LineFormatter(logging.Formatter):
    """``2026-03-01T12:00:00.123Z INFO stormkeeper.pacemaker message``, then a traceback.

    Line breaks within a message are escaped: what a peer sent cannot pass for a record of ours.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Ours, so that configuring twice does not write every line twice."""


def configure_logging(level: str = "INFO") -> None:
    """Send every logger's records of `level` and above to stderr.

    Called once by each daemon; a further call only changes the level.
    """
    root = logging.getLogger()
    root.setLevel(level)
    if not any(isinstance(handler, _StderrHandler) for handler in root.handlers):
        handler = _StderrHandler(sys.stderr)
        handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        root.addHandler(handler)
