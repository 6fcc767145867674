"""What a user should read at once of a worker's log: warnings and errors, each as a whole.

These are records of the worker itself and of the user's own loggers. Those of PySpark and Spark are
left out: what matters of them, the worker says in a sentence.
"""

import re
from collections.abc import Iterable

from stormkeeper.daemon.logs import CONTINUED

#: A record's first line: its time, its level, its logger, its message.
_RECORD = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z (?P<level>[A-Z]+) +(?P<logger>\S+) (?P<text>.*)")

_SHOWN = frozenset({"WARNING", "ERROR", "CRITICAL"})

_OURS = "stormkeeper"

#: Loggers of PySpark and what it stands on, with those below them.
_ENGINE = frozenset({"py4j", "pyspark", "DataFrameQueryContextLogger", "SQLQueryContextLogger"})


class WorkerLog:
    """Reads a worker's log as it grows."""

    def __init__(self) -> None:
        self._within = False
        #: Whether there was an error of the worker's own among the records.
        self.has_error = False

    def said(self, lines: Iterable[str]) -> list[str]:
        """Return what there is to read in the next `lines`, which are of standard error alone.

        Of a record that is the message, after the logger's name if the logger is the user's. The
        further lines of the record, such as a traceback, follow as they are.
        """
        shown = []
        for line in lines:
            record = _RECORD.match(line)
            if record is not None:
                room = record["logger"].partition(".")[0]
                self._within = record["level"] in _SHOWN and room not in _ENGINE
                if self._within:
                    ours = room == _OURS
                    self.has_error |= ours and record["level"] != "WARNING"
                    said = record["text"] if ours else f"{record['logger']}: {record['text']}"
                    shown.append(f"worker: {said}")
            elif self._within and line.startswith(CONTINUED):
                shown.append(line)
            else:
                # Whatever else writes to standard error: the JVM, the script, a C library.
                self._within = False
        return shown
