"""Whatever happens, in any order: every call of the client's state machine ends, and ends well."""

from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stormkeeper.errors import PacemakerUnavailableError, RemoteProtocolError, StormkeeperError
from stormkeeper.pacemaker.client import protocol
from stormkeeper.pacemaker.client.protocol import LinkState
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.protocol_world import World

paths = st.sampled_from(["/a", "/a/b", "/a/c", "/b"])


class AnyCourse(RuleBasedStateMachine):
    """Whatever happens: every call ends once and in time, with the answer to its own question or
    an error, and what the peer has done are calls in their order, none of them twice."""

    DEADLINE = 10.0**6

    def __init__(self):
        super().__init__()
        self.few_in_flight = mock.patch.object(protocol, "MAX_IN_FLIGHT", 3)
        self.few_in_flight.start()
        self.world = World()
        self.calls = []

    @rule(path=paths)
    def read(self, path):
        self.calls.append(self.world.ask(path, deadline=self.DEADLINE))

    @rule(path=paths)
    def write(self, path):
        value = b"%d" % len(self.calls)
        self.calls.append(self.world.send(path, value, deadline=self.DEADLINE))

    @rule(path=paths)
    def delete(self, path):
        self.calls.append(self.world.delete(path, deadline=self.DEADLINE))

    @rule()
    def read_changes(self):
        self.calls.append(self.world.changes(deadline=self.DEADLINE))

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.99, 3.0]))
    def time_passes(self, seconds):
        self.world.wait(seconds)

    @precondition(lambda self: self.world.protocol.state is LinkState.CONNECTING)
    @rule()
    def connection_is_made(self):
        self.world.connect()

    @precondition(lambda self: self.world.protocol.state is LinkState.CONNECTING)
    @rule()
    def connection_is_refused(self):
        self.world.fail("refused")

    @precondition(lambda self: self.world.requests)
    @rule(count=st.integers(1, 4))
    def peer_answers(self, count):
        self.world.serve(count)

    @precondition(lambda self: self.world.protocol.state is LinkState.UP)
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
        if call.kind != MessageType.CHANGES:
            assert isinstance(error, PacemakerUnavailableError | RemoteProtocolError)

    @invariant()
    def writes_are_done_in_their_order_and_once(self):
        done = [
            int(request.pulse.details)
            for request in self.world.done
            if request.type == MessageType.SEND_PULSE
        ]
        assert done == sorted(set(done))

    @invariant()
    def what_was_answered_was_done(self):
        done = {
            request.pulse.details
            for request in self.world.done
            if request.type == MessageType.SEND_PULSE
        }
        for place, call in enumerate(self.calls):
            outcome = self.world.outcome(call)
            if call.kind == MessageType.SEND_PULSE and isinstance(outcome, Message):
                assert b"%d" % place in done

    def teardown(self):
        """Once all goes well, what still waits is answered, and so is what is asked anew."""
        self.few_in_flight.stop()
        waiting = [call for call in self.calls if call not in self.world.outcomes]
        self.read("/a")
        for _ in range(1000):
            if len(self.world.outcomes) == len(self.calls):
                break
            if self.world.protocol.state is LinkState.CONNECTING:
                self.world.connect()
            self.world.serve()
            self.world.wait(0.01)
        for call in [*waiting, self.calls[-1]]:
            outcome = self.world.outcome(call)
            assert isinstance(outcome, Message) or call.kind == MessageType.CHANGES, outcome
        assert set(self.world.outcomes) == set(self.calls)


class Impatient(AnyCourse):
    """The same with short deadlines: calls fail, but in time."""

    DEADLINE = 2.5

    @invariant()
    def nobody_waits_beyond_the_deadline(self):
        for call in self.calls:
            assert call in self.world.outcomes or self.world.now <= call.deadline

    def teardown(self):
        self.few_in_flight.stop()
        self.world.wait(self.DEADLINE)
        assert set(self.world.outcomes) == set(self.calls)


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestImpatient = Impatient.TestCase
TestImpatient.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
