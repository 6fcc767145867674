"""Heartbeats as no writer makes them: what is valid all the same is read, the rest says why not."""

import struct
import zlib

import pytest

from stormkeeper.pipeline import decoded_rows
from stormkeeper.pipeline.decoded_rows import decode
from stormkeeper.pipeline.decoding import layout
from stormkeeper.thrift.reader import MAX_DEPTH
from support.decoding import ENGINES, by_records, rows_of

BOOL, DOUBLE, I32, I64, STRING, STRUCT, MAP, LIST = 2, 4, 8, 10, 11, 12, 13, 15


def text(value):
    return struct.pack(">i", len(value)) + value


def fields(*found):
    return b"".join(struct.pack(">bh", kind, number) + data for kind, number, data in found) + b"\0"


def entries(key, value, *found):
    return struct.pack(">bbi", key, value, len(found)) + b"".join(a + b for a, b in found)


def i64(value):
    return struct.pack(">q", value)


def own(*windows):
    """A statistic by window, of (window, (stream, count), …)."""
    return entries(
        STRING,
        MAP,
        *(
            (text(window), entries(STRING, I64, *((text(s), i64(n)) for s, n in streams)))
            for window, *streams in windows
        ),
    )


NONE = own()
SPOUT = (STRUCT, 2, fields((MAP, 1, NONE), (MAP, 2, NONE), (MAP, 3, entries(STRING, MAP))))
COUNTED = [(MAP, number, entries(STRING, MAP)) for number in range(1, 6)]
BOLT = (STRUCT, 1, fields(*COUNTED))
ONE = (MAP, 1, own((b"600", (b"a", 1), (b"b", 2)), (b"10800", (b"a", 3))))
EXECUTOR = [ONE, (MAP, 2, NONE), (STRUCT, 3, fields(SPOUT)), (DOUBLE, 4, struct.pack(">d", 1.0))]
A_SOURCE = fields((STRING, 1, text(b"c")), (STRING, 2, text(b"s")))


def reported(acked):
    """A bolt that acked so many by stream, in one window."""
    return STRUCT, 1, fields((MAP, 1, entries(STRING, MAP, (text(b"6"), acked))), *COUNTED[1:])


def executor(*more, emitted=ONE, specific=(SPOUT,)):
    return fields(
        emitted,
        (MAP, 2, NONE),
        (STRUCT, 3, fields(*specific)),
        (DOUBLE, 4, struct.pack(">d", 1.0)),
        *more,
    )


def tasks(first, last, *more):
    return fields((I32, 1, struct.pack(">i", first)), (I32, 2, struct.pack(">i", last)), *more)


def beat(*more, executors=None, written=None):
    """A heartbeat; its executors are these, or as they are written."""
    found = executors or ((tasks(1, 2), executor()),)
    return fields(
        (STRING, 1, text(b"t-1-1")),
        (MAP, 2, written or entries(STRUCT, STRUCT, *found)),
        (I64, 3, i64(17)),
        (I32, 4, struct.pack(">i", 5)),
        *more,
    )


def nested(depth):
    """A value of unknown fields that nest so deep."""
    return fields() if depth == 0 else fields((STRUCT, 7, nested(depth - 1)))


def with_executor(data):
    return beat(executors=((tasks(1, 2), data),))


AGAIN = (MAP, 1, own((b"600", (b"c", 9))))

READ = {
    "an unknown field": beat(
        (STRING, 99, text(b"x")), (LIST, 98, struct.pack(">bi3h", 6, 3, 1, 2, 3))
    ),
    "an unknown field in a key": beat(executors=((tasks(1, 2, (BOOL, 9, b"\1")), executor()),)),
    "numbers of the other width": beat((I32, 3, b"\0\0\0\1"), (I64, 4, i64(2**31 - 1))),
    "a field of ours of another type": beat((I32, 1000, b"\0\0\0\1")),
    "completed twice": beat((BOOL, 1000, b"\1"), (BOOL, 1000, b"\2")),
    "executors twice": beat((MAP, 2, entries(STRUCT, STRUCT, (tasks(3, 3), executor())))),
    "an executor twice": beat(executors=((tasks(1, 2), executor()),) * 2),
    "a statistic twice": with_executor(executor(AGAIN)),
    "a window twice": with_executor(
        executor(emitted=(MAP, 1, own((b"6", (b"a", 1)), (b"6", (b"b", 1)))))
    ),
    "a stream twice": with_executor(executor(emitted=(MAP, 1, own((b"6", (b"a", 1), (b"a", 2)))))),
    "the fields of a stream in another order": with_executor(
        executor(
            specific=(
                reported(
                    entries(
                        STRUCT,
                        I64,
                        (A_SOURCE, i64(1)),
                        (fields((STRING, 2, text(b"s")), (STRING, 1, text(b"c"))), i64(2)),
                        (fields((STRING, 2, text(b"c")), (STRING, 1, text(b"s"))), i64(3)),
                    )
                ),
            )
        )
    ),
    "a bolt twice": with_executor(executor(specific=(BOLT, BOLT))),
    "neither bolt nor spout": with_executor(executor(specific=())),
    "windows counted in part twice": with_executor(
        executor((MAP, 1001, entries(STRING, I64, (text(b"600"), i64(1)), (text(b"600"), i64(0)))))
    ),
    "as deep as it may be": beat((STRUCT, 99, nested(MAX_DEPTH - 1))),
    "what follows": beat() + b"\xff" * 9,
}

