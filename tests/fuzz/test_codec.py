"""Whatever the bytes of a frame, reading them ends in a message or in the sender's fault."""

from hypothesis import given, settings

from fuzz.mutations import EXAMPLES, payloads
from stormkeeper.errors import LocalProtocolError, RemoteProtocolError
from stormkeeper.pacemaker.wire.decoder import decode, decode_request, match_exact_shape
from stormkeeper.pacemaker.wire.encoder import encode


@settings(max_examples=EXAMPLES, deadline=None)
@given(payloads())
def test_a_message_or_a_fault(payload: bytes) -> None:
    try:
        message = decode(payload)
    except RemoteProtocolError:
        return
    try:
        frame = encode(message)
    except LocalProtocolError:
        return  # it says what we never would: no type, or nothing that Thrift can carry
    assert decode(frame[4:]) == message


@settings(max_examples=EXAMPLES, deadline=None)
@given(payloads())
def test_the_quick_way_and_the_general_way_agree(payload: bytes) -> None:
    exact = match_exact_shape(payload)
    if exact is None:
        return
    kind, message_id, path, details = exact
    try:
        # Whatever follows the message has it read field by field.
        request = decode_request(payload + b"more")
    except RemoteProtocolError:
        return  # the shape is a request's, the type is not
    assert decode_request(payload) == request
    assert (request.type, request.message_id) == (kind, message_id)
    found = request.pulse
    where = request.path if found is None else found.id
    # What is not UTF-8 is the store's to judge, which alone knows whether it is new.
    assert where == path.decode(errors="surrogateescape")
    assert (None if found is None else found.details) == details


@settings(max_examples=EXAMPLES, deadline=None)
@given(payloads())
def test_a_request_or_a_fault(payload: bytes) -> None:
    try:
        request = decode_request(payload)
    except RemoteProtocolError:
        return
    assert request.type is not None
