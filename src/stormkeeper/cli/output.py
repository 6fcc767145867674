"""Output of commands: aligned columns, durations, remarks and progress.

Quick commands use this module, so it imports light modules only.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

import click

from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.history.database import HistoryDatabase

#: Tables count as old after so many intervals of the pipeline, but at least these seconds.
_INTERVALS: Final = 4
_LEAST_SECS: Final = 60.0

#: Clears the line from the beginning.
_WIPE: Final = "\r\x1b[K"


def aligned(
    rows: Sequence[Sequence[str]], right: Collection[int] = (), gap: str = "  "
) -> Iterator[str]:
    """Yield rows as lines in columns as wide as the longest cell; some are aligned `right`."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield line(row, widths, right, gap)


def line(
    row: Sequence[str], widths: Sequence[int], right: Collection[int] = (), gap: str = " "
) -> str:
    """Return a row as a line, in columns of these widths."""
    cells = []
    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        blank = " " * (width - _width(cell))
        cells.append(blank + cell if number in right else cell + blank)
    return gap.join(cells).rstrip()


def _width(cell: str) -> int:
    return len(click.unstyle(cell))


def duration(secs: int) -> str:
    """Return seconds in the two largest units.

    Examples
    --------
    >>> duration(59), duration(61), duration(7_260), duration(90_000)
    ('59 s', '1 min 1 s', '2 h 1 min', '1 d 1 h')
    """
    for unit, name, below, part in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if secs >= unit:
            return f"{secs // unit} {name} {secs % unit // below} {part}"
    return f"{secs} s"


def ago(secs: float) -> str:
    return f"{duration(max(0, int(secs)))} ago"


def iso_time(value: datetime) -> str:
    """Return a time in UTC as ISO 8601 with milliseconds."""
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def map_floats(value: Any, change: Callable[[float], Any]) -> Any:
    """Return a JSON value with every float changed."""
    if isinstance(value, float):
        return change(value)
    if isinstance(value, dict):
        return {key: map_floats(item, change) for key, item in value.items()}
    return [map_floats(item, change) for item in value] if isinstance(value, list) else value


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, default=iso_time))


def note(text: str) -> None:
    """Print a line on stderr."""
    click.echo(f"storm: {printable(text)}", err=True)


def remark(text: str) -> None:
    """Print a line with the time on stderr."""
    note(f"{time.strftime('%H:%M:%S')} {text}")


def limit_secs(interval_secs: float) -> float:
    """Return the age in seconds from which tables of this interval count as old."""
    return max(_INTERVALS * interval_secs, _LEAST_SECS)


def age_of(written_at: datetime, interval_secs: float) -> str | None:
    """Return a remark if tables of this interval are old."""
    age = (datetime.now(UTC) - written_at).total_seconds()
    if age <= limit_secs(interval_secs):
        return None
    return (
        f"these tables are {duration(int(age))} old, and the pipeline writes them every"
        f" {interval_secs:g} s: does `storm pipeline` run?"
    )


def remark_on_age(past: HistoryDatabase, name: str) -> bool:
    """Print a remark on stderr if a table is old; return whether that is so."""
    said = age_of(past.written_at(name), past.interval_secs(name))
    if said is not None:
        note(said)
    return said is not None


class Progress:
    """Prints progress on stderr: as a changing line on a terminal, else as a log."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_live = self._stream.isatty()
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def step(self, text: str, moment: str = "") -> None:
        """Show a short step, on a terminal only."""
        if self._is_live:
            self.say(text, moment)

    def say(self, text: str, moment: str = "") -> None:
        """Show the present step; only a terminal shows the `moment`, such as seconds passed."""
        text = printable(text)
        if self._is_live:
            line = f"{text} ({moment})" if moment else text
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(_WIPE + (line if len(line) <= width else f"{line[: width - 1]}…"))
            self._stream.flush()
        else:
            from stormkeeper.client.topology_commands import says_more

            if says_more(text, self._text):
                self._stream.write(f"storm: {text}\n")
                self._stream.flush()
        self._text = text

    def remark(self, text: str) -> None:
        """Print a line that stays."""
        self.wipe()
        self._stream.write(f"storm: {printable(text)}\n")
        self._stream.flush()

    def wipe(self) -> None:
        if self._is_live and self._text:
            self._stream.write(_WIPE)
            self._stream.flush()
        self._text = ""


def time_left(wait_secs: float, passed: float) -> str:
    """Return the rest of a wait, or the time passed if the length is unknown or over."""
    secs = wait_secs - passed
    return f"{secs:.0f} s left" if secs > 0 else f"{passed:.0f} s"
