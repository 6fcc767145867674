"""Medians of the rounds, and ratios of two servers: decisions on rows, nothing else."""

import statistics

KEY = ("server", "op", "bytes", "connections", "outstanding")
MEASURED = ("requests_per_s", "cpu_us", "p50_ms", "p99_ms", "rss_mib")
DIGITS = {"requests_per_s": 0, "cpu_us": 3, "p50_ms": 3, "p99_ms": 3, "rss_mib": 1}


class Figures:
    """What was measured, by server and cell.

    Parameters
    ----------
    rows
        As `running.run` gives them, each with its ``round``.
    """

    def __init__(self, rows):
        self._rounds = {}
        for row in rows:
            key = tuple(row[name] for name in KEY)
            self._rounds.setdefault(key, {})[row["round"]] = row

    @property
    def keys(self):
        """``(server, op, bytes, connections, outstanding)`` of all that was measured, in order."""
        return list(self._rounds)

    def median(self, key, figure):
        """Return the median of the rounds; None if no round has the figure."""
        found = [row[figure] for row in self._rounds.get(key, {}).values()]
        found = [value for value in found if value is not None]
        return statistics.median(found) if found else None

    def per_round(self, key, figure):
        """Return the figure by round, where there is one."""
        rounds = self._rounds.get(key, {})
        return {n: row[figure] for n, row in rounds.items() if row[figure] is not None}

    def ratio(self, key, other, figure):
        """Return the median over the rounds of one server's figure to another's.

        The two of a round were measured within seconds of each other, so what else the machine
        did in that round cancels out, mostly. None if there is no round with both.
        """
        mine, others = self.per_round(key, figure), self.per_round(other, figure)
        both = [mine[n] / others[n] for n in mine.keys() & others.keys() if others[n]]
        return statistics.median(both) if both else None

    def medians(self):
        """Return one row for each server and cell, as the results have them."""
        return [
            dict(zip(KEY, key, strict=True))
            | {figure: _rounded(self.median(key, figure), figure) for figure in MEASURED}
            for key in self._rounds
        ]


def _rounded(value, figure):
    if value is None:
        return None
    return round(value, DIGITS[figure]) if DIGITS[figure] else round(value)
