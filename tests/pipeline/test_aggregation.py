import random
from collections import defaultdict
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial, reduce
from math import inf, nan
from operator import add

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pipeline import executor_stats
from stormkeeper.pipeline.executor_stats import grouped, to_int64

COUNTS = [-(2**63), -(2**53) - 1, -1, 0, 1, 7, 2**53 + 1, 2**62, 2**63 - 1, None]
AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("values", [COUNTS, [0, 1, 7, 2**31, None]], ids=["huge", "small"])
def test_counts_are_summed_up_exactly_and_held_within_64_bits(values):
    chance = random.Random(4)
    rows = [(chance.randrange(20), chance.choice(values)) for _ in range(300)]
    table = pa.table({"key": [k for k, _ in rows], "n": pa.array([n for _, n in rows], pa.int64())})
    expected = {}
    for key, count in rows:
        expected[key] = expected.get(key, 0) + (count or 0)
    found = grouped(table, ["key"], counts=["n"])
    assert dict(zip(*(found[name].to_pylist() for name in ("key", "n")), strict=True)) == expected
    # In two steps it is the same,
    parts = [grouped(table.slice(n, 30), ["key"], counts=["n"]) for n in range(0, 300, 30)]
    parts = [part.set_column(1, "n", part["n"].cast(pa.decimal128(38))) for part in parts]
    again = grouped(pa.concat_tables(parts), ["key"], counts=["n"])
    assert dict(zip(*(again[name].to_pylist() for name in ("key", "n")), strict=True)) == expected
    # and 64 bits are never exceeded.
    of_64_bits = [max(-(2**63), min(count, 2**63 - 1)) for count in expected.values()]
    assert sorted(to_int64(found["n"]).to_pylist()) == sorted(of_64_bits)


def test_nulls_sum_up_to_zero_and_others_reduce_as_asked():
    table = pa.table({"key": ["a", "a", "b"], "n": pa.nulls(3, pa.int64()), "at": [3, 5, 4]})
    found = grouped(table, ["key"], counts=["n"], others={"at": "max"})
    assert found.to_pylist() == [{"key": "a", "n": 0, "at": 5}, {"key": "b", "n": 0, "at": 4}]
    assert grouped(table.slice(0, 0), ["key"], counts=["n"]).num_rows == 0


KEYS = {"text": pa.string(), "encoded": pa.dictionary(pa.int32(), pa.string()), "n": pa.int64()}
VALUES = {
    "float": st.sampled_from([-inf, -1.5, 0.0, 0.1, 2.5, 1e300, inf]),
    "int": st.integers(-(2**31), 2**31 - 1),
    "is": st.booleans(),
    "at": st.integers(0, 2**40),
}
TYPES = {
    "float": pa.float64(),
    "int": pa.int32(),
    "is": pa.bool_(),
    "at": pa.timestamp("us", tz="UTC"),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {name: st.none() | st.sampled_from("ab") for name in ("text", "encoded")}
        | {"n": st.none() | st.integers(-1, 1)}
        | {name: st.none() | values for name, values in VALUES.items()}
    ),
    max_size=12,
)


FUNCTIONS = {"sum": partial(reduce, add), "max": max, "min": min, "any": any}
WANTED = [("float", "sum"), ("float", "max"), ("int", "sum"), ("int", "min"), ("at", "max")]
WANTED += [("at", "min"), ("is", "any")]


@given(ROWS, st.permutations([*KEYS]), st.integers(1, 3))
def test_groups_have_the_values_that_their_rows_have(given_rows, keys, count):
    keys = keys[:count]
    rows = pa.Table.from_pylist(given_rows, schema=pa.schema(KEYS | TYPES))
    for name, function in WANTED:
        found = grouped(rows, keys, others={name: function}).to_pylist()
        groups = defaultdict(list)
        for row in rows.to_pylist():
            groups[tuple(row[key] for key in keys)].append(row[name])
        expected = []
        for key, of in groups.items():
            values = [value for value in of if value is not None]
            value = FUNCTIONS[function](values) if values else None
            expected.append(dict(zip(keys, key, strict=True)) | {name: value})
        assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_texts_of_several_dictionaries_are_one_column_of_keys():
    parts = [["a", "b", "a"], ["b", "c"], ["c", "a"]]
    chunks = pa.chunked_array([pa.array(part).dictionary_encode() for part in parts])
    table = pa.table({"key": chunks, "n": range(7)})
    found = grouped(table, ["key"], counts=["n"])
    assert pa.types.is_dictionary(found["key"].type)
    expected = [("a", 0 + 2 + 6), ("b", 1 + 3), ("c", 4 + 5)]
    assert [tuple(row.values()) for row in found.to_pylist()] == expected


def test_largest_value_is_of_the_rows_with_the_same_texts():
    texts = pa.array(["a", "a", "b", "a"]).dictionary_encode()
    table = pa.table({"id": texts, "name": ["x", "y", "x", "x"], "n": [1, 9, None, 3]})
    assert executor_stats.largest_of(table, "n", ["id"]).to_pylist() == [9, 9, None, 9]
    assert executor_stats.largest_of(table, "n", ["id", "name"]).to_pylist() == [3, 9, None, 3]


def column(*values, of=None):
    return pa.chunked_array([pa.array(values, of or pa.float64())])


def test_terms_that_are_no_finite_number_are_zero():
    averages = column(2.5, nan, inf, -inf, 1.7e308, None, 2.5)
    counts = column(4, 4, 0, 4, 100, 4, None, of=pa.int64())
    expected = [10.0, 0.0, 0.0, 0.0, 0.0, None, None]
    assert executor_stats.terms(averages, counts).to_pylist() == expected


def test_average_of_nothing_is_null_and_infinite_totals_zero():
    totals = column(30.0, 30.0, 30.0, inf, None)
    counts = column(4, 0, -4, 4, 4, of=pa.int64())
    assert executor_stats.average(totals, counts).to_pylist() == [7.5, None, None, 0.0, 0.0]
    beyond = column(2**64, of=pa.decimal128(38))
    assert executor_stats.average(column(2.0**65), beyond).to_pylist() == [2.0]


def test_whole_milliseconds_are_cut_and_limited_to_64_bits():
    totals = column(1.8, -1.8, nan, inf, 1e300, -1e300, None)
    assert executor_stats.whole_ms(totals).to_pylist() == [
        1.0,
        -1.0,
        0.0,
        0.0,
        2.0**63,
        -(2.0**63),
        None,
    ]


def test_capacity_is_of_ten_minutes_or_of_a_shorter_life():
    recent = column(60_000.0, 60_000.0, 60_000.0, 60_000.0, None, inf)
    uptime = column(100, 600, 9000, 0, 60, 60, of=pa.int32())
    expected = [0.6, 0.1, 0.1, 0.0, 0.0, 0.0]
    assert executor_stats.capacity(recent, uptime).to_pylist() == pytest.approx(expected)
    unknown = column(None, -5, of=pa.int32())
    assert executor_stats.capacity(column(1.0, 1.0), unknown).to_pylist() == [0.0, 0.0]


def test_doubles_are_the_nearest():
    counts = column(2**53 + 1, 2**63 - 1, of=pa.int64())
    found = executor_stats.to_float64(counts).to_pylist()
    assert [Fraction(value) for value in found] == [2**53, 2**63]
