"""Pages are read alike at once and field by field, whatever is in them."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire import decoder
from stormkeeper.pacemaker.wire.decoder import decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Changes, Columns, Message
from stormkeeper.thrift import pacemaker as thrift
from support import reference_codec
from support.messages import change as change_of
from support.messages import change_lists, columns_of


def read(payload):
    try:
        return decode(payload)
    except RemoteProtocolError as error:
        return str(error)


@given(change_lists, st.data())
def test_exact_shape_is_read_as_in_general(changes, data):
    message = Message(101, 1, changes=Changes("i", 1, columns_of(changes), False, False, 2))
    payload = bytearray(encode(message)[4:])
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 30)) if data.draw(st.booleans()) else 0
    damaged = bytes(payload[: len(payload) - cut])
    at_once = read(damaged)
    with patch.object(decoder, "_match_change", return_value=None):
        assert at_once == read(damaged)


@pytest.mark.parametrize("details", [b"v", None])
def test_pages_of_our_servers_have_the_exact_shape(details):
    change = change_of("/a\u6e2c", details, 7, 8)
    page = Changes("i", 1, columns_of([change, change]), False, False, 7)
    payload = encode(Message(101, 1, changes=page))[4:]
    with patch.object(decoder, "_read_change", side_effect=AssertionError):
        assert decode(payload).changes == page


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("paths", "/a\0/b"),
        ("paths", ""),
        ("revisions", [1]),
        ("revisions", []),
        ("ages_ms", [1, 2, 3, 4]),
        ("sizes", None),
    ],
)
def test_columns_of_different_lengths_are_a_fault(field, value):
    page = thrift.Changes(
        "i", 1, [], False, False, 7, "/a\0/b\0/c", [1, 2, 3], [4, 5, 6], [7, 8, 9]
    )
    message = thrift.HBMessage(101, thrift.HBMessageData(changes=page), 1)
    whole = decode(reference_codec.encode(message)).changes.columns
    assert whole == Columns(["/a", "/b", "/c"], (1, 2, 3), (4, 5, 6), (7, 8, 9))
    setattr(page, field, value)
    with pytest.raises(RemoteProtocolError, match="columns have not one length"):
        decode(reference_codec.encode(message))
