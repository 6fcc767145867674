"""What of a log is read next, and which lines are shown."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.client import log_reader
from stormkeeper.client.log_reader import (
    LogLines,
    LogPart,
    LogPosition,
    begins_before,
    next_packed,
    next_part,
    time_of,
)
from stormkeeper.client.log_server import RemoteLog


def file(identity, size, modified=10.0, name="worker.log"):
    return RemoteLog(f"wc-1-1/6700/{name}", 6700, identity, size, modified)


def test_a_log_that_has_grown_is_read_from_where_it_was():
    now = file("a", 9)
    assert next_part([now], LogPosition("a", 9, 10.0)) is None
    part = next_part([now], LogPosition("a", 4, 10.0))
    assert part == LogPart(now, 4, 5, goes_on=True)
    assert LogPosition("a", 4, 10.0, {"z"}).after(part, 3) == LogPosition("a", 7, 10.0, {"z"})


def test_renamed_log_is_read_to_its_end_before_the_new_one():
    old, new = file("a", 9, name="worker.log.1"), file("b", 3, 11.0)
    assert next_part([old, new], LogPosition("a", 4, 10.0)) == LogPart(old, 4, 5, goes_on=True)
    assert next_part([old, new], LogPosition("a", 9, 10.0)) == LogPart(new, 0, 3, goes_on=False)
    assert next_part([old, file("b", 0)], LogPosition("a", 9, 10.0)) is None
    between = file("c", 5, 10.5, name="worker.log.1")
    assert next_part([old, between, new], LogPosition("a", 9, 10.0)).file == between


def test_a_log_that_was_emptied_is_read_from_its_beginning():
    now = file("a", 3)
    assert next_part([now], LogPosition("a", 9, 10.0)) == LogPart(now, 0, 3, goes_on=False)
    emptied = file("a", 0)
    place = LogPosition("a", 9, 10.0)
    part = next_part([emptied], place)
    assert part == LogPart(emptied, 0, 0, goes_on=False)
    assert next_part([emptied], place.after(part, 0)) is None


def test_what_was_put_aside_packed_is_read_before_what_is_left():
    old, new = file("p", 5, 8.0, "worker.log.2.gz"), file("q", 6, 9.0, "worker.log.1.gz")
    files = [old, new, file("a", 3)]
    place = LogPosition("a", 900, 7.0, frozenset("p"))
    assert next_packed(files, place) == new
    place = place.after_packed(new, 800)
    assert place == LogPosition("a", 100, 7.0, frozenset("pq"))
    assert next_packed(files, place) is None
    assert place.after_packed(file("r", 7, 9.5, "worker.log.1.gz"), 800).offset == 0
    assert next_part([old, new], place) is None


def test_after_a_log_that_is_gone_comes_what_is_newer():
    before, after = file("x", 5, 3.0, "worker.log.2"), file("c", 5, 12.0, "worker.log.1")
    new = file("b", 3, 13.0)
    assert next_part([before, after, new], LogPosition("a", 9, 10.0)).file == after
    assert next_part([before], LogPosition("a", 9, 10.0)).file == before
    assert next_part([], LogPosition("a", 9, 10.0)) is None


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=8), st.data())
def test_renames_neither_lose_nor_repeat_lines(written, data):
    """Play a log that grows and is renamed, and a reader that looks in between."""
    contents, read = {0: b""}, b""
    place = LogPosition("0", 0, 0.0)
    for number, piece in enumerate(written):
        if data.draw(st.booleans(), label="renamed"):
            contents[len(contents)] = b""
        contents[len(contents) - 1] += piece
        if data.draw(st.booleans(), label="looks") or number == len(written) - 1:
            files = [
                file(str(each), len(content), float(each)) for each, content in contents.items()
            ]
            while part := next_part(files, place):
                length = data.draw(st.integers(1, part.length), label="length")
                read += contents[int(part.file.identity)][part.start : part.start + length]
                place = place.after(part, length)
    assert read == b"".join(written)


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (b"2026-03-01T12:00:00.123Z INFO stormkeeper.worker x", 123_000),
        (b'{"time": "2026-03-01T12:00:00.123Z", "level": "INFO"}', 123_000),
        (b"2026-03-01T12:00:00Z", 0),
        (b"2026-13-01T12:00:00.123Z no such month", None),
        (b"  File x, line 1", None),
        (b"26/03/01 12:00:00 WARN Utils: of another clock", None),
        (b"", None),
    ],
)
def test_when_a_line_was_logged(line, time):
    expected = datetime(2026, 3, 1, 12, 0, 0, time or 0, tzinfo=UTC).timestamp()
    assert time_of(line) == (None if time is None else expected)


def at(second, text=""):
    return b"1970-01-01T00:00:%02d.000Z %s" % (second, text.encode())


def test_a_block_begins_before_a_moment():
    block = b"st of a line\n  more of it\n" + at(10) + b"\n" + at(20)
    assert begins_before(block, 11.0)
    assert not begins_before(block, 10.0)
    assert not begins_before(at(1) + b"\nthe first may be cut", 10.0)


def test_lines_are_whole_whatever_the_pieces():
    lines = LogLines()
    assert [*lines.take(b"on")] == []
    assert [*lines.take(b"e\ntwo\r\nthr")] == ["one", "two"]
    assert [*lines.take("\xfcber\n\n".encode("latin-1"))] == ["thr\ufffdber", ""]
    assert [*lines.take(b"end")] == []
    assert [*lines.end()] == ["end"]
    assert [*lines.end()] == []


def test_a_line_without_an_end_is_shown_in_pieces(monkeypatch):
    monkeypatch.setattr(log_reader, "MOST_HELD", 3)
    lines = LogLines()
    assert [*lines.take(b"abcd")] == ["abcd"]
    assert [*lines.take(b"ef\n")] == ["ef"]


def test_what_is_cut_at_the_beginning_is_left_out():
    lines = LogLines(is_whole=False)
    assert [*lines.take(b"st of one\ntwo\n")] == ["two"]
    lines = LogLines(is_whole=False)
    assert [*lines.take(b"st of one"), *lines.end(), *lines.take(b"a new file\n")] == ["a new file"]


OLD, NEW = at(1, "old"), at(9, "new")


@pytest.mark.parametrize(
    ("lines", "shown", "at_the_end"),
    [
        ([OLD, b"  of the old", NEW, b"  of the new", b"print"], [2, 3, 4], []),
        ([b"a print before", OLD, NEW], [2], []),
        ([OLD, b"a print", b"  of it", NEW], [1, 2, 3], []),
        ([OLD, b"a print", OLD, b"  of the old", b"print", b"  of it"], [], [4, 5]),
        ([b"a print", b"another"], [], [0, 1]),
        ([OLD, b"  of it"], [], []),
        ([NEW, OLD, NEW], [0, 2], []),
    ],
)
def test_lines_since_a_moment_and_those_that_do_not_say_theirs(lines, shown, at_the_end):
    made = LogLines(since=5.0)
    texts = [line.decode() for line in lines]
    assert [*made.take(b"\n".join([*lines, b""]))] == [texts[each] for each in shown]
    assert [*made.caught_up()] == [texts[each] for each in at_the_end]
    assert [*made.take(b"whatever comes then\n")] == ["whatever comes then"]


def test_of_lines_that_may_be_of_any_time_the_last_are_shown(monkeypatch):
    monkeypatch.setattr(log_reader, "MOST_DOUBTFUL", 10)
    lines = LogLines(since=5.0)
    assert [*lines.take(b"one\ntwo\nthree\n")] == []
    assert [*lines.caught_up()] == ["two", "three"]
