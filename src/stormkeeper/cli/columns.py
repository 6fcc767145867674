"""Lines for people: in columns, and with nothing that a terminal would take for its own.

It imports nothing, for commands that are to be quick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines, in columns as wide as what is in them."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield line(row, [width + 1 for width in widths])


def line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row as a line, in columns of these widths."""
    cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
    return " ".join(cells).rstrip()


def escaped(text: str) -> str:
    """Return a text, escaped if a terminal would not show all of it as it is."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
