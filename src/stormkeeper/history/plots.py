"""A course of time, drawn in the terminal."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import plotext

#: Height of a drawing in lines, and limits of its width.
_HEIGHT: Final = 11
_NARROWEST, _WIDEST = 40, 160

#: Width beside the title, and the shortest title that tells anything.
_BESIDE: Final = 6
_SHORTEST: Final = 4

#: Column, whether it is a count, and label of each drawing.
_DRAWN: Final = (
    ("emitted", True, "emitted, tuples/s"),
    ("executed", True, "executed, tuples/s"),
    ("failed", True, "failed, tuples/s"),
    ("complete_ms_avg", False, "complete latency, ms"),
    ("execute_ms_avg", False, "execute latency, ms"),
    ("capacity", False, "capacity, busiest executor"),
)


def of_course(buckets: Sequence[dict[str, Any]], bucket_secs: int, title: str) -> str:
    """Return drawings of rates, latencies and capacity, below each other, without colours.

    They are as wide as the terminal, or 80 columns without one. Figures that are missing or always
    0 are left out. `buckets` is a `component_stats.course` with at least one bucket; `title` is
    printable.
    """
    width = max(_NARROWEST, min(shutil.get_terminal_size().columns, _WIDEST))
    drawings = []
    for name, is_count, text in _DRAWN:
        divisor = bucket_secs if is_count else 1
        points = [(row["bucket"], row[name] / divisor) for row in buckets if row[name] is not None]
        if any(value for _, value in points):
            newest = f"{points[-1][1]:,.4g}"
            label = _label(title, f"{text} (last {newest})", width)
            drawings.append(_drawing(points, bucket_secs, label, width))
    return "\n".join(drawings)


def _label(title: str, text: str, width: int) -> str:
    """Return the title, shortened to the width: plotext would print nothing otherwise."""
    room = width - len(text) - _BESIDE
    if len(title) > room:
        title = f"{title[: room - 1]}…" if room > _SHORTEST else ""
    return f"{title}: {text}" if title else text


def _drawing(
    points: Sequence[tuple[datetime, float]], bucket_secs: int, label: str, width: int
) -> str:
    # Otherwise plotext cuts drawings to the terminal that it detects.
    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, _HEIGHT)
    times = [at.timestamp() for at, _ in points]
    signal = figure.signal(times, [value for _, value in points], marker="braille")
    signal.lines()
    for place, (before, after) in enumerate(itertools.pairwise(times), start=1):
        if after - before > bucket_secs:
            signal.line(place, False)  # no bucket: nothing is known of that time
    figure.draw(signal)
    figure.title(label)
    first, last = points[0][0], points[-1][0]
    ticks = [*_ticks(first, last)]
    form = "%H:%M" if last - first <= timedelta(days=1) else "%m-%d %H:%M"
    labels = {f"{at:{form}}": at.timestamp() for at in reversed(ticks)}  # each once
    figure.ruler("x").ticks([*labels.values()], [*labels])
    figure.ruler("y").lim(0, None)
    return "\n".join(line.rstrip() for line in plotext.uncolorize(str(figure.build())).splitlines())


def _ticks(first: datetime, last: datetime) -> Iterator[datetime]:
    steps = 4 if last > first else 0
    yield first
    for step in range(1, steps + 1):
        yield first + (last - first) * step / steps
