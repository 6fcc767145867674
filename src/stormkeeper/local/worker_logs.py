"""The workers of a local cluster, which its supervisors start: seen by what they leave on the disk.

That is ``worker.log`` and ``worker.pid`` of each slot, where an operator looks, too.
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

#: A record's first line: its time, its level, its logger, its message.
_RECORD = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z (?P<level>[A-Z]+) +(?P<logger>\S+) (?P<text>.*)")

#: What the JVM says of itself when it starts, and the worker when it beats.
_CEREMONY = re.compile(
    r"^(?:WARNING: (?:Using incubator modules|A terminally deprecated method|A restricted method"
    r"|sun\.misc|java\.lang|Please consider reporting|Use --enable-native|Restricted methods)"
    r"|worker beating (?P<beating>\S+) \S+ \d+$)"
)

_SHOWN = frozenset({"WARNING", "ERROR", "CRITICAL"})

_OURS = "stormkeeper"

#: Whose errors are the end of a worker.
_FAILING = "stormkeeper.worker.process"

#: Loggers of Spark and what it stands on, in Python and in the JVM, with those below them.
_ENGINE = re.compile(
    r"(?:py4j|pyspark|DataFrameQueryContextLogger|SQLQueryContextLogger"
    r"|org\.apache|org\.sparkproject|io\.netty)(?:\.|$)"
)


@dataclass
class LogNews:
    """What lines of a log say: what is to be noted, and what the topology has printed."""

    notes: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    #: Whether the worker beats, as from now on.
    beats: bool = False


class WorkerLog:
    """Reads a log as it grows.

    Parameters
    ----------
    name
        Whose it is, for those who read what is noted.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        #: Where the lines go that belong to the last record; None: they belong to none.
        self._within: list[str] | None = None
        self._is_shown = False
        #: Whether there was an error of the worker's own, with which it ends.
        self.has_failed = False

    def read(self, lines: Iterable[str]) -> LogNews:
        """Return what there is to read in the next `lines`.

        Of a record that is the message, after the logger's name if the logger is the user's. The
        further lines of the record, such as a traceback, follow as they are.
        """
        said, unseen = LogNews(), list[str]()
        if self._within is not None:
            # It may go on in these lines.
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
            # What says that all is well has one line.
            self._within = unseen if is_loud else None


#: Lines of the topology's output that are kept for the view.
KEPT_LINES: Final = 200


@dataclass
class _Slot:
    folder: Path
    pid: int | None = None
    offset: int = 0
    log: WorkerLog = field(default_factory=lambda: WorkerLog("worker"))
    is_ready: bool = False

    def new_lines(self) -> list[str]:
        """Return the whole lines that the log has got since the last call."""
        try:
            with (self.folder / "worker.log").open("rb") as log:
                if log.seek(0, 2) < self.offset:  # what is old was put aside
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
    """A worker's process: its pid, and what it is doing."""

    pid: int
    state: str


class LocalWorkers:
    """All workers of one topology.

    Parameters
    ----------
    machines
        The folders of the supervisors.
    code
        Where the topology's code was packed: what is noted names the files there, which stay.
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
        """Read what is new; return what is to be noted of it."""
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
        """The last lines that the topology has printed, and how many there have been.

        Where it has several workers, a line begins with its worker's port.
        """
        return self._output, self._output_count

    @property
    def beat(self) -> bool:
        """Whether one of them has sent its first heartbeat."""
        return any(slot.is_ready for slot in self._slots.values())

    @property
    def have_failed(self) -> bool:
        """Whether one of them has said with which error it ends."""
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
