"""The workers of a local run, read from ``worker.log`` and ``worker.pid`` of each slot.

A worker's log holds its standard output and its standard error. A log record of the worker, the
user's loggers or Spark has a known first line and indented further lines. All other lines are the
topology's own output.
"""

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from stormkeeper.daemon.logs import CONTINUED
from stormkeeper.supervisor.directories import Directories

#: First line of a record: time, level, logger, message.
_RECORD = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z (?P<level>[A-Z]+) +(?P<logger>\S+) (?P<text>.*)")

#: Messages of a JVM that starts, and of a worker that beats.
_CEREMONY = re.compile(
    r"^(?:WARNING: (?:Using incubator modules|A terminally deprecated method|A restricted method"
    r"|sun\.misc|java\.lang|Please consider reporting|Use --enable-native|Restricted methods)"
    r"|worker beating (?P<beating>\S+) \S+ \d+$)"
)

_SHOWN = frozenset({"WARNING", "ERROR", "CRITICAL"})

_OURS = "stormkeeper"

#: The logger whose errors end a worker.
_FAILING = "stormkeeper.worker.process"

#: Loggers of Spark and its libraries, in Python and in the JVM.
_ENGINE = re.compile(
    r"(?:py4j|pyspark|DataFrameQueryContextLogger|SQLQueryContextLogger"
    r"|org\.apache|org\.sparkproject|io\.netty)(?:\.|$)"
)


@dataclass
class LogNews:
    """New lines of a log: messages for the user, and the topology's output."""

    notes: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    #: Whether these lines have the worker's first heartbeat.
    beats: bool = False


class WorkerLog:
    """Reads a growing log; `name` precedes the messages."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: Takes further lines of the last record; None outside a record.
        self._within: list[str] | None = None
        self._is_shown = False
        #: Whether the worker logged the error that ends it.
        self.has_failed = False

    def read(self, lines: Iterable[str]) -> LogNews:
        """Return the news in the next `lines`.

        A record yields its message, preceded by its logger's name for a user's logger. Further
        lines of the record, such as a traceback, follow unchanged.
        """
        said, unseen = LogNews(), list[str]()
        if self._within is not None:
            # The record may continue in these lines.
            self._within = said.notes if self._is_shown else unseen
        for line in lines:
            if record := _RECORD.match(line):
                self._begin(record, said, unseen)
            elif self._within is not None and line.startswith(CONTINUED):
                self._within.append(line)
            elif ceremony := _CEREMONY.match(line):
                said.beats |= ceremony["beating"] is not None
            else:
                self._within = None
                said.output.append(line)
        return said

    def _begin(self, record: re.Match[str], said: LogNews, unseen: list[str]) -> None:
        logger, is_loud = record["logger"], record["level"] in _SHOWN
        self._is_shown = is_loud and not _ENGINE.match(logger)
        if self._is_shown:
            ours = logger.partition(".")[0] == _OURS
            text = record["text"] if ours else f"{logger}: {record['text']}"
            self.has_failed |= logger == _FAILING and record["level"] != "WARNING"
            said.notes.append(f"{self._name}: {text}")
            self._within = said.notes
        else:
            # Records of lower levels have one line.
            self._within = unseen if is_loud else None


#: Lines of output kept for the view.
KEPT_LINES: Final = 200


@dataclass
class _Slot:
    folder: Path
    pid: int | None = None
    offset: int = 0
    log: WorkerLog = field(default_factory=lambda: WorkerLog("worker"))
    is_ready: bool = False

    def new_lines(self) -> list[str]:
        """Return the whole lines that were appended since the last call."""
        try:
            with (self.folder / "worker.log").open("rb") as log:
                if log.seek(0, 2) < self.offset:  # the log was rotated
                    self.offset = 0
                log.seek(self.offset)
                new, newline, _ = log.read().rpartition(b"\n")
        except OSError:
            return []
        self.offset += len(new) + len(newline)
        return new.decode(errors="replace").splitlines() if newline else []

    def look_at_pid(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.folder / "worker.pid").read_text())
            if pid != self.pid:
                self.pid, self.is_ready = pid, False


@dataclass(frozen=True)
class WorkerProcess:
    """A worker's process: pid and state."""

    pid: int
    state: str


class LocalWorkers:
    """All workers of one topology.

    `machines` are the supervisors' folders; `code` is the original code's folder, which replaces
    paths of the packed copy in messages.
    """

    def __init__(self, machines: Sequence[Directories], code: Path) -> None:
        self._machines = machines
        places = "|".join(re.escape(str(machine.packages)) for machine in machines)
        self._packed = re.compile(rf"(?:{places})/[0-9a-f]+/code(?=/)")
        self._code = str(code)
        self._slots: dict[Path, _Slot] = {}
        self._output: list[str] = []
        self._output_count = 0

    def look(self, storm_id: str) -> list[str]:
        """Read new lines; return messages for the user."""
        for machine in self._machines:
            for folder in sorted((machine.all_artifacts / storm_id).glob("*")):
                self._slots.setdefault(folder, _Slot(folder))
        notes = []
        for slot in self._slots.values():
            slot.look_at_pid()
            said: LogNews = slot.log.read(slot.new_lines())
            notes += [self._packed.sub(lambda _: self._code, line) for line in said.notes]
            if said.beats and not slot.is_ready:
                slot.is_ready = True
                notes.append(f"worker {storm_id} beats (process {slot.pid})")
            output = said.output
            if len(self._slots) > 1:
                output = [f"{slot.folder.name}: {line}" for line in output]
            self._output = [*self._output, *output][-KEPT_LINES:]
            self._output_count += len(output)
        return notes

    @property
    def output(self) -> tuple[Sequence[str], int]:
        """Last lines of the topology's output, and how many lines there have been.

        With several workers, each line begins with its worker's port.
        """
        return self._output, self._output_count

    @property
    def beat(self) -> bool:
        """Whether a worker has sent a heartbeat."""
        return any(slot.is_ready for slot in self._slots.values())

    @property
    def have_failed(self) -> bool:
        """Whether a worker has logged an error and ends."""
        return any(slot.log.has_failed for slot in self._slots.values())

    def processes(self) -> list[WorkerProcess]:
        """Return the newest process of each slot."""
        return [
            WorkerProcess(
                slot.pid,
                "ended"
                if not psutil.pid_exists(slot.pid)
                else "running"
                if slot.is_ready
                else "starting",
            )
            for slot in self._slots.values()
            if slot.pid is not None
        ]
