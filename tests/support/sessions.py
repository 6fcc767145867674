"""ClientSessions around a real store, without sockets, and a mechanism as simple as can be."""

from stormkeeper.errors import AuthenticationError
from stormkeeper.pacemaker.server.client_session import ClientSessions, Policy
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.request_handler import RequestHandler, ServerDescription
from stormkeeper.pacemaker.server.server_status import EventCounts
from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.encoder import control_frame, encode, token_frame
from stormkeeper.pacemaker.wire.messages import Control, Message

ADDRESS = ("10.0.0.1", 4711)


class Clock:
    """A clock that a test sets."""

    def __init__(self, now=1_000.0):
        self.now = now

    def __call__(self):
        return self.now


class Password:
    """One secret word, said by the client after the server's `greeting`, if it has one."""

    name = "PASSWORD"

    @classmethod
    def storms(cls):
        """Return one whose users' names are told as those of Storm's DIGEST-MD5."""
        mechanism = cls()
        mechanism.name = "DIGEST-MD5"
        return mechanism

    def __init__(self, word=b"open sesame", greeting=b"who is there?", farewell=b"welcome"):
        self.word, self.greeting, self.farewell = word, greeting, farewell
        self.complete = False
        self.authorization_id = None

    def start(self):
        return self.greeting

    def step(self, token):
        if token == b"not yet":
            return b"go on"
        user, _, word = token.partition(b"=")
        if word != self.word:
            raise AuthenticationError("wrong password")
        self.complete, self.authorization_id = True, user.decode()
        return self.farewell


#: Of a server to which clients authenticate by `Password`.
POLICY = Policy("SCRAM", Password, is_authorised=bool)


def new_sessions(policy=None, index=None, **limits):
    """Return sessions, the store that they work on, and the clock of both."""
    clock = Clock()
    store = PulseStore(PulseIndex() if index is None else index, "instance", clock)
    handler = RequestHandler(
        store, lambda: ServerDescription("instance", 1, 1, "0", 0, 0, 0, 0), **limits
    )
    return ClientSessions(handler, policy or Policy(), EventCounts(), clock), store, clock


#: What a reader is after, and where it is.
SECRET = b"what nobody may read"
PATH = "/workerbeats/t/a-1"


def ask(session, frame):
    """Give a session a message, or a frame of one; return its answers."""
    frame = encode(frame) if isinstance(frame, Message) else frame
    return [decode(payload) for payload in PacemakerFrameSplitter().feed(session.answer(frame[4:]))]


def opened(policy=POLICY):
    """Return the session of a new client, and the store, which has the secret."""
    sessions, store, _ = new_sessions(policy)
    store.put(PATH.encode(), SECRET)
    return sessions.open(*ADDRESS), store


def token(text):
    """Return the frame of a SASL token."""
    return token_frame(text.encode())


HELLO = control_frame(Control.SASL_TOKEN_REQUEST)
RIGHT = token("nimbus=open sesame")
