"""What the Nimbus of a large cluster promises, held against the figures, and the table of these."""

from pacemaker.bars import Bar
from pacemaker.report import NOT_MEASURED, bars_table, table

OURS = "stormkeeper"
#: Supervisors of the cluster that the bars are for.
LARGE = 3_000

LIMITS = {
    "at rest: a round, median, ms": 150,
    "at rest: longest round, s": 1,
    "death of one: longest round, s": 1,
    "death of one: beyond the timeout, s": 5,
    "death of many: beyond the timeout, s": 30,
    "failover: beyond the session's timeout, s": 5,
    "placing all: to the last assignment, s": 10,
    "memory, most, MiB": 1_024,
}
#: May grow as the number of supervisors does, at most.
GROWING = (
    "at rest: a round, median, ms",
    "at rest: CPU, % of a core",
    "death of one: beyond the timeout, s",
    "death of many: beyond the timeout, s",
    "failover: first round, s",
    "placing all: to the last assignment, s",
    "memory, most, MiB",
)


class Figures:
    """What was measured, by the number of supervisors and side.

    Parameters
    ----------
    rows
        Each a mapping with ``supervisors``, ``of``, and the figures by name.
    """

    def __init__(self, rows):
        self._rows = {(row["supervisors"], row["of"]): row for row in rows}

    @property
    def sides(self):
        return sorted(self._rows, key=lambda key: (key[0], key[1] != OURS))

    @property
    def sizes(self):
        return sorted({supervisors for supervisors, of in self._rows if of == OURS})

    @property
    def names(self):
        """The names of all figures, in the order of their phases."""
        found = dict.fromkeys(name for row in self._rows.values() for name in row)
        return [name for name in found if name not in ("supervisors", "of")]

    def value(self, supervisors, name, of=OURS):
        return self._rows.get((supervisors, of), {}).get(name)

    def growth(self, name):
        """Return the greatest growth between two sizes, of a linear one; None for one size."""
        found = []
        for few, many in zip(self.sizes, self.sizes[1:], strict=False):
            before, after = self.value(few, name), self.value(many, name)
            if before and after:
                found.append(after / before / (many / few))
        return max(found, default=None)


def all_bars(figures):
    """Return the bars in the order of the table; only a large cluster's figures count."""
    large = max(figures.sizes, default=0)
    found = [
        Bar(name, figures.value(large, name) if large >= LARGE else None, at_most=limit)
        for name, limit in LIMITS.items()
    ]
    return found + [
        Bar(f"growth, of a linear one: {name}", figures.growth(name), at_most=1.0)
        for name in GROWING
    ]


def figures_table(figures):
    sides = figures.sides
    return table(
        ["", *(f"{n:,}" if of == OURS else f"{n:,}, {of}" for n, of in sides)],
        [[name, *(_text(figures.value(n, name, of)) for n, of in sides)] for name in figures.names],
    )


def summary(figures, bars, about):
    """Return all of it as one page of Markdown."""
    parts = [
        "# The Nimbus of a large cluster: measured",
        about,
        figures_table(figures),
        "## Bars",
        bars_table(bars),
    ]
    return "\n\n".join(parts) + "\n"


def _text(value):
    if value is None:
        return NOT_MEASURED
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
