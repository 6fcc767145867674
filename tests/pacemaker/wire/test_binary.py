"""Reading Thrift strictly: nothing past the end, nothing by announcement, nothing without end."""

import time
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire import binary
from stormkeeper.pacemaker.wire.binary import BinaryReader
from support.messages import field, i32, string

LEAVES = [
    (binary.BOOL, b"\x01"),
    (binary.BYTE, b"\x7f"),
    (binary.DOUBLE, bytes(8)),
    (binary.I16, b"\x80\x00"),
    (binary.I32, i32(-5)),
    (binary.I64, bytes(8)),
    (binary.UUID, bytes(16)),
    (binary.STRING, string("text")),
    (binary.STRING, string(b"\xff\xfe")),
]


def nested(children):
    """Structs and containers of values that are (kind, bytes) pairs."""

    def of_one_kind(values, header):
        kind = values[0][0] if values else binary.I32
        same = [raw for value_kind, raw in values if value_kind == kind]
        return header(kind) + i32(len(same)) + b"".join(same)

    lists = st.lists(children, max_size=3)
    return st.one_of(
        lists.map(
            lambda values: (
                binary.STRUCT,
                b"".join(field(kind, n, raw) for n, (kind, raw) in enumerate(values, -1)) + b"\0",
            )
        ),
        lists.map(lambda values: (binary.LIST, of_one_kind(values, lambda kind: bytes([kind])))),
        lists.map(lambda values: (binary.SET, of_one_kind(values, lambda kind: bytes([kind])))),
        st.tuples(children, children, st.integers(0, 3)).map(
            lambda pair: (
                binary.MAP,
                bytes([pair[0][0], pair[1][0]])
                + i32(pair[2])
                + (pair[0][1] + pair[1][1]) * pair[2],
            )
        ),
    )


any_value = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=12)


@given(any_value)
def test_any_value_is_skipped_to_its_end(value):
    kind, raw = value
    reader = BinaryReader(raw + i32(4711))
    reader.skip(kind)
    assert reader.i32() == 4711


@given(any_value)
def test_a_value_cut_short_is_a_fault(value):
    kind, raw = value
    for end in range(len(raw)):
        with pytest.raises(RemoteProtocolError, match="truncated"):
            BinaryReader(raw[:end]).skip(kind)


@given(st.binary(max_size=200), st.integers(0, 255))
def test_no_bytes_do_anything_but_end_or_fail(raw, kind):
    with suppress(RemoteProtocolError):
        BinaryReader(raw).skip(kind)


def test_numbers_are_read_signed_and_big_endian():
    reader = BinaryReader(i32(-2) + (-3).to_bytes(8, signed=True) + b"\x00\x02")
    assert (reader.i32(), reader.i64()) == (-2, -3)
    assert (reader.boolean(), reader.boolean()) == (False, True)


def test_text_that_is_not_utf8_is_named():
    with pytest.raises(RemoteProtocolError, match="path is not UTF-8"):
        BinaryReader(string(b"/\xff")).text("path")


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (binary.STRING, i32(-1)),
        (binary.LIST, bytes([binary.I32]) + i32(-1)),
        (binary.MAP, bytes([binary.I32, binary.I32]) + i32(-1)),
        (1, b"\x00"),
        (99, bytes(20)),
        (binary.LIST, bytes([1]) + i32(2)),
        (binary.STRUCT, field(77, 1, b"")),
    ],
)
def test_invalid_thrift_is_refused(kind, raw):
    with pytest.raises(RemoteProtocolError, match="garbage"):
        BinaryReader(raw).skip(kind)


def test_an_empty_container_may_be_of_any_type():
    reader = BinaryReader(b"\x00" + i32(0) + b"\x00\x00" + i32(0))
    reader.skip(binary.LIST)
    reader.skip(binary.MAP)
    with pytest.raises(RemoteProtocolError, match="truncated"):
        reader.boolean()


@pytest.mark.parametrize("kind", [binary.STRUCT, binary.LIST, binary.MAP])
def test_nesting_has_a_limit(kind):
    def value(levels):
        raw = b"\x00" if kind == binary.STRUCT else bytes([binary.BYTE, binary.BYTE]) + i32(0)
        if kind == binary.LIST:
            raw = bytes([binary.BYTE]) + i32(0)
        for _ in range(levels - 1):
            if kind == binary.STRUCT:
                raw = field(kind, 1, raw) + b"\x00"
            elif kind == binary.LIST:
                raw = bytes([kind]) + i32(1) + raw
            else:
                raw = bytes([binary.BYTE, kind]) + i32(1) + b"\x01" + raw
        return raw

    BinaryReader(value(binary.MAX_NESTING)).skip(kind)
    for levels in (binary.MAX_NESTING + 1, 100_000):
        with pytest.raises(RemoteProtocolError, match="nested deeper"):
            BinaryReader(value(levels)).skip(kind)


@pytest.mark.parametrize(
    "raw",
    [
        bytes([binary.STRUCT]) + i32(2**31 - 1) + bytes(1000),
        bytes([binary.STRING]) + i32(2**31 - 1),
        bytes([binary.I64]) + i32(2**31 - 1),
    ],
)
def test_a_huge_count_costs_only_the_bytes_there_are(raw):
    tracemalloc.start()
    try:
        started = time.process_time()
        with pytest.raises(RemoteProtocolError, match="truncated"):
            BinaryReader(raw).skip(binary.LIST)
        assert time.process_time() - started < 1
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_values_can_be_rationed():
    raw = field(binary.LIST, 1, bytes([binary.STRING]) + i32(5) + string("") * 5) + b"\x00"
    BinaryReader(raw, max_values=6).skip(binary.STRUCT)
    with pytest.raises(RemoteProtocolError, match="more Thrift values"):
        BinaryReader(raw, max_values=5).skip(binary.STRUCT)
    numbers = bytes([binary.BYTE]) + i32(1_000_000) + bytes(1_000_000)
    BinaryReader(numbers, max_values=0).skip(binary.LIST)  # in one step, whatever their number


def test_written_fields_are_read_back():
    raw = b"".join(
        (
            binary.boolean_field(1, True),
            binary.i32_field(2, -7),
            binary.i64_field(3, 2**40),
            binary.binary_field(4, b"\xff"),
            binary.text_field(5, "\u6e2c"),
            binary.list_header(6, binary.BOOL, 1),
            b"\x01\x00",
        )
    )
    reader = BinaryReader(raw)
    fields = reader.fields()
    assert (next(fields), reader.boolean()) == ((binary.BOOL, 1), True)
    assert (next(fields), reader.i32()) == ((binary.I32, 2), -7)
    assert (next(fields), reader.i64()) == ((binary.I64, 3), 2**40)
    assert (next(fields), reader.binary()) == ((binary.STRING, 4), b"\xff")
    assert (next(fields), reader.text("name")) == ((binary.STRING, 5), "\u6e2c")
    assert (next(fields), reader.sequence()) == ((binary.LIST, 6), (binary.BOOL, 1))
    assert (reader.boolean(), list(fields)) == (True, [])
