"""The codec as a whole: Storm's bytes, any message, and a second opinion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.protocol.cybin import TCyBinaryProtocolFactory
from thriftpy2.utils import deserialize, serialize

from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import (
    Changes,
    ChangesRequest,
    Columns,
    Message,
    MessageType,
    Pulse,
)
from stormkeeper.thrift import pacemaker as thrift
from support.messages import change, columns_of, golden_frames, messages, rows_of

GOLDEN = list(golden_frames())


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_bytes_of_storm_are_read_and_written_alike(golden):
    [payload] = PacemakerFrameSplitter().feed(golden.frame)
    assert decode(payload) == golden.message
    assert encode(golden.message) == golden.frame


def test_every_kind_of_golden_frame_is_there():
    assert len(GOLDEN) >= 40
    kinds = {golden.message.type for golden in GOLDEN}
    assert kinds == {kind for kind in MessageType if kind < 100}


def test_storms_whole_conversation_at_every_split():
    stream = b"".join(golden.frame for golden in GOLDEN)
    expected = [golden.message for golden in GOLDEN]
    for cut in range(len(stream) + 1):
        splitter = PacemakerFrameSplitter()
        payloads = splitter.feed(stream[:cut]) + splitter.feed(stream[cut:])
        assert len(payloads) == len(expected)
        if cut % 97 == 0:
            assert list(map(decode, payloads)) == expected


@given(st.lists(messages, max_size=6), st.data())
def test_messages_survive_any_chunking(sent, data):
    stream = b"".join(map(encode, sent))
    splitter = PacemakerFrameSplitter()
    received = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += map(decode, splitter.feed(stream[:size]))
        stream = stream[size:]
    assert received == sent


@given(messages)
def test_thriftpy2_reads_our_bytes(message):
    ours = encode(message)[4:]
    assert _from_thrift(deserialize(thrift.HBMessage(), ours, CODEC())) == message


@given(messages)
def test_bytes_of_thriftpy2_are_read(message):
    theirs = serialize(_to_thrift(message), CODEC())
    assert decode(theirs) == message
    assert encode(message)[4:] == theirs


CODEC = TCyBinaryProtocolFactory


def _to_thrift(message):
    member = {
        "path": message.path,
        "pulse": message.pulse and thrift.HBPulse(*message.pulse),
        "boolval": message.boolval,
        "records": message.records is not None
        and thrift.HBRecords([thrift.HBPulse(*pulse) for pulse in message.records]),
        "nodes": message.nodes is not None and thrift.HBNodes(message.nodes),
        "message_blob": message.blob,
        "changes_request": message.changes_request
        and thrift.ChangesRequest(
            *message.changes_request[:4], None if message.changes_request.values else False
        ),
        "changes": message.changes and _page_to_thrift(message.changes),
    }
    member = {
        name: value
        for name, value in member.items()
        if value is not None and (value is not False or name == "boolval")
    }
    data = thrift.HBMessageData(**member) if member else None
    return thrift.HBMessage(type=message.type, data=data, message_id=message.message_id)


def _page_to_thrift(page):
    columns, ends = page.columns, (page.more, page.reset, page.next)
    if columns.details is None:
        lists = ("\0".join(columns.paths), *map(list, columns[1:4]))
        return thrift.Changes(page.instance, page.revision, [], *ends, *lists)
    changes = [
        thrift.Change(row.path, row.details, row.revision, row.age_ms) for row in rows_of(columns)
    ]
    return thrift.Changes(page.instance, page.revision, changes, *ends)


def _page_from_thrift(page):
    if page.paths is None:
        columns = columns_of(
            [change(c.path, c.details, c.revision, c.age_ms) for c in page.changes]
        )
    else:
        paths = page.paths.split("\0") if page.sizes else []
        columns = Columns(paths, *map(tuple, (page.revisions, page.ages_ms, page.sizes)))
    return Changes(page.instance, page.revision, columns, page.more, page.reset, page.next_after)


def _from_thrift(message):
    data = message.data or thrift.HBMessageData()
    pulse = lambda value: Pulse(value.id, value.details)  # noqa: E731
    request = data.changes_request
    return Message(
        message.type,
        message.message_id,
        path=data.path,
        pulse=data.pulse and pulse(data.pulse),
        boolval=data.boolval,
        records=data.records and list(map(pulse, data.records.pulses)),
        nodes=data.nodes and data.nodes.pulseIds,
        blob=data.message_blob,
        changes_request=request
        and ChangesRequest(
            request.path,
            request.after,
            request.limit,
            request.instance,
            request.values is not False,
        ),
        changes=data.changes and _page_from_thrift(data.changes),
    )
