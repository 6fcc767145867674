"""Conversations against a real pulse store and a Java Pacemaker, without any connection."""

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.client.conversations import (
    copies_below,
    copy_of,
    single,
)
from stormkeeper.pacemaker.client.readings import Copy
from stormkeeper.pacemaker.server.store.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.store.pulse_store import PulseStore
from stormkeeper.pacemaker.wire import (
    Changes,
    Message,
)
from support.conversing import Clock, Java, Ours, hold

SERVER = Address("a", 6699)


@pytest.fixture
def clock():
    return Clock()


def test_a_single_question():
    answer, rounds = hold(single(Message(2, path="/a")), Java({"/a": b""}))
    assert answer.boolval is True
    assert rounds == 1


@pytest.mark.parametrize("limit", [0, 1, 3, 7])
def test_all_pages_of_changes_are_read_with_ages_and_tombstones(clock, limit):
    server = Ours(clock, limit)
    for number in range(10):
        server.store.put(b"/a/%d" % number, b"%d" % number)
        clock.now += 1.0
    server.store.put(b"/b", b"")
    server.store.delete(b"/a/3")
    found, _ = hold(copies_below("/a", SERVER, clock), server)
    assert sorted(found) == [f"/a/{number}" for number in range(10)]
    assert found["/a/3"].details is None
    assert found["/a/0"].details == b"0"
    assert found["/a/0"].received == pytest.approx(1000.0)
    assert found["/a/9"].received == pytest.approx(1009.0)


def test_without_values_there_are_ages_sizes_and_tombstones(clock):
    server = Ours(clock)
    server.store.put(b"/a", b"12345")
    server.store.put(b"/b", b"")
    server.store.delete(b"/b")
    clock.now += 2.0
    found, _ = hold(copies_below("/", SERVER, clock, values=False), server)
    assert found == {
        "/a": Copy(SERVER, None, 1000.0, 5, 1),
        "/b": Copy(SERVER, None, 1000.0, None, 3),
    }


def test_a_path_that_changes_while_it_is_read_is_not_missed(clock):
    server = Ours(clock, limit=2)
    for number in range(8):
        server.store.put(b"/%d" % number, b"old")
    beats = iter(range(7, 0, -1))

    def beat():
        number = next(beats, None)
        if number is not None:
            server.store.put(b"/%d" % number, b"new")

    server.before_answer = beat
    found, _ = hold(copies_below("/", SERVER, clock), server)
    assert len(found) == 8
    assert found["/7"].details == b"new"


def test_a_server_that_starts_again_in_the_middle_is_read_from_the_beginning(clock):
    server = Ours(clock, limit=2)
    for number in range(6):
        server.store.put(b"/old/%d" % number, b"old")
    rounds = []

    def restart():
        rounds.append(1)
        if len(rounds) == 2:
            server.store = PulseStore(PulseIndex(), "second", clock)
            for number in range(5):
                server.store.put(b"/new/%d" % number, b"new")

    server.before_answer = restart
    found, _ = hold(copies_below("/", SERVER, clock), server)
    assert sorted(found) == [f"/new/{number}" for number in range(5)]


def test_a_server_whose_pages_do_not_go_on_is_at_fault(clock):
    page = Changes("i", 9, [], True, False, 0)
    with pytest.raises(RemoteProtocolError, match="more changes after revision 0"):
        hold(copies_below("/", SERVER, clock), lambda _: Message(101, 0, changes=page))


JAVA = {"/a/b/c": b"1", "/a/b/d": b"2", "/a/e": b"3", "/ab": b"4", "/a": b"5"}


def test_a_java_pacemaker_is_walked(clock):
    found, _ = hold(copies_below("/a", SERVER, clock), Java(JAVA))
    assert {path: copy.details for path, copy in found.items()} == {
        path: details for path, details in JAVA.items() if path != "/ab"
    }
    assert all(copy.received is None for copy in found.values())


def test_the_copy_of_a_path_takes_one_request_whatever_is_below_it(clock):
    server = Ours(clock)
    for number in range(40):
        server.store.put(b"/a/%d" % number, b"below")
    clock.now += 5.0
    server.store.put(b"/a", b"it")
    clock.now += 2.5
    copy, rounds = hold(copy_of("/a", SERVER, clock), server)
    assert copy.details == b"it"
    assert copy.received == pytest.approx(1005.0)
    assert rounds == 1
    server.store.delete(b"/a")
    copy, _ = hold(copy_of("/a", SERVER, clock), server)
    assert (copy.details, copy.received) == (None, pytest.approx(1007.5))
    server.store.delete(b"/a")
    copy, _ = hold(copy_of("/a", SERVER, clock), server)
    assert copy.details is None
    assert hold(copy_of("/nowhere", SERVER, clock), server)[0] is None


def test_the_copy_of_a_java_pacemaker_has_no_age(clock):
    copy, rounds = hold(copy_of("/a/e", SERVER, clock), Java(JAVA))
    assert (copy.details, copy.received) == (b"3", None)
    assert rounds == 2
    assert hold(copy_of("/nowhere", SERVER, clock), Java(JAVA))[0] is None
