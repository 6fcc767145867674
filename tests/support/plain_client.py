"""A client of the Pacemaker's protocol with nothing between a test and its socket."""

import socket

from stormkeeper.pacemaker.wire.decoder import (
    PacemakerFrameSplitter,
    decode,
    read_control,
    read_token,
)
from stormkeeper.pacemaker.wire.encoder import control_frame, encode, token_frame
from stormkeeper.pacemaker.wire.messages import RESERVED_PATH, Control, Message, MessageType, Pulse
from stormkeeper.thrift.pacemaker import ServerInfo
from stormkeeper.thrift.serialization import deserialize
from support.waiting import DEADLINE_SECS


class Client:
    """A socket, plain or with TLS, and what comes over it as messages."""

    def __init__(self, server, tls=None, source=None):
        self.socket = socket.create_connection(
            (server.host, server.port), DEADLINE_SECS, source and (source, 0)
        )
        if tls is not None:
            try:
                self.socket = tls.wrap_socket(self.socket, server_hostname=server.host)
            except OSError:
                self.socket.close()
                raise
        self.splitter = PacemakerFrameSplitter()
        self.payloads = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.socket.close()

    def receive(self):
        while not self.payloads:
            data = self.socket.recv(1 << 20)
            if not data:
                return None
            self.payloads = self.splitter.feed(data)
        return decode(self.payloads.pop(0))

    def ask(self, kind, message_id=1, **data):
        self.socket.sendall(encode(Message(kind, message_id, **data)))
        return self.receive()

    def send(self, path, details=b"pulse"):
        answer = self.ask(MessageType.SEND_PULSE, pulse=Pulse(path, details))
        assert answer == Message(MessageType.SEND_PULSE_RESPONSE, 1)

    def get(self, path):
        return self.ask(MessageType.GET_PULSE, path=path).pulse.details

    def authenticate(self, mechanism):
        """Authenticate as Storm's client does; return whether the server says that it is done."""
        token = mechanism.start()
        self.socket.sendall(
            control_frame(Control.SASL_TOKEN_REQUEST) if token is None else token_frame(token)
        )
        while (message := self.receive()) is not None:
            if message.type == MessageType.CONTROL_MESSAGE:
                return read_control(message) is Control.SASL_COMPLETE
            token = mechanism.step(read_token(message))
            if token is not None:
                self.socket.sendall(token_frame(token))
        return False

    def info(self):
        return deserialize(ServerInfo, self.get(RESERVED_PATH))
