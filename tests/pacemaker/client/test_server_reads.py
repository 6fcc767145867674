"""Questions to a real pulse store and to a Java Pacemaker, without any connection."""

import contextlib

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.client.server_reads import (
    Heartbeat,
    contents_below,
    copy_of,
    java_pulses,
    one_request,
)
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.wire.messages import TOMBSTONE, Changes, Message, MessageType, Pulse
from support.messages import columns_of
from support.questions import Clock, Java, Ours, ask
from support.scripted_pacemaker import answered

SERVER = Address("a", 6699)


@pytest.fixture
def clock():
    return Clock()


def test_a_single_question():
    answer, rounds = ask(one_request(Message(2, path="/a")), Java({"/a": b""}))
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
    found = ask(contents_below("/a", SERVER, clock.elapsed), server)[0].copies
    assert sorted(found) == [f"/a/{number}" for number in range(10)]
    assert (found["/a/3"].value, found["/a/3"].size) == (None, TOMBSTONE)
    assert found["/a/0"].value == b"0"
    # Before the read began, which is when the clock did.
    assert found["/a/0"].age_secs == pytest.approx(0.0)
    assert found["/a/9"].age_secs == pytest.approx(-9.0)


def test_without_values_there_are_ages_sizes_and_tombstones(clock):
    server = Ours(clock)
    server.store.put(b"/a", b"12345")
    server.store.put(b"/b", b"")
    server.store.delete(b"/b")
    clock.now += 2.0
    found = ask(contents_below("/", SERVER, clock.elapsed, values=False), server)[0].copies
    assert found == {
        "/a": Heartbeat(str(SERVER), 0.0, 5, 1),
        "/b": Heartbeat(str(SERVER), 0.0, TOMBSTONE, 3),
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
    found = ask(contents_below("/", SERVER, clock.elapsed), server)[0].copies
    assert len(found) == 8
    assert found["/7"].value == b"new"


def test_restarted_server_is_read_from_the_beginning(clock):
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
    found = ask(contents_below("/", SERVER, clock.elapsed), server)[0].copies
    assert sorted(found) == [f"/new/{number}" for number in range(5)]


@pytest.mark.parametrize(("limit", "rounds"), [(0, 1), (3, 5)])
def test_description_comes_with_only_page_or_after_last(clock, limit, rounds):
    server = Ours(clock, limit)
    for number in range(10):
        server.store.put(b"/%d" % number, b"")
        server.before_answer = lambda: server.store.put(b"/9", b"again")
    contents, asked = ask(contents_below("/", SERVER, clock.elapsed, values=False), server)
    assert asked == rounds
    assert contents.info.revision == server.store.index.revision
    assert ask(contents_below("/", SERVER, clock.elapsed), Java(JAVA))[0].info is None


def test_a_server_whose_pages_do_not_go_on_is_at_fault(clock):
    page = Changes("i", 9, columns_of([]), True, False, 0)
    with pytest.raises(RemoteProtocolError, match="more changes after revision 0"):
        ask(contents_below("/", SERVER, clock.elapsed), lambda _: Message(101, 0, changes=page))


JAVA = {"/a/b/c": b"1", "/a/b/d": b"2", "/a/e": b"3", "/ab": b"4", "/a": b"5"}


def test_a_java_pacemaker_is_walked(clock):
    found = ask(contents_below("/a", SERVER, clock.elapsed), Java(JAVA))[0].copies
    assert {path: copy.value for path, copy in found.items()} == {
        path: details for path, details in JAVA.items() if path != "/ab"
    }
    assert all(copy.age_secs is None for copy in found.values())


def test_copy_of_a_path_takes_one_request(clock):
    server = Ours(clock)
    for number in range(40):
        server.store.put(b"/a/%d" % number, b"below")
    clock.now += 5.0
    server.store.put(b"/a", b"it")
    clock.now += 2.5
    copy, rounds = ask(copy_of("/a", SERVER, clock.elapsed), server)
    assert copy.value == b"it"
    assert copy.age_secs == pytest.approx(-5.0)
    assert rounds == 1
    server.store.delete(b"/a")
    copy, _ = ask(copy_of("/a", SERVER, clock.elapsed), server)
    assert (copy.size, copy.age_secs) == (TOMBSTONE, pytest.approx(-7.5))
    server.store.delete(b"/a")
    copy, _ = ask(copy_of("/a", SERVER, clock.elapsed), server)
    assert copy.size == TOMBSTONE
    assert ask(copy_of("/nowhere", SERVER, clock.elapsed), server)[0] is None


def test_the_copy_of_a_java_pacemaker_has_no_age(clock):
    copy, rounds = ask(copy_of("/a/e", SERVER, clock.elapsed), Java(JAVA))
    assert (copy.value, copy.age_secs) == (b"3", None)
    assert rounds == 2
    assert ask(copy_of("/nowhere", SERVER, clock.elapsed), Java(JAVA))[0] is None


# --- a Java Pacemaker, request by request ---------------------------------------------------------


def read(path, reply):
    """Read to the end; return the pulses, and the requests of each round."""
    found, rounds = {}, []
    question = java_pulses(path, found)
    with contextlib.suppress(StopIteration):
        requests, _ = next(question)
        while len(rounds) < 1000:
            rounds.append([(request.type, request.path) for request in requests])
            requests, _ = question.send([reply(request) for request in requests])
    return found, rounds


def java(store):
    return lambda request: answered(store, request)


def test_pulses_of_java_are_found_and_not_listed_below():
    store = {f"/workerbeats/wc-{n % 3}/{n}": b"%d" % n for n in range(9)}
    found, rounds = read("/workerbeats", java(store))
    assert found == store
    asked = [path for requests in rounds for kind, path in requests if kind == 8]
    assert sorted(asked) == ["/workerbeats", *(f"/workerbeats/wc-{n}" for n in range(3))]


def test_pulses_below_a_root_with_a_pulse_are_found():
    store = {"/a": b"1", "/a/b": b"2", "/ab": b"3"}
    assert read("/a", java(store))[0] == {"/a": b"1", "/a/b": b"2"}


def test_nothing_is_asked_beyond_a_full_connection_at_once():
    store = {f"/w/{number}": b"%d" % number for number in range(250)}
    found, rounds = read("/w", java(store))
    assert found == store
    assert max(map(len, rounds)) == 100
    assert sum(map(len, rounds)) == 252


def test_names_that_are_listed_by_mistake_lead_nowhere():
    def reply(request):
        answer = answered({"/w/wc-1-1700000000/b": b"2"}, request)
        if request.path == "/w/wc-1-17" and answer.nodes is not None:
            answer.nodes = ["00000000", ""]
        elif request.path == "/w" and answer.nodes is not None:
            answer.nodes.append("wc-1-17")
        return answer

    assert read("/w", reply)[0] == {"/w/wc-1-1700000000/b": b"2"}


def test_it_ends_though_every_path_lists_another():
    def reply(request):
        if request.type == MessageType.GET_PULSE:
            return Message(11, 0, pulse=Pulse(request.path, None))
        return Message(9, 0, nodes=["again", "again"])

    found, rounds = read("/a", reply)
    assert found == {}
    assert len(rounds) == 2 * 16 + 1


def test_nobody_looks_below_a_name_that_would_end_the_server():
    store = {"/w/wc-1/a": b"1", "/w/wc(1/a": b"2", "/w/x": b"3"}
    found, rounds = read("/w", java(store))
    assert found == {"/w/wc-1/a": b"1", "/w/x": b"3"}
    assert all("(" not in path for requests in rounds for kind, path in requests if kind == 8)
