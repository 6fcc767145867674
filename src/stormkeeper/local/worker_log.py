"""What a user should read at once of a log: warnings and errors, and what the topology prints.

A worker's log has its standard output and its standard error. A record of the worker itself, of the
user's own loggers, or of Spark is known by its first line, and its further lines by their
indentation. What is neither is the topology's own output.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from stormkeeper.daemon.logs import CONTINUED

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
class Said:
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

    def read(self, lines: Iterable[str]) -> Said:
        """Return what there is to read in the next `lines`.

        Of a record that is the message, after the logger's name if the logger is the user's. The
        further lines of the record, such as a traceback, follow as they are.
        """
        said, unseen = Said(), list[str]()
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

    def _begin(self, record: re.Match[str], said: Said, unseen: list[str]) -> None:
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
