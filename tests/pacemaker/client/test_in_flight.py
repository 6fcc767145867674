"""Frames with another id, and the requests that one connection has under way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.client.protocol import (
    MAX_IN_FLIGHT,
    ClientCall,
    InFlight,
    with_message_id,
)
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import ChangesRequest, Message, MessageType, Pulse

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
messages = st.one_of(
    st.builds(Message, st.sampled_from([0, 2, 6, 8, 10, 12, 14]), path=texts),
    st.builds(Message, st.just(MessageType.SEND_PULSE), pulse=st.builds(Pulse, texts, st.binary())),
    st.builds(
        Message,
        st.just(MessageType.CHANGES),
        changes_request=st.builds(
            ChangesRequest, texts, st.integers(0, 2**63 - 1), st.integers(0, 99), st.none() | texts
        ),
    ),
)
ids = st.integers(0, 2**31 - 1)


@given(messages, ids, ids)
def test_another_id_makes_the_frame_that_encoding_makes(message, first, second):
    frame = encode(replace(message, message_id=first))
    assert with_message_id(frame, second) == encode(replace(message, message_id=second))


class Table(RuleBasedStateMachine):
    """The table against a plain list, with a peer that answers rightly or wrongly."""

    def __init__(self):
        super().__init__()
        self.table = InFlight()
        self.model = []
        self.given = []
        self.now = 0.0

    @rule()
    def time_passes(self):
        self.now += 1.0

    @rule()
    def send(self):
        sender = object()
        message_id = self.table.add(sender, self.now)
        self.model.append((message_id, sender, self.now))
        self.given.append(message_id)

    @precondition(lambda self: self.model)
    @rule()
    def answer(self):
        message_id, sender, _ = self.model.pop(0)
        assert self.table.answer(message_id, self.now) is sender

    @rule(message_id=st.none() | st.integers(-2, 32))
    def answer_to_nobody(self, message_id):
        if self.model and self.model[0][0] == message_id:
            return
        with pytest.raises(RemoteProtocolError, match=str(message_id)):
            self.table.answer(message_id, self.now)

    @rule()
    def connection_is_lost(self):
        assert self.table.drain() == [sender for _, sender, _ in self.model]
        self.model.clear()

    @invariant()
    def ids_count_up_and_are_never_given_again(self):
        assert self.given == list(range(len(self.given)))

    @invariant()
    def it_knows_its_size(self):
        assert len(self.table) == len(self.model)
        assert self.table.has_room == (len(self.model) < MAX_IN_FLIGHT)


TestTable = Table.TestCase


def test_an_id_is_not_free_again_after_its_answer():
    table = InFlight()
    assert table.add("a", 0.0) == 0
    assert table.answer(0, 0.0) == "a"
    assert table.add("b", 0.0) == 1
    with pytest.raises(RemoteProtocolError):
        table.answer(0, 0.0)


def waiting():
    return ClientCall(MessageType.EXISTS, "/a", b"", deadline=60.0, started=0.0)


def late():
    return replace(waiting(), settled=True)


def test_peer_is_quiet_since_oldest_request_or_last_byte():
    table = InFlight()
    assert table.silent_since() is None
    table.add(waiting(), 10.0)
    table.add(waiting(), 11.0)
    assert table.silent_since() == 10.0
    table.alive(10.5)
    assert table.silent_since() == 10.5
    table.answer(0, 10.7)
    assert table.silent_since() == 11.0
    table.answer(1, 12.0)
    assert table.silent_since() is None


def test_bytes_do_not_make_an_answer_after_the_deadline():
    table = InFlight()
    table.add(late(), 10.0)
    table.alive(15.0)
    assert table.silent_since() == 10.0
    table.add(late(), 10.0)
    table.answer(0, 16.0)
    assert table.silent_since() == 16.0


def test_a_life_sign_of_before_the_request_does_not_count():
    for call in (waiting(), late()):
        table = InFlight()
        table.add(waiting(), 1.0)
        table.answer(0, 2.0)
        table.add(call, 50.0)
        assert table.silent_since() == 50.0


def test_an_answer_makes_room():
    table = InFlight()
    for number in range(MAX_IN_FLIGHT):
        assert table.has_room
        table.add(number, 0.0)
    assert not table.has_room
    table.answer(0, 0.0)
    assert table.has_room
