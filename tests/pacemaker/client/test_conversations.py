"""Conversations against a real pulse store and a Java Pacemaker, without any connection."""

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import RemoteProtocolError, UnsupportedExtensionError
from stormkeeper.pacemaker.client.conversations import copies_below, copy_of, single, walk
from stormkeeper.pacemaker.server.store import PulseStore
from stormkeeper.pacemaker.wire import Changes, Message, MessageType
from support.scripted_pacemaker import answered

SERVER = Address("a", 6699)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def hold(conversation, reply):
    """Hold a conversation with `reply(message)`; return what it found and the rounds it took."""
    rounds = 0
    try:
        messages = next(conversation)
        while True:
            rounds += 1
            assert 0 < len(messages) <= 100, "more than a connection takes at once"
            try:
                answers = [reply(message) for message in messages]
            except UnsupportedExtensionError as error:
                messages = conversation.throw(error)
            else:
                messages = conversation.send(answers)
    except StopIteration as end:
        return end.value, rounds


class Server:
    """Our server's answers to CHANGES, in pages as small as the test wants."""

    def __init__(self, clock, limit=0):
        self.clock = clock
        self.limit = limit
        self.store = PulseStore(clock, "first")
        self.before_answer = lambda: None

    def __call__(self, message):
        self.before_answer()
        assert message.type == MessageType.CHANGES
        path, after, limit, instance = message.changes_request
        limits = [some for some in (limit, self.limit) if some]
        changes = self.store.changes(path, after, min(limits, default=0), instance=instance)
        return Message(MessageType.CHANGES_RESPONSE, 0, changes=changes)


class Java:
    def __init__(self, store):
        self.store = store

    def __call__(self, message):
        if message.type >= 100:
            raise UnsupportedExtensionError("no")
        return answered(self.store, message)


def test_a_single_question():
    answer, rounds = hold(single(Message(2, path="/a")), Java({"/a": b""}))
    assert answer.boolval is True
    assert rounds == 1


@pytest.mark.parametrize("limit", [0, 1, 3, 7])
def test_all_pages_of_changes_are_read_with_ages_and_tombstones(clock, limit):
    server = Server(clock, limit)
    for number in range(10):
        server.store.put(f"/a/{number}", b"%d" % number)
        clock.now += 1.0
    server.store.put("/b", b"")
    server.store.delete("/a/3")
    found, _ = hold(copies_below("/a", SERVER, clock), server)
    assert sorted(found) == [f"/a/{number}" for number in range(10)]
    assert found["/a/3"].details is None
    assert found["/a/0"].details == b"0"
    assert found["/a/0"].received == pytest.approx(1000.0)
    assert found["/a/9"].received == pytest.approx(1009.0)


def test_a_path_that_changes_while_it_is_read_is_not_missed(clock):
    server = Server(clock, limit=2)
    for number in range(8):
        server.store.put(f"/{number}", b"old")
    beats = iter(range(7, 0, -1))

    def beat():
        number = next(beats, None)
        if number is not None:
            server.store.put(f"/{number}", b"new")

    server.before_answer = beat
    found, _ = hold(copies_below("/", SERVER, clock), server)
    assert len(found) == 8
    assert found["/7"].details == b"new"


def test_a_server_that_starts_again_in_the_middle_is_read_from_the_beginning(clock):
    server = Server(clock, limit=2)
    for number in range(6):
        server.store.put(f"/old/{number}", b"old")
    rounds = []

    def restart():
        rounds.append(1)
        if len(rounds) == 2:
            server.store = PulseStore(clock, "second")
            for number in range(5):
                server.store.put(f"/new/{number}", b"new")

    server.before_answer = restart
    found, _ = hold(copies_below("/", SERVER, clock), server)
    assert sorted(found) == [f"/new/{number}" for number in range(5)]


def test_a_server_whose_pages_do_not_go_on_is_at_fault(clock):
    page = Changes("i", 9, [], True, False, 0)
    for conversation in (copies_below("/", SERVER, clock), copy_of("/a", SERVER, clock)):
        with pytest.raises(RemoteProtocolError, match="more changes after revision 0"):
            hold(conversation, lambda _: Message(101, 0, changes=page))


JAVA = {"/a/b/c": b"1", "/a/b/d": b"2", "/a/e": b"3", "/ab": b"4", "/a": b"5"}


def test_a_java_pacemaker_is_walked(clock):
    found, _ = hold(copies_below("/a", SERVER, clock), Java(JAVA))
    assert {path: copy.details for path, copy in found.items()} == {
        path: details for path, details in JAVA.items() if path != "/ab"
    }
    assert all(copy.received is None for copy in found.values())


def test_a_walk_from_the_root_finds_everything():
    found, rounds = hold(walk("/"), Java(JAVA))
    assert found == JAVA
    assert rounds == 4, "a level at once"


def test_a_wide_level_is_walked_in_steps():
    store = {f"/w/{number}": b"%d" % number for number in range(120)}
    asked = []

    def reply(message):
        asked.append(message.path)
        return answered(store, message)

    found, _ = hold(walk("/w"), reply)
    assert found == store
    assert len(asked) == 242


def test_a_walk_ends_though_every_path_lists_another():
    def reply(message):
        return Message(message.type + 1, 0, pulse=None, nodes=["again", ""])

    found, rounds = hold(walk("/a"), reply)
    assert found == {}
    assert rounds < 20


def test_the_copy_of_a_path_is_found_among_those_below_it(clock):
    server = Server(clock)
    for number in range(40):
        server.store.put(f"/a/{number}", b"below")
    clock.now += 5.0
    server.store.put("/a", b"it")
    clock.now += 2.5
    copy, rounds = hold(copy_of("/a", SERVER, clock), server)
    assert copy.details == b"it"
    assert copy.received == pytest.approx(1005.0)
    assert rounds == 3
    server.store.delete("/a")
    copy, _ = hold(copy_of("/a", SERVER, clock), server)
    assert copy.details is None
    assert hold(copy_of("/nowhere", SERVER, clock), server)[0] is None


def test_the_copy_of_a_java_pacemaker_has_no_age(clock):
    copy, rounds = hold(copy_of("/a/e", SERVER, clock), Java(JAVA))
    assert (copy.details, copy.received) == (b"3", None)
    assert rounds == 2
    assert hold(copy_of("/nowhere", SERVER, clock), Java(JAVA))[0] is None
