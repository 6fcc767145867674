"""What the cluster state promises, held against the figures."""

import statistics

from pacemaker.bars import Bar

from state import filling

#: Typed reads of all, of the time of kazoo's raw ones: decoding takes longer than reading, and is
#: worth no reimplementation of kazoo's connection (1.28 with one).
TYPED_AT_MOST = 2.0
#: What else ours does, of kazoo's own rate.
AT_LEAST = 0.8

WATCHES = f"watches-{filling.WATCHED}"
RATES = (
    "get",
    "set",
    "get-pipelined",
    "children-pipelined",
    "transaction-100",
    f"{WATCHES}-armed",
    f"{WATCHES}-fired",
)


class Figures:
    """What was measured, by cell and side.

    Parameters
    ----------
    rows
        As the cells give them, each with its ``round``.
    """

    def __init__(self, rows):
        self._rounds = {}
        for row in rows:
            self._rounds.setdefault((row["cell"], row["of"]), {})[row["round"]] = row

    @property
    def keys(self):
        """``(cell, of)`` of all that was measured, in order."""
        return list(self._rounds)

    def median(self, cell, of, figure):
        """Return the median of the rounds; None if no round has the figure."""
        found = [row.get(figure) for row in self._rounds.get((cell, of), {}).values()]
        found = [value for value in found if value is not None]
        return statistics.median(found) if found else None

    def most(self, cell, of, figure):
        """Return the greatest of the rounds; None if no round has the figure."""
        found = [row.get(figure) for row in self._rounds.get((cell, of), {}).values()]
        return max((value for value in found if value is not None), default=None)

    def ratio(self, cell, of, other):
        """Return the median of the rounds' ratios of one side's time to another's.

        The two of a round were measured in turn, within seconds of each other, so what else the
        machine did cancels out, mostly. None if there is no round with both.
        """
        mine = self._rounds.get((cell, of), {})
        others = self._rounds.get((cell, other), {})
        ratios = [mine[n]["secs"] / others[n]["secs"] for n in mine.keys() & others.keys()]
        return statistics.median(ratios) if ratios else None


def all_bars(figures):
    """Return the bars in the order of the table."""
    return [
        Bar(
            "all assignments and storm bases, typed: time, of kazoo's raw reads",
            figures.ratio("assignments-and-bases", "ours", "kazoo"),
            at_most=TYPED_AT_MOST,
        ),
        *(_rate(figures, cell) for cell in RATES),
        Bar(
            f"{filling.WATCHED:,} watches: threads more",
            figures.most(f"{WATCHES}-armed", "ours", "threads"),
            at_most=0,
        ),
        *(
            Bar(f"{name}: round trips", figures.most(cell, of, "round_trips"), at_most=limit)
            for name, cell, of, limit in (
                (
                    "24 heartbeats from a Pacemaker",
                    "far-heartbeats-24-pacemaker",
                    "ours-pacemaker",
                    1,
                ),
                ("24 heartbeats from ZooKeeper", "far-heartbeats-24", "ours", 2),
                ("300 nodes read at once", "far-read-300", "ours", 1),
                ("the 300 assignments with their names", "far-children-data-300", "ours", 2),
                ("a transaction of 100", "far-transaction-100", "ours", 1),
            )
        ),
    ]


def _rate(figures, cell):
    ratio = figures.ratio(cell, "kazoo", "ours")
    return Bar(f"{cell}: rate, of kazoo's", ratio, at_least=AT_LEAST)
