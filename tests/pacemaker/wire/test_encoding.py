"""Writing messages: what cannot be written, and how long what is written is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import LocalProtocolError
from stormkeeper.pacemaker.wire.decoder import decode
from stormkeeper.pacemaker.wire.encoder import (
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
    encode_pulse_around,
)
from stormkeeper.pacemaker.wire.messages import Changes, Message, MessageType, Pulse
from support.messages import (
    Change,
    columns,
    columns_of,
    i32s,
    i64s,
    messages,
    pulses,
    texts,
    values,
)


@given(messages)
def test_frame_may_have_the_largest_length(message):
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
        Message(101, changes=Changes("i", 2**63, columns_of([]), more=False, reset=False, next=0)),
    ],
)
def test_unfit_message_is_a_local_error(message):
    with pytest.raises(LocalProtocolError):
        encode(message)


@given(i32s, texts, values)
def test_the_short_ways_write_the_same(message_id, path, details):
    full = encode(Message(MessageType.GET_PULSE_RESPONSE, message_id, pulse=Pulse(path, details)))
    assert encode_pulse_answer(message_id, path.encode(), details) == full
    full = encode(Message(MessageType.GET_PULSE_RESPONSE, message_id, pulse=Pulse(path, None)))
    assert encode_pulse_answer(message_id, path.encode(), None) == full
    full = encode(Message(MessageType.SEND_PULSE, message_id, pulse=Pulse(path, details)))
    around = encode_pulse_around(message_id, path.encode(), len(details))
    assert details.join(around) == full
    full = encode(Message(MessageType.SEND_PULSE_RESPONSE, message_id))
    assert encode_acknowledgement(MessageType.SEND_PULSE_RESPONSE, message_id) == full


@given(st.lists(pulses.filter(lambda pulse: pulse.details is not None)), texts)
def test_the_overheads_add_up(pulses, instance):
    records = encode(Message(7, 1, records=pulses))
    text = [len(pulse.id.encode()) + len(pulse.details) for pulse in pulses]
    assert len(records) - 4 == RECORDS_OVERHEAD + sum(text) + PULSE_OVERHEAD * len(pulses)
    changes = [Change(pulse.id, 1, 1, 1, pulse.details) for pulse in pulses]
    page = encode(Message(101, 1, changes=Changes(instance, 1, columns_of(changes), True, True, 1)))
    wrapping = CHANGES_OVERHEAD + len(instance.encode())
    assert len(page) - 4 == wrapping + sum(text) + CHANGE_OVERHEAD * len(changes)
    columns = columns_of([*changes, Change("/last", 1, 1, 1)], values=False)
    page = encode(Message(101, 1, changes=Changes(instance, 1, columns, True, True, 1)))
    wrapping = SIZES_OVERHEAD + len(instance.encode())
    paths = sum(len(path.encode()) for path in columns.paths)
    # There is no byte behind the last path.
    assert len(page) - 4 == wrapping + paths + SIZE_OVERHEAD * len(columns.paths) - 1


@given(i32s, texts, i64s, columns, st.booleans(), st.booleans(), i64s)
def test_pages(message_id, instance, revision, columns, more, reset, next_after):
    changes = Changes(instance, revision, columns, more, reset, next_after)
    raw = columns._replace(paths=[path.encode() for path in columns.paths])
    frame = encode_changes(message_id, changes._replace(columns=raw))
    assert frame == encode(Message(101, message_id, changes=changes))
    found = decode(frame[4:]).changes
    assert found == changes