REFUSED = {
    "deeper than it may be": (beat((STRUCT, 99, nested(MAX_DEPTH))), "nested deeper than 64"),
    "much deeper": (beat((STRUCT, 99, b"\x0c\0\1" * 100_000)), "nested deeper than 64"),
    "a count of too much": (beat(written=b"\x0c\x0c\x7f\xff\xff\xff"), "a count of 2147483647"),
    "a count below zero": (beat(written=b"\x0c\x0c\xff\xff\xff\xff"), "a count of -1"),
    "an unknown list of too much": (beat((LIST, 9, b"\x0a\x7f\xff\xff\xff")), "a count of"),
    "a text longer than the rest": (
        beat((STRING, 1, b"\x7f\xff\xff\xff")),
        "a length of 2147483647",
    ),
    "a text of a length below zero": (beat((STRING, 1, b"\xff\xff\xff\xff")), "a length of -1"),
    "not UTF-8": (with_executor(executor((STRING, 1000, text(b"ok\xff")))), "is not UTF-8"),
    "half of a surrogate": (
        with_executor(executor((STRING, 1000, text(b"\xed\xa0\x80")))),
        "UTF-8",
    ),
    "an uptime out of range": (beat((I64, 4, i64(2**31))), "where an i32 belongs"),
    "a type that is none": (beat((5, 99, b"")), "unknown type 5"),
    "elements that are none": (beat((LIST, 99, b"\5\0\0\0\1")), "elements of unknown type 5"),
    "both bolt and spout": (
        with_executor(executor(specific=(BOLT, SPOUT))),
        "more than one member",
    ),
    "no executors": (fields((STRING, 1, text(b"t"))), "required field 2, executor_stats"),
    "a map of something else": (
        beat(written=entries(STRUCT, STRING, (tasks(1, 2), text(b"")))),
        "a map of types",
    ),
    "averages where counts belong": (
        with_executor(
            executor(
                emitted=(
                    MAP,
                    1,
                    entries(
                        STRING, MAP, (text(b"6"), entries(STRING, DOUBLE, (text(b"a"), i64(1))))
                    ),
                )
            )
        ),
        "a map of types 11, 4 instead of 11, 10",
    ),
    "streams by their names where they come in": (
        with_executor(executor(specific=(reported(entries(STRUCT, I64, (text(b"a"), i64(1)))),))),
        "required field 1, componentId",
    ),
    "a component without a stream": (
        with_executor(
            executor(specific=(reported(entries(STRUCT, I64, (A_SOURCE[:-9] + b"\0", i64(1)))),))
        ),
        "required field 2, streamId",
    ),
    "a task out of range": (
        beat(executors=((fields((I64, 1, i64(2**31)), (I32, 2, bytes(4))), executor()),)),
        "where an i32 belongs",
    ),
    **{
        f"an executor without field {number}": (
            with_executor(fields(*(field for field in EXECUTOR if field[1] != number))),
            f"ExecutorStats without its required field {number}",
        )
        for number in range(1, 5)
    },
    **{
        f"a bolt without field {number}": (
            with_executor(
                executor(specific=((STRUCT, 1, fields(*(f for f in COUNTED if f[1] != number))),))
            ),
            f"BoltStats without its required field {number}",
        )
        for number in range(1, 6)
    },
}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("value", READ.values(), ids=READ)
def test_what_is_valid_is_read_and_the_last_one_counts(value, name):
    expected = by_records(value)
    assert expected["error"] is None
    assert rows_of([beat(), value, beat()], name) == [
        by_records(beat()),
        expected,
        by_records(beat()),
    ]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("value", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_says_why(value, reason, name):
    expected = by_records(value)
    assert reason in expected["error"]
    assert rows_of([beat(), value, beat()], name) == [
        by_records(beat()),
        expected,
        by_records(beat()),
    ]


@pytest.mark.parametrize("name", ENGINES)
def test_a_bomb_is_refused_and_the_next_one_is_read(name):
    bomb = zlib.compress(bytes(layout.HEARTBEAT_BYTES + 1), wbits=31)
    refused, read = rows_of([bomb, beat()], name)
    assert f"decompresses to more than {layout.HEARTBEAT_BYTES} bytes" in refused["error"]
    assert read == by_records(beat())


@pytest.mark.parametrize("name", ENGINES)
def test_long_names_of_many_rows_are_refused(name):
    window = b"w" * 200_000
    streams = [(b"%d" % number, number) for number in range(100)]
    value = with_executor(executor(emitted=(MAP, 1, own((window, *streams)))))
    took = len(window) * 100 + sum(len(stream) for stream, _ in streams)
    refused, read = rows_of([value, beat()], name)
    assert refused["error"] == (
        f"a heartbeat whose names would take {took} bytes in its rows, more than the limit of"
        f" {layout.NAME_BYTES}"
    )
    assert read == by_records(beat())


@pytest.mark.parametrize("name", ENGINES)
def test_a_long_component_of_many_rows_is_refused(name):
    component = b"c" * 200_000
    streams = [(b"%d" % number, number) for number in range(100)]
    emitted = (MAP, 1, own((b"600", *streams)))
    value = with_executor(executor((STRING, 1000, text(component)), emitted=emitted))
    took = (len(component) + 3) * 100 + sum(len(stream) for stream, _ in streams)
    refused, read = rows_of([value, beat()], name)
    assert f"names would take {took} bytes" in refused["error"]
    assert read == by_records(beat())


@pytest.mark.parametrize("name", ENGINES)
def test_large_heartbeats_become_columns_by_themselves(name, monkeypatch):
    monkeypatch.setattr(decoded_rows, "_MOST_BYTES", 32_000)
    window = b"w" * 150
    value = with_executor(
        executor(emitted=(MAP, 1, own((window, *((b"%d" % n, n) for n in range(90))))))
    )
    pieces = [count for count, _ in decode([value] * 5, ENGINES[name])]
    assert sum(pieces) == 5
    assert max(pieces) <= 3
