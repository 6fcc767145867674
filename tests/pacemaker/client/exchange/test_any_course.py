"""Whatever happens, in any order: every call of the client's state machine ends, and ends well."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stormkeeper.errors import PacemakerUnavailableError, RemoteProtocolError, StormkeeperError
from stormkeeper.pacemaker.client.exchange import Link
from stormkeeper.pacemaker.client.supersession import at_or_below
from stormkeeper.pacemaker.wire import Message, MessageType, Pulse
from support.exchange_world import World

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
