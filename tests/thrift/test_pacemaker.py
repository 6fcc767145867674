"""Pacemaker's messages against the frames that Storm wrote, through two codecs."""

import pytest

from stormkeeper.thrift.pacemaker import (
    Change,
    Changes,
    ChangesRequest,
    HBMessage,
    HBMessageData,
    HBServerMessageType,
    ServerInfo,
)
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.writer import encode
from support import reference_codec, vectors

FRAMES = {vector["name"]: vector for vector in vectors.frames()}


def payload(vector):
    frame = bytes.fromhex(vector["hex"])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


def test_the_frames_are_all_there():
    assert len(FRAMES) == 29
    assert {vector["json"]["type"]["value"] for vector in FRAMES.values()} == {*range(16), 18}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("decode", [decode, reference_codec.decode])
def test_a_frame_decodes_to_its_value(name, decode):
    message = decode(HBMessage, payload(FRAMES[name]))
    message.type = HBServerMessageType(message.type)
    assert vectors.notation(message) == FRAMES[name]["json"]


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("encode", [encode, reference_codec.encode])
def test_a_message_encodes_to_storms_bytes(name, encode):
    assert encode(vectors.build(FRAMES[name]["json"])) == payload(FRAMES[name])


def test_control_messages_hold_their_code():
    for vector in vectors.load("pacemaker"):
        if vector["name"].startswith("control."):
            message = decode(HBMessage, payload(vector))
            assert message.type is HBServerMessageType.CONTROL_MESSAGE
            assert message.message_id is None
            assert len(message.data.message_blob) == 2


def test_our_extensions_stay_out_of_storms_ids():
    ours = [member for member in HBServerMessageType if member > 18]
    assert ours == [100, 101, 104, 105, 106, 107]
    pulses = [Change("/a", None, 9, 5)]
    for kind, data in [
        (101, HBMessageData(changes=Changes("i", 9, pulses, False, False, 9))),
        (100, HBMessageData(changes_request=ChangesRequest("/a", 3, 0))),
    ]:
        message = HBMessage(HBServerMessageType(kind), data, 3)
        assert decode(HBMessage, encode(message)) == message
        assert reference_codec.decode(HBMessage, encode(message)) == message


def test_server_description_survives():
    info = ServerInfo("a1", 5, 4, ["changes"], "0.1.0", 17, 3, 17, 2)
    assert decode(ServerInfo, encode(info)) == info
