"""A SASL mechanism that proves nothing, for tests of what carries the tokens."""

from stormkeeper.errors import AuthenticationError
from stormkeeper.pacemaker.client.connection_opener import Identity
from stormkeeper.pacemaker.wire.decoder import read_control, read_token
from stormkeeper.pacemaker.wire.encoder import control_frame, token_frame
from stormkeeper.pacemaker.wire.messages import Control, Message, MessageType
from support.scripted_pacemaker import answered


class Fake:
    """A client's half: says `says` first (or waits for the server), then answers by a table.

    Parameters
    ----------
    says
        The first token; None where the server speaks first.
    answers
        What it answers to each token of the server's; any other is a fault.
    last
        The token of the server's after which it is complete.
    """

    name = "FAKE"
    authorization_id = None

    def __init__(self, says=None, answers=None, last=b"proof"):
        self._says = says
        self._answers = {b"challenge": b"response"} if answers is None else answers
        self._last = last
        self.complete = False

    def start(self):
        return self._says

    def step(self, token):
        if token == self._last:
            self.complete = True
            return self._answers.get(token)
        if token not in self._answers:
            raise AuthenticationError("the server does not know the secret")
        return self._answers[token]


REMEDY = "check the password in section PacemakerDigest of /etc/jaas.conf"


def identity(make=Fake, method="DIGEST"):
    """Who the client of a test is."""
    return Identity(method, make, REMEDY)


class Digest:
    """A script of a server that authenticates, with a store of its own."""

    def __init__(self, password=b"response"):
        self.password = password
        self.store = {"/a": b"1"}

    def __call__(self, connection):
        request = connection.request()
        if request.path == "/.stormkeeper":
            connection.answer(Message(MessageType.NOT_AUTHORIZED, request.message_id))
            request = connection.request()  # a token would end a Java Pacemaker now
            raise AssertionError(f"type {request.type} came after a plain message")
        assert read_control(request) is Control.SASL_TOKEN_REQUEST
        connection.send(token_frame(b"challenge"))
        if read_token(connection.request()) != self.password:
            return
        connection.send(token_frame(b"proof") + control_frame(Control.SASL_COMPLETE))
        while True:
            connection.answer(answered(self.store, connection.request()))
