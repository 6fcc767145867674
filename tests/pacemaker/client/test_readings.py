import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.conf import Address
from stormkeeper.pacemaker.client.pool_reads import (
    in_doubt,
    newest,
    newest_of_each,
    without_values,
)
from stormkeeper.pacemaker.client.server_reads import Heartbeat, ListedNames
from stormkeeper.pacemaker.wire.messages import TOMBSTONE
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import serialize

A, B, C = (Address(name, 6699) for name in "abc")


def heartbeat(time_secs):
    return serialize(
        ClusterWorkerHeartbeat(storm_id="", executor_stats={}, time_secs=time_secs, uptime_secs=0)
    )


#: When the reads of these tests began.
NOW = 10.0


def copy(server, value, received):
    """A copy of a pulse; without a value, a tombstone. Digits are a heartbeat of that time."""
    if value is not None and value.isdigit():
        value = heartbeat(int(value))
    size = TOMBSTONE if value is None else len(value)
    if received is None:
        return Heartbeat(str(server), None, size, None, value)
    return Heartbeat(str(server), NOW - received, size, 7, value)


def test_nothing_is_nothing():
    assert newest([]) is None


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        # (server, value, received), and the index of the copy that counts.
        ([(A, b"1", 10.0)], 0),
        ([(A, b"9", 10.0), (B, b"1", 11.0)], 1),
        ([(A, b"1", 10.0), (B, None, 11.0)], None),
        ([(A, b"1", 12.0), (B, None, 11.0)], 0),
        ([(A, None, 11.0), (B, b"1", 11.0)], 1),
        ([(A, b"1", 10.0), (B, b"2", 10.0)], 0),
        ([(A, b"1", 13.0), (B, None, 12.0), (C, b"2", 11.0)], 0),
        ([(A, b"1", None)], 0),
        ([(A, b"3", None), (B, b"5", None), (C, b"4", None)], 1),
        ([(A, b"hello", None), (B, b"5", None)], 1),
        ([(A, b"hello", None), (B, b"you", None)], 0),
        ([(A, b"5", 10.0), (B, b"6", None)], 1),
        ([(A, b"5", 10.0), (B, b"4", None)], 0),
        ([(B, b"5", None), (A, b"5", 10.0)], 1),
        ([(A, b"9", 10.0), (B, b"5", 11.0), (C, b"6", None)], 2),
        ([(A, None, 10.0), (B, b"6", None)], 1),
        ([(A, None, 10.0), (B, b"5", 9.0), (C, b"1", None)], 2),
        ([(A, None, 10.0)], None),
    ],
)
def test_the_newest_counts(copies, expected):
    made = [copy(*one) for one in copies]
    assert newest(made) is (None if expected is None else made[expected])


def test_ages_are_enough_where_all_servers_tell_them():
    assert newest([copy(A, b"x", 1.0), copy(B, b"y", 2.0)]).value == b"y"
    assert newest([copy(A, b"x", None), copy(B, None, 2.0)]).value == b"x"


values = st.binary(max_size=2)
servers = st.sampled_from([A, B, C])
copies = st.builds(copy, servers, st.none() | values, st.floats(0, 12)) | st.builds(
    copy, servers, values, st.none()
)


@given(st.lists(copies, max_size=6))
def test_what_counts_is_one_of_the_copies_and_no_tombstone(copies):
    best = newest(copies)
    if best is None:
        assert all(one.age_secs is not None for one in copies)
    else:
        assert best in copies
        assert best.size != TOMBSTONE


def test_newest_copy_has_age_and_server():
    here = {
        "/one": copy(A, b"1", 7.0),
        "/both": copy(A, b"2", 6.0),
        "/gone": copy(A, b"3", 5.0),
        "/only a tombstone": copy(A, None, 8.0),
    }
    there = {
        "/both": copy(B, b"22", 8.0),
        "/gone": copy(B, None, 6.0),
        "/from the future": copy(B, b"4", 11.0),
    }
    java = {"/other": copy(C, b"5", None)}

    def reading(time, age, server, revision):
        value = heartbeat(int(time))
        return Heartbeat(str(server), age, len(value), revision, value)

    found = newest_of_each([here, there, java])
    assert found == {
        "/one": reading("1", 3.0, A, 7),
        "/both": reading("22", 2.0, B, 7),
        "/from the future": reading("4", 0.0, B, 7),
        "/other": reading("5", None, C, None),
    }
    assert without_values(found) == {path: one._replace(value=None) for path, one in found.items()}


def names(listed, deleted=""):
    return ListedNames(
        frozenset(listed.split()), None if deleted is None else frozenset(deleted.split())
    )


@pytest.mark.parametrize(
    ("servers", "doubtful"),
    [
        ({A: names("x y"), B: names("y")}, ""),
        ({A: names("x"), B: names("", "x z")}, "x"),
        ({A: names("x", "x"), B: names("")}, ""),  # beside its own tombstones it is alive
        ({A: names("x"), B: names("x", "x")}, ""),  # nothing hides what the second lists
        ({A: names("x", "x"), B: names("x", "x")}, "x"),
        ({A: names("x"), B: names("x", "x"), C: names("", "x")}, "x"),
        ({A: names("x", None), B: names("y", "x y")}, ""),  # a Java Pacemaker's
        ({A: names("x"), C: names("x", None), B: names("", "x")}, ""),
    ],
)
def test_name_is_in_doubt_if_tombstones_may_hide_it(servers, doubtful):
    assert in_doubt(servers) == set(doubtful.split())


def test_between_equals_the_first_server_decides():
    one, other = {"/x": copy(A, b"1", 1.0)}, {"/x": copy(B, b"1", 1.0)}
    for servers, first in (([one, other], A), ([other, one], B)):
        assert newest_of_each(servers)["/x"].server == str(first)
