"""What is written straight out of a store is what a message would say."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.wire import Changes, Message, Pulse, decode, encode
from stormkeeper.pacemaker.wire.page_encoding import (
    encode_changes,
    encode_nodes,
    encode_records,
)
from support.messages import change, i32s, i64s, texts, values


class Kept(NamedTuple):
    path: bytes
    details: bytes | None
    revision: int
    changed: float


NOW = 100.0
entries = st.lists(
    st.builds(
        Kept,
        texts.map(str.encode),
        st.none() | values,
        i64s,
        st.sampled_from([0.0, 99.5, 99.9995, 100.0, 101.0]),
    ),
    max_size=4,
)


def said(kept):
    return [
        change(k.path.decode(), k.details, k.revision, max(0, int((NOW - k.changed) * 1000)))
        for k in kept
    ]


@given(i32s, texts, i64s, entries, st.booleans(), st.booleans(), i64s)
def test_pages(message_id, instance, revision, kept, more, reset, next_after):
    changes = Changes(instance, revision, said(kept), more, reset, next_after)
    ends = {"more": more, "reset": reset, "next_after": next_after}
    frame = encode_changes(message_id, instance, revision, kept, NOW, **ends)
    assert frame == encode(Message(101, message_id, changes=changes))
    frame = encode_changes(message_id, instance, revision, kept, NOW, **ends, values=False)
    rows = [row._replace(details=None) for row in changes.changes]
    assert decode(frame[4:]).changes == changes._replace(changes=rows)
    if any(row.size is not None for row in rows):
        assert frame == encode(Message(101, message_id, changes=changes._replace(changes=rows)))


@given(i32s, entries)
def test_records_and_nodes(message_id, kept):
    pulses = [Pulse(k.path.decode(), k.details or b"") for k in kept]
    assert encode_records(message_id, kept) == encode(Message(7, message_id, records=pulses))
    names = [k.path for k in kept]
    nodes = [name.decode() for name in names]
    assert encode_nodes(message_id, names) == encode(Message(9, message_id, nodes=nodes))
