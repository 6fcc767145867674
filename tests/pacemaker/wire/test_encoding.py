"""Writing messages: what cannot be written, and how long what is written is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import LocalProtocolError
from stormkeeper.pacemaker.wire.decoding import decode
from stormkeeper.pacemaker.wire.encoding import (
    CHANGE_OVERHEAD,
    CHANGES_OVERHEAD,
    PULSE_OVERHEAD,
    RECORDS_OVERHEAD,
    SIZE_OVERHEAD,
    SIZES_OVERHEAD,
    encode,
    encode_acknowledgement,
    encode_changes,
    encode_pulse_answer,
)
from stormkeeper.pacemaker.wire.messages import Change, Changes, Message, MessageType, Pulse
from stormkeeper.pacemaker.wire.pages import Columns
from support.messages import change_lists, i32s, i64s, messages, pulses, texts, values


@given(messages)
def test_a_frame_announces_its_own_length_and_may_be_just_as_long(message):
    frame = encode(message)
    size = len(frame) - 4
    assert int.from_bytes(frame[:4]) == size
    assert encode(message, max_size=size) == frame
    if message.message_id is None or frame[11:12] == b"\x0c":
        with pytest.raises(LocalProtocolError, match=f"frame of {size} bytes"):
            encode(message, max_size=size - 1)


@pytest.mark.parametrize(
    "message",
    [
        Message(None),
        Message(10, path="/a", nodes=[]),
        Message(10, path="/a", pulse=Pulse("/a", None)),
        Message(10, boolval=False, blob=b""),
        Message(10, path="/\ud800"),
        Message(2**31),
        Message(10, 2**31, path="/a"),
        Message(101, changes=Changes("i", 2**63, [], more=False, reset=False, next=0)),
    ],
)
def test_what_the_protocol_cannot_carry_is_our_fault(message):
    with pytest.raises(LocalProtocolError):
        encode(message)


@given(i32s, texts, values)
def test_the_short_ways_write_the_same(message_id, path, details):
    full = encode(Message(MessageType.GET_PULSE_RESPONSE, message_id, pulse=Pulse(path, details)))
    assert encode_pulse_answer(message_id, path.encode(), details) == full
    full = encode(Message(MessageType.GET_PULSE_RESPONSE, message_id, pulse=Pulse(path, None)))
    assert encode_pulse_answer(message_id, path.encode(), None) == full
    full = encode(Message(MessageType.SEND_PULSE_RESPONSE, message_id))
    assert encode_acknowledgement(MessageType.SEND_PULSE_RESPONSE, message_id) == full


@given(st.lists(pulses.filter(lambda pulse: pulse.details is not None)), texts)
def test_the_overheads_add_up(pulses, instance):
    records = encode(Message(7, 1, records=pulses))
    text = [len(pulse.id.encode()) + len(pulse.details) for pulse in pulses]
    assert len(records) - 4 == RECORDS_OVERHEAD + sum(text) + PULSE_OVERHEAD * len(pulses)
    changes = [Change(pulse.id, pulse.details, 1, 1, 1) for pulse in pulses]
    page = encode(Message(101, 1, changes=Changes(instance, 1, changes, True, True, 1)))
    wrapping = CHANGES_OVERHEAD + len(instance.encode())
    assert len(page) - 4 == wrapping + sum(text) + CHANGE_OVERHEAD * len(changes)
    sizes = [Change(pulse.id, None, 1, 1, 1) for pulse in (*pulses, Pulse("/last", None))]
    page = encode(Message(101, 1, changes=Changes(instance, 1, sizes, True, True, 1)))
    wrapping = SIZES_OVERHEAD + len(instance.encode())
    paths = sum(len(change.path.encode()) for change in sizes)
    assert len(page) - 4 == wrapping + paths + SIZE_OVERHEAD * len(sizes)


@given(i32s, texts, i64s, change_lists, st.booleans(), st.booleans(), i64s)
def test_pages(message_id, instance, revision, rows, more, reset, next_after):
    ends = {"more": more, "reset": reset, "next_after": next_after}
    changes = Changes(instance, revision, rows, more, reset, next_after)
    columns = Columns(
        [row.path.encode() for row in rows],
        [row.revision for row in rows],
        [row.age_ms for row in rows],
        details=[row.details for row in rows],
    )
    frame = encode_changes(message_id, instance, revision, columns, **ends)
    assert frame == encode(Message(101, message_id, changes=changes))
    sizes = [-1 if row.details is None else len(row.details) for row in rows]
    columns = columns._replace(details=None, sizes=sizes)
    frame = encode_changes(message_id, instance, revision, columns, **ends)
    without = [row._replace(details=None) for row in rows]
    assert decode(frame[4:]).changes == changes._replace(changes=without)
    if any(row.size is not None for row in without):
        assert frame == encode(Message(101, message_id, changes=changes._replace(changes=without)))
