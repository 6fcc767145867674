"""What of a worker's log its user should read at once: warnings and errors of ours, whole."""

import re
from collections.abc import Iterable

#: A record's first line: its time, its level, its logger, its message.
_RECORD = re.compile(
    r"^\d{4}-\d\d-\d\dT[\d:.]+Z (?P<level>[A-Z]+) +(?P<logger>[\w.]+) (?P<text>.*)"
)

#: The line that Spark's log and the JVM's own begin otherwise.
_OTHERS = re.compile(r"^(\d\d/\d\d/\d\d |[A-Z]{2,}[ :]|\{)")


class WorkerLog:
    """Reads a worker's log as it grows."""

    def __init__(self) -> None:
        self._within = False
        #: Whether there was an error among the records.
        self.has_error = False

    def said(self, lines: Iterable[str]) -> list[str]:
        """Return what there is to read in the next `lines`.

        Of a record it is the message; the lines that belong to it, such as a traceback, follow it
        as they are.
        """
        shown = []
        for line in lines:
            record = _RECORD.match(line)
            if record is not None:
                level = record["level"]
                ours = record["logger"].startswith("stormkeeper")
                self._within = ours and level in {"WARNING", "ERROR"}
                self.has_error |= self._within and level == "ERROR"
                if self._within:
                    shown.append(f"worker: {record['text']}")
            elif self._within and not _OTHERS.match(line):
                shown.append(f"  {line}")
            else:
                self._within = False
        return shown
