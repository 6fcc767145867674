from fractions import Fraction
from math import inf, nan

import pyarrow as pa
import pytest

from stormkeeper.pipeline.statistics import sums

COUNTS = [-(2**63), -(2**53) - 1, -1, 0, 1, 7, 2**53 + 1, 2**62, 2**63 - 1, None]


def column(*values, of=None):
    return pa.chunked_array([pa.array(values, of or pa.float64())])


def test_terms_that_are_no_finite_number_are_zero():
    averages = column(2.5, nan, inf, -inf, 1.7e308, None, 2.5)
    counts = column(4, 4, 0, 4, 100, 4, None, of=pa.int64())
    assert sums.terms(averages, counts).to_pylist() == [10.0, 0.0, 0.0, 0.0, 0.0, None, None]


def test_an_average_of_nothing_is_null_and_a_total_beyond_all_numbers_is_zero():
    totals = column(30.0, 30.0, 30.0, inf, None)
    counts = column(4, 0, -4, 4, 4, of=pa.int64())
    assert sums.average(totals, counts).to_pylist() == [7.5, None, None, 0.0, 0.0]
    beyond = column(2**64, of=pa.decimal128(38))
    assert sums.average(column(2.0**65), beyond).to_pylist() == [2.0]


def test_whole_milliseconds_are_cut_towards_zero_and_held_within_64_bits():
    totals = column(1.8, -1.8, nan, inf, 1e300, -1e300, None)
    assert sums.whole_ms(totals).to_pylist() == [1.0, -1.0, 0.0, 0.0, 2.0**63, -(2.0**63), None]


def test_capacity_is_of_ten_minutes_or_of_a_shorter_life():
    recent = column(60_000.0, 60_000.0, 60_000.0, 60_000.0, None, inf)
    uptime = column(100, 600, 9000, 0, 60, 60, of=pa.int32())
    expected = [0.6, 0.1, 0.1, 0.0, 0.0, 0.0]
    assert sums.capacity(recent, uptime).to_pylist() == pytest.approx(expected)
    unknown = column(None, -5, of=pa.int32())
    assert sums.capacity(column(1.0, 1.0), unknown).to_pylist() == [0.0, 0.0]


def test_doubles_are_the_nearest():
    counts = column(2**53 + 1, 2**63 - 1, of=pa.int64())
    found = sums.doubles(counts).to_pylist()
    assert [Fraction(value) for value in found] == [2**53, 2**63]
