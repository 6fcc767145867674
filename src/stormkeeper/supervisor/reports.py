"""What went wrong with workers, said where their users look: the errors of the cluster's state.

A component's errors are few: ten, which end with their workers' sessions, and the last one, which
stays. So the report of a crash must not take the place of what the worker itself said of its cause.
It repeats that, and only where the worker said nothing has it the last lines of its log.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
from pathlib import Path
from typing import Final, NamedTuple

from stormkeeper import paths
from stormkeeper.errors import StormkeeperError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.records import SlotAssignment
from stormkeeper.topology.faults import crash_with_cause, is_crash

log = logging.getLogger(__name__)

#: Reports that may wait while the cluster's state cannot be reached. What comes then is in the log.
_MOST: Final = 100

#: How long what waits may take at the end, in seconds.
_END_SECS: Final = 3.0

#: Lines of a worker's log that a report shows, and in how many bytes at its end they are found.
_LINES: Final = 25
_BYTES: Final = 64 * 1024

_LOG_END: Final = "\nIts log ends with:\n"


class _Report(NamedTuple):
    assignment: SlotAssignment
    port: int
    text: str
    #: When the worker began that has crashed, in seconds since 1970.
    began: float | None = None
    #: How its log ends.
    log_end: str = ""


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
        self._put(_Report(assignment, port, text))

    def crashed(
        self,
        assignment: SlotAssignment,
        port: int,
        text: str,
        *,
        began: float | None,
        log_end: str = "",
    ) -> None:
        """Report that the worker of an assignment crashed; returns at once.

        Parameters
        ----------
        assignment
            What it was launched for.
        port
            Of its slot.
        text
            Which crash it is, and how the worker ended, in one line.
        began
            When its process was started, in seconds since 1970; None if that is not known. Of the
            components of which it has reported errors since, their newest are in the report.
        log_end
            How its log ends, for a worker that has reported none.
        """
        self._put(_Report(assignment, port, text, began, log_end))

    def _put(self, report: _Report) -> None:
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            log.warning("an error of %s is not reported: too many wait", report.assignment.storm_id)

    def _run(self) -> None:
        while (report := self._waiting.get()) is not None:
            storm_id = report.assignment.storm_id
            try:
                for component, text in self._texts(report).items():
                    self._storm.report_error(
                        storm_id, component, text, host=self._host, port=report.port
                    )
            except StormkeeperError as error:
                log.warning("an error of %s is not reported: %s", storm_id, error)

    def _texts(self, report: _Report) -> dict[str, str]:
        """Return what is reported, by component."""
        if own := self._own_errors(report):
            return {
                component: crash_with_cause(report.text, text) for component, text in own.items()
            }
        text = f"{report.text}{_LOG_END}{report.log_end}" if report.log_end else report.text
        return dict.fromkeys(report.assignment.claims, text)

    def _own_errors(self, report: _Report) -> dict[str, str]:
        """Return the newest error, by component, that a worker has reported of itself."""
        if report.began is None:
            return {}
        storm_id, found = report.assignment.storm_id, {}
        # An error's time is in whole seconds, and a worker may fail in the second of its start.
        began = math.floor(report.began)
        self._storm.state.sync_path(paths.errors(storm_id))
        for component, errors in self._storm.topology_errors(storm_id).items():
            of_it = [
                each.error
                for each in errors
                if (each.host, each.port) == (self._host, report.port)
                and each.error_time_secs >= began
                and not is_crash(each.error)
            ]
            if of_it:
                found[component] = of_it[0]
        return found


def last_lines(file: Path) -> str:
    """Return the last lines of a worker's log; nothing where there is none."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - _BYTES))
            text = opened.read(_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LINES:])
