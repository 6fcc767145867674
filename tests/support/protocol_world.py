"""A client's state machine in a world without sockets, threads and time."""

from stormkeeper.pacemaker.client.protocol import (
    ClientCall,
    ClientProtocol,
    Connect,
    Drop,
    LinkState,
    Send,
    Settle,
)
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


class FixedBackoff:
    def __init__(self, delay=0.25):
        self.count = 0
        self.delay = delay

    def record(self):
        self.count += 1
        return self.delay

    def reset(self):
        self.count = 0


def at_or_below(path, root):
    return path == root or path.startswith(root.rstrip("/") + "/")


class World:
    """A protocol, and a peer of it that does what the test says."""

    def __init__(self, *, try_timeout=1.0, **options):
        self.backoff = FixedBackoff()
        self.protocol = ClientProtocol("peer:1", self.backoff, try_timeout=try_timeout, **options)
        self.now = 100.0
        self.connects = 0
        self.drops = []
        #: Requests that the peer got on this connection and did not answer yet.
        self.requests = []
        #: Message ids of each connection.
        self.ids = []
        self.outcomes = {}
        self.store = {}
        #: Requests that the peer has carried out.
        self.done = []
        self.carried_out()

    def carried_out(self):
        effects = self.protocol.effects
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Connect):
                self.connects += 1
            elif isinstance(effect, Send):
                assert self.protocol.state is LinkState.UP
                for payload in PacemakerFrameSplitter().feed(effect.data):
                    request = decode(payload)
                    self.requests.append(request)
                    self.ids[-1].append(request.message_id)
            elif isinstance(effect, Drop):
                self.drops.append(effect.reason)
                self.requests = []
            else:
                assert isinstance(effect, Settle)
                assert effect.call not in self.outcomes, "settled twice"
                self.outcomes[effect.call] = effect.outcome

    def call(self, message, *, deadline=15.0):
        path = message.pulse.id if message.pulse else message.path
        if message.changes_request:
            path = message.changes_request.path
        call = ClientCall(int(message.type), path, encode(message), self.now + deadline, self.now)
        self.protocol.submit(call, self.now)
        self.carried_out()
        return call

    def ask(self, path, **options):
        return self.call(Message(MessageType.GET_PULSE, 0, path=path), **options)

    def send(self, path, details=b"x", **options):
        return self.call(Message(MessageType.SEND_PULSE, 0, pulse=Pulse(path, details)), **options)

    def delete(self, path, **options):
        return self.call(Message(MessageType.DELETE_PATH, 0, path=path), **options)

    def changes(self, path="/", **options):
        request = ChangesRequest(path, 0, 0, None)
        return self.call(Message(MessageType.CHANGES, 0, changes_request=request), **options)

    def connect(self):
        self.ids.append([])
        self.requests = []
        self.protocol.connected(self.now)
        self.carried_out()

    def fail(self, reason="cut", **options):
        self.protocol.lost(reason, self.now, **options)
        self.carried_out()

    def receive(self, *answers):
        self.protocol.received(answers, self.now)
        self.carried_out()

    def wait(self, seconds):
        """Let time pass, waking the protocol exactly when it asked for it."""
        end = self.now + seconds
        while self.protocol.alarm <= end:
            self.now = max(self.now, self.protocol.alarm)
            self.protocol.passed(self.now)
            self.carried_out()
        self.now = end

    def serve(self, count=1000):
        """Let the peer answer that many requests rightly."""
        batch, self.requests = self.requests[:count], self.requests[count:]
        self.receive(*[self.applied(request) for request in batch])

    def applied(self, request):
        kind, message_id = request.type, request.message_id
        self.done.append(request)
        if kind == MessageType.SEND_PULSE:
            self.store[request.pulse.id] = request.pulse.details
            return Message(kind + 1, message_id)
        if kind == MessageType.GET_PULSE:
            pulse = Pulse(request.path, self.store.get(request.path))
            return Message(kind + 1, message_id, pulse=pulse)
        if kind == MessageType.CHANGES:
            return Message(
                kind + 1,
                message_id,
                changes=Changes("i", 0, Columns([], [], [], [], []), False, False, 0),
            )
        for path in [path for path in self.store if at_or_below(path, request.path)]:
            if kind == MessageType.DELETE_PATH or path == request.path:
                del self.store[path]
        return Message(kind + 1, message_id)

    def outcome(self, call):
        return self.outcomes.get(call)

    def error(self, call, kind):
        error = self.outcomes[call]
        assert type(error) is kind, error
        return str(error)
