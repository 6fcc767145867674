"""Authentication in the course of a client's life: states and deadlines, then real sockets."""

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stormkeeper.errors import (
    AuthenticationError,
    ConfigError,
    NotAuthorizedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.authentication import STEP_TIMEOUT
from stormkeeper.pacemaker.client.calls import (
    ClientCall,
    Compute,
    Connect,
    Drop,
    Reconnect,
    Send,
    Settle,
)
from stormkeeper.pacemaker.client.pacemaker_client import make_backoff
from stormkeeper.pacemaker.client.protocol import ClientProtocol, LinkState
from stormkeeper.pacemaker.wire import Message, MessageType, Pulse, encode
from support.leaks import nothing_left_behind
from support.mechanisms import REMEDY, Digest, Fake, identity
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker
from support.waiting import DEADLINE_SECS, until

REFUSED = Message(MessageType.NOT_AUTHORIZED, 0)


class Half:
    """A random source that always draws the upper end, so that delays are known."""

    def uniform(self, _, high):
        return high


class World:
    """A protocol that authenticates; steps are computed when the test says so."""

    def __init__(self, who=None):
        self.protocol = ClientProtocol(
            "p:1", make_backoff(Half()), try_timeout=1.0, identity=who or identity()
        )
        self.now = 0.0
        self.connects = 0
        #: Second connections, in which the authentication begins.
        self.reconnects = 0
        self.sent = []
        #: How much was sent before the connection that is now.
        self.begun = 0
        self.steps = []
        self.drops = []
        self.outcomes = {}

    def carried_out(self):
        while self.protocol.effects:
            effect = self.protocol.effects.popleft()
            if isinstance(effect, Connect):
                self.connects += 1
            elif isinstance(effect, Reconnect):
                self.reconnects += 1
            elif isinstance(effect, Send):
                self.sent.append(effect.data)
            elif isinstance(effect, Compute):
                self.steps.append(effect)
            elif isinstance(effect, Drop):
                self.drops.append(effect.reason)
            elif isinstance(effect, Settle):
                assert effect.call not in self.outcomes, "settled twice"
                self.outcomes[effect.call] = effect.outcome

    def ask(self, path, *, deadline=15.0):
        frame = encode(Message(MessageType.GET_PULSE, 0, path=path))
        call = ClientCall(10, path, frame, self.now + deadline, self.now)
        self.protocol.submit(call, self.now)
        self.carried_out()
        return call

    def connect(self):
        self.begun = len(self.sent)
        self.protocol.connected(self.now)
        self.carried_out()

    def hear(self, *messages):
        self.protocol.received(messages, self.now)
        self.carried_out()

    def be_asked(self):
        """Hear that the server wants authentication, and make the connection for it."""
        self.hear(REFUSED)
        self.connect()

    def compute(self, outcome=None):
        """Let the steps that are wanted end: as they do, or as the test says."""
        steps, self.steps = self.steps, []
        for step in steps:
            self.protocol.computed(step, outcome or step.work(), self.now)
            self.carried_out()

    def wait(self, seconds):
        end = self.now + seconds
        while self.protocol.alarm <= end:
            self.now = max(self.now, self.protocol.alarm)
            self.protocol.passed(self.now)
            self.carried_out()
        self.now = end

    def authenticate(self):
        self.be_asked()
        self.compute()
        self.hear(token(b"challenge"))
        self.compute()
        self.hear(token(b"proof"), COMPLETE)
        self.compute()


def token(data):
    blob = b"\xfe\x0c" + len(data).to_bytes(4, "big") + data
    return Message(MessageType.SASL_MESSAGE_TOKEN, blob=blob)


COMPLETE = Message(MessageType.CONTROL_MESSAGE, blob=(-203).to_bytes(2, "big", signed=True))


@pytest.fixture
def world():
    return World()


def test_calls_are_sent_after_authentication(world):
    call = world.ask("/a")
    world.connect()
    assert len(world.sent) == 1
    world.be_asked()
    world.compute()
    world.hear(token(b"challenge"))
    world.compute()
    world.hear(token(b"proof"))
    assert len(world.sent) == 3
    world.hear(COMPLETE)
    assert world.protocol.state is LinkState.AUTHENTICATING, "the proof is not checked yet"
    world.compute()
    assert world.protocol.state is LinkState.UP
    assert len(world.sent) == 4
    assert world.sent[-1] == call.frame
    world.hear(COMPLETE, Message(MessageType.GET_PULSE_RESPONSE, 0, pulse=Pulse("/a", b"1")))
    assert world.outcomes[call].pulse.details == b"1"


def test_wrong_password_fails_waiting_calls_only(world):
    first, second = world.ask("/a"), world.ask("/b")
    world.connect()
    world.be_asked()
    world.compute()
    world.hear(token(b"challenge"))
    world.compute()
    world.protocol.failed("the server closed the connection", world.now)
    world.carried_out()
    for call in (first, second):
        assert isinstance(world.outcomes[call], NotAuthorizedError)
        assert REMEDY in str(world.outcomes[call])
    world.wait(10.0)
    assert world.connects == 1
    third = world.ask("/c")
    assert world.connects == 2
    world.connect()
    world.authenticate()
    world.hear(Message(MessageType.GET_PULSE_RESPONSE, 0, pulse=Pulse("/c", b"1")))
    assert isinstance(world.outcomes[third], Message)


def test_failed_authentications_are_further_and_further_apart(world):
    delays = []
    for _ in range(4):
        world.ask("/a")
        world.connect()
        world.be_asked()
        world.compute(AuthenticationError("no such user"))
        delays.append(world.protocol.retry_in(world.now))
        world.wait(2.0)
    assert delays == sorted(delays)
    assert delays[-1] > 4 * delays[0]


def test_end_before_any_proof_is_no_refusal(world):
    call = world.ask("/a")
    world.connect()
    world.be_asked()
    world.protocol.failed("the server closed the connection", world.now)
    world.carried_out()
    world.compute()  # of the connection that is gone
    assert isinstance(world.outcomes[call], PacemakerUnavailableError)
    again = world.ask("/a")
    world.wait(1.0)
    assert world.connects == 2
    world.connect()
    world.authenticate()
    world.hear(Message(MessageType.GET_PULSE_RESPONSE, 0, pulse=Pulse("/a", b"1")))
    assert isinstance(world.outcomes[again], Message)


def test_a_connection_that_we_let_go_of_in_it_is_no_refusal(world):
    call = world.ask("/a")
    world.connect()
    world.be_asked()
    world.compute()
    world.hear(token(b"challenge"))
    world.protocol.abandoned("no thread", world.now)
    world.carried_out()
    assert "no thread" in str(world.outcomes[call])
    assert type(world.outcomes[call]) is PacemakerUnavailableError
    world.steps.clear()
    again = world.ask("/a")
    world.wait(1.0)
    world.connect()
    world.authenticate()
    assert world.sent[-1] == again.frame


def test_a_server_that_hangs_in_it_has_the_patience_of_a_try(world):
    call = world.ask("/a")
    world.connect()
    world.wait(0.9)
    world.hear(REFUSED)
    world.wait(0.9)
    world.connect()
    world.compute()
    world.wait(0.9)
    world.hear(token(b"challenge"))
    world.compute()
    world.wait(0.99)
    assert call not in world.outcomes
    world.wait(0.02)
    assert isinstance(world.outcomes[call], PacemakerUnavailableError)
    assert world.drops == ["no answer within 1 s in the authentication"]


def test_a_step_that_hangs_is_given_up(world):
    call = world.ask("/a")
    world.connect()
    world.be_asked()
    world.wait(STEP_TIMEOUT - 0.01)
    assert call not in world.outcomes
    world.wait(0.02)
    assert "our own side" in str(world.outcomes[call])
    world.compute()
    assert world.protocol.state is LinkState.DOWN, "what it says afterwards counts for nothing"


def test_call_ends_at_deadline_during_authentication(world):
    call = world.ask("/a", deadline=0.5)
    world.connect()
    world.wait(0.5)
    assert isinstance(world.outcomes[call], PacemakerUnavailableError)


def test_failed_second_connection_asks_again(world):
    world.ask("/a")
    world.connect()
    world.hear(REFUSED)
    assert (world.connects, world.reconnects) == (1, 1)
    assert world.protocol.state is LinkState.CONNECTING
    world.wait(1.0)
    assert world.drops == ["no connection within 1 s"]
    call = world.ask("/a")
    world.wait(1.0)
    assert (world.connects, world.reconnects) == (2, 1)
    world.connect()
    assert world.sent[-1] == world.sent[0], "another server may be there by now"
    world.authenticate()
    assert world.sent[-1] == call.frame


def test_nothing_that_follows_the_answer_to_the_question_counts(world):
    world.ask("/a")
    world.connect()
    world.hear(REFUSED, COMPLETE, token(b"challenge"))
    assert world.reconnects == 1
    assert world.protocol.state is LinkState.CONNECTING
    assert not world.steps


def test_nonsense_in_it_is_the_servers_fault(world):
    call = world.ask("/a")
    world.connect()
    world.hear(Message(MessageType.SEND_PULSE_RESPONSE, 0))
    assert isinstance(world.outcomes[call], RemoteProtocolError)


# --- anything in any order ------------------------------------------------------------------------


class AnyCourse(RuleBasedStateMachine):
    """Whatever happens in an authentication: every call ends once, and in time."""

    def __init__(self):
        super().__init__()
        self.world = World()
        self.calls = []

    @rule(deadline=st.sampled_from([0.5, 3.0, 12.0]))
    def ask(self, deadline):
        path = f"/{len(self.calls)}"
        self.calls.append(self.world.ask(path, deadline=deadline))

    @precondition(lambda self: self.world.protocol.state is LinkState.CONNECTING)
    @rule()
    def connection_is_made(self):
        self.world.connect()

    @precondition(lambda self: self.world.protocol.state is LinkState.AUTHENTICATING)
    @rule()
    def all_goes_well(self):
        self.world.authenticate()

    @rule(
        message=st.sampled_from(
            [
                REFUSED,
                token(b"challenge"),
                token(b"proof"),
                token(b"nonsense"),
                COMPLETE,
                Message(MessageType.CONTROL_MESSAGE, blob=b"\xff"),
                Message(MessageType.GET_PULSE_RESPONSE, 0, pulse=Pulse("/0", b"1")),
                Message(MessageType.SEND_PULSE_RESPONSE, 0),
            ]
        )
    )
    def server_says_something(self, message):
        self.world.hear(message)

    @rule(error=st.sampled_from([None, AuthenticationError("no"), ConfigError("no file")]))
    def a_step_ends(self, error):
        steps, self.world.steps = self.world.steps, []
        for step in steps:
            try:
                outcome = error or step.work()
            except AuthenticationError as failure:
                outcome = failure
            self.world.protocol.computed(step, outcome, self.world.now)
            self.world.carried_out()

    @precondition(lambda self: self.world.protocol.state is not LinkState.DOWN)
    @rule()
    def connection_ends(self):
        self.world.protocol.failed("cut", self.world.now)
        self.world.carried_out()

    @rule(seconds=st.sampled_from([0.01, 0.4, 1.1, 6.0]))
    def time_passes(self, seconds):
        self.world.wait(seconds)

    @rule()
    def it_closes_an_idle_connection(self):
        self.world.protocol.close_idle()
        self.world.carried_out()

    @invariant()
    def nobody_waits_beyond_the_deadline(self):
        for call in self.calls:
            assert call in self.world.outcomes or self.world.now <= call.deadline

    @invariant()
    def nothing_of_a_call_leaves_before_the_server_is_known(self):
        frames = {call.frame for call in self.calls}
        if self.world.protocol.state is LinkState.AUTHENTICATING:
            assert not frames & set(self.world.sent[self.world.begun :])

    def teardown(self):
        self.world.wait(20.0)
        assert set(self.world.outcomes) == set(self.calls)


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


# --- over sockets ---------------------------------------------------------------------------------


def test_a_client_authenticates_and_reads():
    with (
        nothing_left_behind(),
        ScriptedPacemaker(Digest()) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        assert client.get_pulse("/a") == b"1"
        assert client.children("/") == ["a"]
    assert peer.connections == 2


@pytest.mark.parametrize("step", [1, 2])
def test_step_without_thread_is_no_refusal_or_defect(monkeypatch, step):
    def lack(work):
        steps.append(work)
        if len(steps) == step:
            raise RuntimeError("can't start new thread")
        run(work)

    steps = []
    with (
        ScriptedPacemaker(Digest()) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
    ):
        background = client._thread._steps
        run = background.run
        monkeypatch.setattr(background, "run", lack)
        assert client.get_pulse("/a") == b"1"
        assert client.defects == 0
    assert peer.connections == 4


def test_wrong_password_is_an_error_without_retries():
    with (
        ScriptedPacemaker(Digest(b"another")) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
        pytest.raises(NotAuthorizedError, match="PacemakerDigest"),
    ):
        client.get_pulse("/a")
    assert peer.connections == 2


def test_java_pacemaker_with_method_none_is_unharmed():
    java = JavaPacemaker()
    with (
        ScriptedPacemaker(java) as peer,
        PacemakerClient(peer.address, identity=identity()) as client,
        pytest.raises(NotAuthorizedError, match="wants no authentication"),
    ):
        client.get_pulse("/a")
    assert java.asked == [MessageType.EXISTS]


def test_hanging_step_delays_no_deadline_or_other_server():
    go_on = threading.Event()

    class Hanging(Fake):
        def start(self):
            go_on.wait(DEADLINE_SECS)

    with (
        ScriptedPacemaker(Digest()) as hung,
        ScriptedPacemaker(Digest()) as well,
        PacemakerClient(hung.address, identity=identity(Hanging), name="hung") as one,
        PacemakerClient(well.address, identity=identity()) as other,
    ):
        with pytest.raises(PacemakerUnavailableError):
            one.answer(one.submit(Message(MessageType.GET_PULSE, path="/a"), deadline=0.3))
        assert other.get_pulse("/a") == b"1"
        go_on.set()
        assert one.get_pulse("/a") == b"1"
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("hung")])


def test_a_defect_in_a_mechanism_is_told_and_not_waited_for():
    def broken():
        raise ZeroDivisionError

    with (
        ScriptedPacemaker(Digest()) as peer,
        PacemakerClient(peer.address, identity=identity(broken)) as client,
        pytest.raises(NotAuthorizedError, match="ZeroDivisionError"),
    ):
        client.get_pulse("/a")
