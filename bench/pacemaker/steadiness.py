"""Whether a figure stays where it is: its trend over a run, held against a tolerance."""

import statistics
from dataclasses import dataclass

#: Samples that a trend is taken from; more are thinned out evenly.
MOST_SAMPLES = 400


@dataclass(frozen=True)
class Tolerance:
    """How much a figure may grow over a whole run: an amount, or a share of its median."""

    amount: float
    share: float

    def of(self, values):
        return max(self.amount, self.share * statistics.median(values))


@dataclass(frozen=True)
class Trend:
    """What became of a figure: `growth` over the whole run, by its trend, and what is tolerated."""

    name: str
    first: float
    last: float
    lowest: float
    highest: float
    growth: float
    tolerated: float

    @property
    def is_flat(self):
        """Whether it did not grow; that it shrank is no leak."""
        return self.growth <= self.tolerated


def trend(name, times, values, tolerance):
    """Return the trend of a figure.

    Parameters
    ----------
    times, values
        Seconds and samples, at least two.
    tolerance
        A `Tolerance`.
    """
    growth = slope(times, values) * (times[-1] - times[0])
    return Trend(
        *(name, values[0], values[-1], min(values), max(values)),
        growth=growth,
        tolerated=tolerance.of(values),
    )


def slope(times, values):
    """Return the median of the slopes between any two samples (Theil and Sen's estimate).

    Unlike least squares it does not follow a few outliers: the moments when one crew of workers
    leaves and another comes.
    """
    step = max(1, len(times) // MOST_SAMPLES)
    points = list(zip(times[::step], values[::step], strict=True))
    slopes = [
        (later - value) / (when - time)
        for i, (time, value) in enumerate(points)
        for when, later in points[i + 1 :]
    ]
    return statistics.median(slopes)
