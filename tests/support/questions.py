"""Puts questions of clients to stores of ours and of Storm's kind, without a connection."""

from stormkeeper.errors import UnsupportedExtensionError
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.request_handler import RequestHandler, ServerDescription
from stormkeeper.pacemaker.wire.decoder import decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message
from support.scripted_pacemaker import answered


class Clock:
    """Goes on when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def elapsed(self):
        """Return the seconds since it began."""
        return self.now - 1000.0


class Ours:
    """A real store, which answers CHANGES in pages as small as the test wants."""

    def __init__(self, clock, limit=0):
        self.clock = clock
        self.limit = limit
        self.store = PulseStore(PulseIndex(), "first", clock)
        self.before_answer = lambda: None
        #: When the server began to keep every pulse.
        self.began = clock()

    def __call__(self, message):
        self.before_answer()
        request = message.changes_request
        if request is not None:
            limits = [some for some in (request.limit, self.limit) if some]
            request = request._replace(limit=min(limits, default=0))
            message = Message(message.type, 0, changes_request=request)
        return decode(RequestHandler(self.store, self._status).answer(encode(message)[4:])[4:])

    def _status(self):
        kept_ms = 1 + int(1000 * (self.clock() - self.began))
        revision = self.store.index.revision
        return ServerDescription(self.store.instance, kept_ms, kept_ms, "", revision, 0, 0, 1)


class Java:
    """A store as a Java Pacemaker has it: without ages, tombstones and extensions."""

    def __init__(self, store):
        self.store = store

    def __call__(self, message):
        if message.type >= 100:
            raise UnsupportedExtensionError("no")
        return answered(self.store, message)


def ask(question, reply):
    """Put a question to `reply(message)`; return what it found and the rounds it took."""
    rounds = 0
    try:
        requests, meanwhile = next(question)
        while True:
            rounds += 1
            assert 0 < len(requests) <= 100, "more than a connection takes at once"
            if meanwhile is not None:
                meanwhile()
            try:
                answers = [reply(message) for message in requests]
            except UnsupportedExtensionError as error:
                requests, meanwhile = question.throw(error)
            else:
                requests, meanwhile = question.send(answers)
    except StopIteration as end:
        return end.value, rounds
