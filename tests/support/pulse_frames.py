"""Frames that send and get pulses, a stream of them, and the answers to that."""

from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse


def send(path, message_id=1, details=b"v"):
    """Return the frame of a pulse."""
    return encode(Message(MessageType.SEND_PULSE, message_id, pulse=Pulse(path, details)))


def get(path, message_id=1):
    """Return the frame that asks for a pulse."""
    return encode(Message(MessageType.GET_PULSE, message_id, path=path))


def ids(stream):
    """Return the message ids of a stream of frames."""
    return [decode(payload).message_id for payload in PacemakerFrameSplitter().feed(stream)]


#: Of a server that holds nothing yet.
STREAM = send("/a", 1) + get("/a", 2) + send("/a", 3, b"new") + get("/a", 4) + get("/b", 5)
#: To the `STREAM`.
ANSWERS = b"".join(
    encode(message)
    for message in (
        Message(MessageType.SEND_PULSE_RESPONSE, 1),
        Message(MessageType.GET_PULSE_RESPONSE, 2, pulse=Pulse("/a", b"v")),
        Message(MessageType.SEND_PULSE_RESPONSE, 3),
        Message(MessageType.GET_PULSE_RESPONSE, 4, pulse=Pulse("/a", b"new")),
        Message(MessageType.GET_PULSE_RESPONSE, 5, pulse=Pulse("/b", None)),
    )
)
