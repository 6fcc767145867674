"""What went wrong with workers, said where their users look: the errors of the cluster's state."""

from __future__ import annotations

import logging
import os
import queue
import threading
from pathlib import Path
from typing import Final, NamedTuple

from stormkeeper.errors import StormkeeperError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.records import SlotAssignment

log = logging.getLogger(__name__)

#: Reports that may wait while the cluster's state cannot be reached. What comes then is in the log.
_MOST: Final = 100

#: How long what waits may take at the end, in seconds.
_END_SECS: Final = 3.0

#: Lines of a worker's log that a report shows, and in how many bytes at its end they are found.
_LINES: Final = 25
_BYTES: Final = 64 * 1024


class _Report(NamedTuple):
    assignment: SlotAssignment
    port: int
    text: str


class Reports:
    """Reports to ``/errors``, from a thread of its own.

    A report is one of each query of the worker that it is about: a query has its sink's name, and
    errors are those of components.

    Parameters
    ----------
    storm
        The cluster's state.
    host
        This machine's name.
    """

    def __init__(self, storm: StormClusterState, host: str) -> None:
        self._storm = storm
        self._host = host
        self._waiting: queue.Queue[_Report | None] = queue.Queue(_MOST)
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread goes on."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def close(self) -> None:
        """Report what waits, as far as there is time."""
        try:
            self._waiting.put(None, timeout=_END_SECS)
        except queue.Full:
            return
        self._thread.join(_END_SECS)

    def put(self, assignment: SlotAssignment, port: int, text: str) -> None:
        """Report something about the worker of an assignment; returns at once."""
        try:
            self._waiting.put_nowait(_Report(assignment, port, text))
        except queue.Full:
            log.warning("an error of %s is not reported: too many wait", assignment.storm_id)

    def _run(self) -> None:
        while (report := self._waiting.get()) is not None:
            for query in report.assignment.claims:
                try:
                    self._storm.report_error(
                        report.assignment.storm_id,
                        query,
                        report.text,
                        host=self._host,
                        port=report.port,
                    )
                except StormkeeperError as error:
                    log.warning(
                        "an error of %s is not reported: %s", report.assignment.storm_id, error
                    )
                    break


def last_lines(file: Path) -> str:
    """Return the last lines of a worker's log; nothing where there is none."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - _BYTES))
            text = opened.read(_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LINES:])
