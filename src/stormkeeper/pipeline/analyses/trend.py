"""The slope of a series that a few outliers do not bend, and whether chance explains it.

A series is an array of structs with a time in seconds, ``t``, and a value, ``y``. The slope is
that of Theil and Sen: the median of the slopes between all pairs of points. Its significance is
Mann and Kendall's: how many more pairs rise than fall, in standard deviations of what a series
without a trend does.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def computed(rows: DataFrame, **columns: Column) -> DataFrame:
    """Return the rows with further columns, each computed once, however often it is used.

    Spark would put a column's expression into each filter and column that uses it, and pairs of
    points again and again into one another.
    """
    row = F.struct(*(column.alias(name) for name, column in columns.items()))
    return rows.select("*", F.inline(F.array(row)))


def median(values: Column) -> Column:
    """Return the median of an array of doubles; null if it is empty."""

    def middle(ordered: Column) -> Column:
        size = F.size(ordered)
        low = F.get(ordered, F.floor((size - 1) / 2).cast("int"))
        high = F.get(ordered, F.floor(size / 2).cast("int"))
        return F.when(size > 0, (low + high) / 2)

    # A lambda's argument is computed once.
    return F.get(F.transform(F.array(F.sort_array(values)), middle), F.lit(0))


def slopes(points: Column) -> Column:
    """Return the slopes between all pairs of points, per second; points are in order of time."""

    def to_later(point: Column, place: Column) -> Column:
        later = F.slice(points, place + 2, F.size(points))
        later = F.filter(later, lambda other: other["t"] > point["t"])
        return F.transform(
            later, lambda other: (other["y"] - point["y"]) / (other["t"] - point["t"])
        )

    return F.flatten(F.transform(points, to_later))


def significance(slopes_: Column, size: Column) -> Column:
    """Return Mann and Kendall's z of `slopes` between `size` points; positive if they rise."""
    rising = F.aggregate(slopes_, F.lit(0.0), lambda sum_, slope: sum_ + F.signum(slope))
    spread = F.sqrt(size * (size - 1) * (2 * size + 5) / 18)
    return F.when(spread > 0, (rising - F.signum(rising)) / spread)


def level(points: Column, slope: Column, at: Column) -> Column:
    """Return where the line of this slope through the points is at the time `at`, in seconds."""
    return median(F.transform(points, lambda point: point["y"] + slope * (at - point["t"])))


def latest(points: Column, count: int) -> Column:
    """Return the last `count` points."""
    return F.slice(points, F.greatest(F.size(points) - count + 1, F.lit(1)), count)
