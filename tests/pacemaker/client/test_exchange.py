"""The client's state machine in a world without sockets, threads and time."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.client.calls import Call, Connect, Drop, Send, Settle
from stormkeeper.pacemaker.client.exchange import Exchange, Link
from stormkeeper.pacemaker.client.supersession import at_or_below
from stormkeeper.pacemaker.wire import (
    RESERVED_PATH,
    Changes,
    ChangesRequest,
    FrameSplitter,
    Message,
    MessageType,
    Pulse,
    decode,
    encode,
)

TOLD_CHANGES = b"\x0f\x00\x04\x0b\x00\x00\x00\x01\x00\x00\x00\x07changes\x00"


class FixedBackoff:
    def __init__(self, delay=0.25):
        self.failures = 0
        self.delay = delay

    def failed(self):
        self.failures += 1
        return self.delay

    def succeeded(self):
        self.failures = 0


class World:
    """An exchange, and a peer of it that does what the test says."""

    def __init__(self, *, try_timeout=1.0, **options):
        self.backoff = FixedBackoff()
        self.exchange = Exchange("peer:1", self.backoff, try_timeout=try_timeout, **options)
        self.now = 100.0
        self.connects = 0
        self.drops = []
        #: Requests that the peer got on this connection and did not answer yet.
        self.requests = []
        #: Message ids of each connection.
        self.ids = []
        self.outcomes = {}
        self.store = {}
        self.carried_out()

    def carried_out(self):
        effects = self.exchange.effects
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Connect):
                self.connects += 1
            elif isinstance(effect, Send):
                assert self.exchange.state is Link.UP
                for payload in FrameSplitter().feed(effect.data):
                    request = decode(payload)
                    self.requests.append(request)
                    self.ids[-1].append(request.message_id)
            elif isinstance(effect, Drop):
                self.drops.append(effect.reason)
                self.requests = []
            else:
                assert isinstance(effect, Settle)
                assert effect.call not in self.outcomes, "settled twice"
                self.outcomes[effect.call] = effect.outcome

    def call(self, message, *, retries=10, deadline=15.0):
        path = message.pulse.id if message.pulse else message.path
        if message.changes_request:
            path = message.changes_request.path
        call = Call(
            int(message.type), path, encode(message), self.now + deadline, retries, self.now
        )
        self.exchange.submit(call, self.now)
        self.carried_out()
        return call

    def ask(self, path, **options):
        return self.call(Message(MessageType.GET_PULSE, 0, path=path), **options)

    def send(self, path, details=b"x", **options):
        return self.call(Message(MessageType.SEND_PULSE, 0, pulse=Pulse(path, details)), **options)

    def delete(self, path, **options):
        return self.call(Message(MessageType.DELETE_PATH, 0, path=path), **options)

    def changes(self, path="/", **options):
        request = ChangesRequest(path, 0, 0, None)
        return self.call(Message(MessageType.CHANGES, 0, changes_request=request), **options)

    def connect(self):
        self.ids.append([])
        self.requests = []
        self.exchange.connected(self.now)
        self.carried_out()

    def fail(self, reason="cut"):
        self.exchange.failed(reason, self.now)
        self.carried_out()

    def receive(self, *answers):
        self.exchange.received(answers, self.now)
        self.carried_out()

    def wait(self, seconds):
        """Let time pass, waking the exchange exactly when it asked for it."""
        end = self.now + seconds
        while self.exchange.alarm <= end:
            self.now = max(self.now, self.exchange.alarm)
            self.exchange.passed(self.now)
            self.carried_out()
        self.now = end

    def serve(self, count=1000):
        """Let the peer answer that many requests rightly."""
        batch, self.requests = self.requests[:count], self.requests[count:]
        self.receive(*[self.applied(request) for request in batch])

    def applied(self, request):
        kind, message_id = request.type, request.message_id
        if kind == MessageType.SEND_PULSE:
            self.store[request.pulse.id] = request.pulse.details
            return Message(kind + 1, message_id)
        if kind == MessageType.GET_PULSE:
            pulse = Pulse(request.path, self.store.get(request.path))
            return Message(kind + 1, message_id, pulse=pulse)
        if kind == MessageType.CHANGES:
            return Message(kind + 1, message_id, changes=Changes("i", 0, [], False, False, 0))
        for path in [path for path in self.store if at_or_below(path, request.path)]:
            if kind == MessageType.DELETE_PATH or path == request.path:
                del self.store[path]
        return Message(kind + 1, message_id)

    def outcome(self, call):
        return self.outcomes.get(call)

    def error(self, call, kind):
        error = self.outcomes[call]
        assert type(error) is kind, error
        return str(error)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def connected(world):
    world.ask("/first")
    world.connect()
    world.serve()
    return world


# --- the normal course ----------------------------------------------------------------------------


def test_nothing_connects_before_the_first_call(world):
    world.wait(100.0)
    assert world.connects == 0


def test_many_calls_wait_for_one_connection(world):
    calls = [world.ask(f"/{number}") for number in range(64)]
    assert world.connects == 1
    world.store = {f"/{number}": b"%d" % number for number in range(64)}
    world.connect()
    world.serve()
    assert world.connects == 1
    assert [world.outcome(call).pulse.details for call in calls] == [b"%d" % n for n in range(64)]


def test_at_most_a_hundred_are_under_way(connected):
    calls = [connected.ask(f"/{number}") for number in range(250)]
    assert len(connected.requests) == 100
    connected.serve(30)
    assert len(connected.requests) == 100
    while connected.requests:
        connected.serve(7)
    assert [connected.outcome(call).pulse.id for call in calls] == [f"/{n}" for n in range(250)]


def test_an_idle_exchange_asks_for_no_wake_up(connected):
    connected.wait(20.0)
    assert connected.exchange.alarm == float("inf")


def test_a_connection_whose_ids_are_used_up_is_replaced_without_loss():
    world = World(last_message_id=4)
    calls = [world.ask(f"/{number}") for number in range(12)]
    for _ in range(3):
        world.connect()
        world.serve()
    assert [world.outcome(call).pulse.id for call in calls] == [f"/{n}" for n in range(12)]
    assert world.ids == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1]]
    assert not world.exchange.suspect


def test_a_connection_that_is_not_needed_is_let_go_and_the_next_call_makes_another(connected):
    connected.ask("/a")
    connected.exchange.rest()
    connected.carried_out()
    assert not connected.drops, "an answer is due on it"
    connected.serve()
    connected.exchange.rest()
    connected.carried_out()
    assert len(connected.drops) == 1
    call = connected.ask("/b")
    connected.connect()
    connected.serve()
    assert isinstance(connected.outcome(call), Message)
    assert not connected.exchange.suspect


# --- failures -------------------------------------------------------------------------------------


def test_a_stuck_connection_is_dropped_and_its_calls_are_sent_again_in_order(connected):
    calls = [connected.ask(f"/{number}") for number in range(5)]
    connected.wait(0.99)
    assert not connected.drops
    connected.wait(0.02)
    assert connected.drops == ["no answer within 1 s"]
    connected.wait(0.25)
    assert connected.connects == 2
    connected.connect()
    assert [request.path for request in connected.requests] == [f"/{n}" for n in range(5)]
    connected.serve()
    assert all(isinstance(connected.outcome(call), Message) for call in calls)


def test_a_connection_that_was_idle_for_long_has_no_more_patience(connected):
    connected.wait(60.0)
    connected.ask("/a")
    connected.wait(1.0)
    assert connected.drops == ["no answer within 1 s"]


def test_pieces_of_a_large_answer_keep_the_connection(connected):
    call = connected.ask("/large")
    for _ in range(8):
        connected.wait(0.9)
        connected.receive()
    assert not connected.drops
    connected.serve()
    assert isinstance(connected.outcome(call), Message)


def test_an_answer_that_never_ends_keeps_nobody_beyond_the_deadline(connected):
    call = connected.ask("/endless", deadline=5.0)
    for _ in range(11):
        connected.wait(0.5)
        connected.receive()
    connected.error(call, PacemakerUnavailableError)
    connected.wait(0.1)
    assert connected.drops, "the connection is of no use to the next call either"


def test_room_made_by_the_peer_keeps_the_connection(connected):
    connected.send("/large", b"x" * 1000)
    for _ in range(5):
        connected.wait(0.9)
        connected.exchange.taken(connected.now)
    assert not connected.drops


def test_tries_are_bounded(world):
    call = world.ask("/a", retries=3, deadline=1000.0)
    for _ in range(4):
        assert world.outcome(call) is None
        world.connect()
        world.wait(1.0)  # no answer
        world.wait(0.25)  # back-off
    text = world.error(call, PacemakerUnavailableError)
    assert "peer:1 did not answer GET_PULSE /a (4 tries in 4.8 s; no answer within 1 s)" in text
    world.wait(100.0)
    assert world.connects == 4, "nobody waits, nobody connects"


def test_refused_connections_are_tries_too(world):
    call = world.ask("/a", retries=2)
    for _ in range(3):
        world.fail("connection refused")
        world.wait(0.25)
    assert "3 tries in 0.5 s; connection refused" in world.error(call, PacemakerUnavailableError)


def test_making_a_connection_has_the_patience_of_a_try(world):
    call = world.ask("/a", retries=0)
    world.wait(0.99)
    assert world.outcome(call) is None
    world.wait(0.01)
    assert "no connection within 1 s" in world.error(call, PacemakerUnavailableError)
    assert world.drops


def test_the_deadline_bounds_what_tries_do_not(world):
    call = world.ask("/a", retries=10**6, deadline=7.0)
    for _ in range(100):
        world.fail("connection refused")
        world.wait(0.1)
    assert "connection refused" in world.error(call, PacemakerUnavailableError)
    assert "in 7.0 s" in world.error(call, PacemakerUnavailableError)


def test_calls_made_during_the_back_off_wait_for_its_end(world):
    world.ask("/a", retries=0)
    world.fail("connection refused")
    assert world.exchange.suspect
    assert world.exchange.retry_in(world.now) == 0.25
    late = world.ask("/b")
    assert world.connects == 1
    world.wait(0.24)
    assert world.connects == 1
    world.wait(0.02)
    assert world.connects == 2
    world.connect()
    world.serve()
    assert isinstance(world.outcome(late), Message)
    assert not world.exchange.suspect


def test_a_connection_alone_is_no_success(world):
    world.ask("/a", retries=5)
    for failures in range(1, 4):
        world.connect()
        world.fail("cut")
        assert world.backoff.failures == failures
        world.wait(0.25)


def test_an_idle_connection_may_end_without_any_suspicion(connected):
    connected.fail("the server closed the connection")
    assert not connected.exchange.suspect
    call = connected.ask("/a")
    assert connected.connects == 2, "at once"
    connected.connect()
    connected.serve()
    assert isinstance(connected.outcome(call), Message)


def test_a_call_that_gave_up_keeps_its_slot_until_the_answer_came(connected):
    impatient = connected.ask("/a", deadline=0.2)
    patient = connected.ask("/b")
    connected.wait(0.3)
    connected.error(impatient, PacemakerUnavailableError)
    assert not connected.drops
    connected.serve()
    assert connected.outcome(patient).pulse.id == "/b"


# --- a peer that breaks the protocol --------------------------------------------------------------


@pytest.mark.parametrize("message_id", [None, -1, 0, 2, 7])
def test_an_answer_to_nobody_or_out_of_order_ends_the_connection(connected, message_id):
    calls = [connected.ask("/a"), connected.ask("/b"), connected.ask("/c")]
    wrong = Message(MessageType.GET_PULSE_RESPONSE, message_id, pulse=Pulse("/b", b"wrong"))
    connected.receive(wrong)
    assert len(connected.drops) == 1
    assert all(connected.outcome(call) is None for call in calls)
    connected.wait(0.25)
    connected.connect()
    connected.serve()
    assert [connected.outcome(call).pulse.id for call in calls] == ["/a", "/b", "/c"]


def test_an_answer_that_nobody_asked_for_ends_an_idle_connection(connected):
    connected.receive(Message(MessageType.GET_PULSE_RESPONSE, 1, pulse=Pulse("/x", b"")))
    assert len(connected.drops) == 1


def test_a_wrong_answer_fails_its_call_and_sends_the_others_again(connected):
    first, second = connected.ask("/a"), connected.ask("/b")
    connected.receive(Message(MessageType.EXISTS_RESPONSE, 1, boolval=True))
    assert "EXISTS_RESPONSE came as the answer to GET_PULSE" in connected.error(
        first, RemoteProtocolError
    )
    assert connected.outcome(second) is None
    connected.wait(0.25)
    connected.connect()
    connected.serve()
    assert connected.outcome(second).pulse.id == "/b"


def test_a_peer_that_always_breaks_the_protocol_is_named_as_such(world):
    call = world.ask("/a", retries=1)
    for _ in range(2):
        world.connect()
        world.exchange.failed("frame of negative length", world.now, peer_at_fault=True)
        world.carried_out()
        world.wait(0.25)
    assert "frame of negative length" in world.error(call, RemoteProtocolError)


def test_a_refusal_is_an_error_and_not_an_answer(connected):
    call = connected.ask("/a")
    connected.receive(Message(MessageType.NOT_AUTHORIZED, 1))
    assert "peer:1 refused GET_PULSE /a" in connected.error(call, NotAuthorizedError)
    assert not connected.drops


# --- writes ---------------------------------------------------------------------------------------


def test_a_superseded_write_is_not_sent_again_and_ends_with_the_newer_one(connected):
    older, newer = connected.send("/a/b", b"1"), connected.send("/a/b", b"2")
    connected.fail()
    connected.wait(0.25)
    connected.connect()
    assert [request.pulse.details for request in connected.requests] == [b"2"]
    assert connected.outcome(older) is None, "nothing is certain yet"
    connected.serve()
    assert connected.outcome(older).type == MessageType.SEND_PULSE_RESPONSE
    assert connected.outcome(newer).type == MessageType.SEND_PULSE_RESPONSE


def test_a_newer_write_that_comes_during_the_back_off_supersedes_too(connected):
    older = connected.send("/a/b", b"1")
    connected.fail()
    connected.delete("/a")
    connected.wait(0.25)
    connected.connect()
    assert [request.type for request in connected.requests] == [MessageType.DELETE_PATH]
    connected.serve()
    assert connected.outcome(older).type == MessageType.SEND_PULSE_RESPONSE


def test_a_superseded_write_fails_with_the_newer_one(connected):
    older, newer = connected.send("/a", b"1", retries=9), connected.send("/a", b"2", retries=1)
    for _ in range(2):
        connected.fail()
        connected.wait(0.25)
        connected.connect()
    assert isinstance(connected.outcome(newer), PacemakerUnavailableError)
    assert isinstance(connected.outcome(older), PacemakerUnavailableError)
    assert connected.outcome(older) is not connected.outcome(newer)


def test_a_delete_is_sent_again_before_the_pulse_that_came_after_it(connected):
    connected.store = {"/a/old": b"old", "/a/new": b"old"}
    connected.delete("/a")
    connected.send("/a/new", b"new")
    connected.fail()
    connected.wait(0.25)
    connected.connect()
    connected.serve()
    assert connected.store == {"/a/new": b"new"}


def test_a_write_that_never_left_is_not_left_out(world):
    world.send("/a", b"1")
    world.send("/a", b"2")
    world.connect()
    assert [request.pulse.details for request in world.requests] == [b"1", b"2"]


# --- extensions -----------------------------------------------------------------------------------


def told(world, details):
    (question,) = world.requests
    assert question.type == MessageType.GET_PULSE
    assert question.path == RESERVED_PATH
    world.requests = []
    answer = Message(11, question.message_id, pulse=Pulse(RESERVED_PATH, details))
    world.receive(answer)


def test_an_extension_is_asked_for_before_it_is_used(connected):
    calls = [connected.changes(), connected.changes()]
    told(connected, TOLD_CHANGES)
    assert [request.type for request in connected.requests] == [MessageType.CHANGES] * 2
    connected.serve()
    assert all(connected.outcome(call).changes for call in calls)
    again = connected.changes()
    connected.serve()
    assert connected.outcome(again).changes, "asked once for each connection"


def test_a_java_pacemaker_never_sees_an_extension(connected):
    calls = [connected.changes(), connected.changes()]
    told(connected, None)
    calls.append(connected.changes())
    assert connected.requests == []
    for call in calls:
        assert "'changes'" in connected.error(call, UnsupportedExtensionError)
    assert not connected.drops


def test_a_new_connection_is_asked_again(connected):
    call = connected.changes()
    told(connected, TOLD_CHANGES)
    connected.fail()
    connected.wait(0.25)
    connected.connect()
    told(connected, None)  # the server was replaced by one of Storm's
    connected.error(call, UnsupportedExtensionError)


def test_a_connection_that_fails_while_it_is_asked_costs_a_try(connected):
    call = connected.changes(retries=1)
    connected.wait(1.0)
    assert connected.drops == ["no answer within 1 s"]
    connected.wait(0.25)
    connected.connect()
    connected.wait(1.0)
    assert "2 tries" in connected.error(call, PacemakerUnavailableError)


def test_others_pass_a_call_that_waits_for_the_servers_word(connected):
    held = connected.changes()
    other = connected.ask("/a")
    assert [request.path for request in connected.requests] == [RESERVED_PATH, "/a"]
    question, ask = connected.requests
    connected.receive(Message(11, question.message_id, pulse=Pulse(RESERVED_PATH, TOLD_CHANGES)))
    connected.receive(Message(11, ask.message_id, pulse=Pulse("/a", b"")))
    assert connected.outcome(other)
    assert connected.outcome(held) is None


def test_a_refused_question_refuses_whoever_waited_for_it(connected):
    call = connected.changes("/a")
    (question,) = connected.requests
    connected.receive(Message(MessageType.NOT_AUTHORIZED, question.message_id))
    assert "refused CHANGES /a" in connected.error(call, NotAuthorizedError)


def test_a_held_call_keeps_its_deadline(connected):
    call = connected.changes(deadline=0.5)
    connected.wait(0.5)
    connected.error(call, PacemakerUnavailableError)
    told(connected, TOLD_CHANGES)
    assert connected.requests == []


def test_an_unreadable_word_of_the_server_is_its_fault(connected):
    call = connected.changes(retries=0)
    told(connected, b"\x0f garbage")
    assert "not readable" in connected.error(call, RemoteProtocolError)
    assert len(connected.drops) == 1


def test_a_user_who_asks_for_the_reserved_path_spares_the_question(connected):
    connected.ask(RESERVED_PATH)
    told(connected, TOLD_CHANGES)
    connected.changes()
    assert [request.type for request in connected.requests] == [MessageType.CHANGES]


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["down", "connecting", "up", "backing off"])
def test_closing_fails_every_open_call(state):
    world = World()
    call = world.ask("/a")
    if state == "up":
        world.connect()
    elif state == "backing off":
        world.fail("refused")
    held = world.changes()
    world.exchange.close()
    world.exchange.close()
    world.carried_out()
    world.error(call, PacemakerClosedError)
    world.error(held, PacemakerClosedError)
    assert world.exchange.alarm == float("inf")
    with pytest.raises(PacemakerClosedError, match="closed"):
        world.ask("/b")
    world.connect()
    world.fail()
    world.receive(Message(11, 0, pulse=Pulse("/a", b"")))
    assert world.exchange.state is Link.CLOSED


# --- anything in any order ------------------------------------------------------------------------

paths = st.sampled_from(["/a", "/a/b", "/a/c", "/b"])


class AnyCourse(RuleBasedStateMachine):
    """Whatever happens: every call ends once and in time, with the answer to its own question, and
    the peer ends up holding what the writes in their order leave."""

    #: The second half of the machine's life in which everything works again ends well in any case.
    RETRIES, DEADLINE = 10**6, 10.0**6

    def __init__(self):
        super().__init__()
        self.world = World(max_in_flight=3)
        self.calls = []
        self.writes = []

    @rule(path=paths)
    def read(self, path):
        self.calls.append(self.world.ask(path, retries=self.RETRIES, deadline=self.DEADLINE))

    @rule(path=paths)
    def write(self, path):
        value = b"%d" % len(self.calls)
        self.writes.append((path, value))
        self.calls.append(
            self.world.send(path, value, retries=self.RETRIES, deadline=self.DEADLINE)
        )

    @rule(path=paths)
    def delete(self, path):
        self.writes.append((path, None))
        self.calls.append(self.world.delete(path, retries=self.RETRIES, deadline=self.DEADLINE))

    @rule()
    def scan(self):
        self.calls.append(self.world.changes(retries=self.RETRIES, deadline=self.DEADLINE))

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.99, 3.0]))
    def time_passes(self, seconds):
        self.world.wait(seconds)

    @precondition(lambda self: self.world.exchange.state is Link.CONNECTING)
    @rule()
    def connection_is_made(self):
        self.world.connect()

    @precondition(lambda self: self.world.exchange.state is Link.CONNECTING)
    @rule()
    def connection_is_refused(self):
        self.world.fail("refused")

    @precondition(lambda self: self.world.requests)
    @rule(count=st.integers(1, 4))
    def peer_answers(self, count):
        self.world.serve(count)

    @precondition(lambda self: self.world.exchange.state is Link.UP)
    @rule(done=st.integers(0, 5))
    def connection_is_cut(self, done):
        for request in self.world.requests[:done]:
            self.world.applied(request)  # done, but the answers are lost
        self.world.fail("cut")

    @precondition(lambda self: self.world.requests)
    @rule(message_id=st.integers(-1, 10))
    def peer_answers_wrongly(self, message_id):
        if message_id != self.world.requests[0].message_id:
            pulse = Pulse("/nobody's", b"nobody's")
            self.world.receive(Message(MessageType.GET_PULSE_RESPONSE, message_id, pulse=pulse))

    @invariant()
    def ids_count_up(self):
        for ids in self.world.ids:
            assert ids == list(range(len(ids)))

    @invariant()
    def answers_are_to_the_question(self):
        for call, outcome in self.world.outcomes.items():
            if isinstance(outcome, StormkeeperError):
                self.check_error(call, outcome)
                continue
            assert outcome.type == call.kind + 1
            if call.kind == MessageType.GET_PULSE:
                assert outcome.pulse.id == call.path

    def check_error(self, call, error):
        assert call.kind == MessageType.CHANGES, f"{call} failed: {error}"

    def teardown(self):
        for _ in range(1000):
            if len(self.world.outcomes) == len(self.calls):
                break
            if self.world.exchange.state is Link.CONNECTING:
                self.world.connect()
            self.world.serve()
            self.world.wait(0.01)
        assert set(self.world.outcomes) == set(self.calls)
        expected = {}
        for path, value in self.writes:
            if value is None:
                for held in [held for held in expected if at_or_below(held, path)]:
                    del expected[held]
            else:
                expected[path] = value
        assert self.world.store == expected


class Impatient(AnyCourse):
    """The same with few tries and short deadlines: calls fail, but in time."""

    RETRIES, DEADLINE = 2, 2.5

    def check_error(self, call, error):
        if call.kind != MessageType.CHANGES:
            assert isinstance(error, PacemakerUnavailableError | RemoteProtocolError)

    @invariant()
    def nobody_waits_beyond_the_deadline(self):
        for call in self.calls:
            assert call in self.world.outcomes or self.world.now <= call.deadline
            assert call.tries <= 3

    def teardown(self):
        self.world.wait(self.DEADLINE)
        assert set(self.world.outcomes) == set(self.calls)


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestImpatient = Impatient.TestCase
TestImpatient.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
