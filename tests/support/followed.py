"""Followers of heartbeats over real stores in memory, without a connection."""

from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerUnavailableError
from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS, Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.follower import FollowedHeartbeats, HeartbeatFollower
from stormkeeper.heartbeats.stores import Heartbeats
from stormkeeper.nimbus.scheduling.followed_workers import beat_facts
from stormkeeper.pacemaker.client.pool_reads import newest_of_each
from stormkeeper.pacemaker.client.server_reads import ServerContents, changes_since, contents_below
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.paths import WORKERBEATS
from support.questions import Clock, Java, Ours, ask

#: Ages travel as whole milliseconds.
TOLERANCE_SECS = 0.002


class StorePool:
    """What a follower asks of a `PacemakerPool`, over stores of which some do not answer.

    With `has_java` the last is a Java Pacemaker.
    """

    def __init__(self, count, clock=None, limit=0, *, has_java=False):
        self.clock = clock or Clock()
        self.clients = {Address(name, 6699): Ours(self.clock, limit) for name in "abc"[:count]}
        if has_java:
            self.clients[Address("abc"[count - 1], 6699)] = Java({})
        self.down = set()
        self._instances = 0
        for address in self.clients:
            self.restart(address)

    def restart(self, address):
        self._instances += 1
        if isinstance(self.clients[address], Java):
            self.clients[address].store.clear()
            return
        store = PulseStore(PulseIndex(), f"instance {self._instances}", self.clock)
        self.clients[address].store = store
        self.clients[address].began = self.clock()

    def put(self, address, path, value):
        server = self.clients[address]
        if isinstance(server, Java):
            server.store[path] = value
        else:
            server.store.put(path.encode(), value)

    def delete(self, path):
        for address, server in self.clients.items():
            if address not in self.down:
                if isinstance(server, Java):
                    server.store.pop(path, None)
                else:
                    server.store.delete(path.encode())

    def changes(self, path, positions, unpack, *, values, hurried, clock):  # noqa: ARG002
        def question(address):
            return changes_since(
                path,
                positions.get(address),
                address,
                lambda page, read_at: unpack(address, page, read_at),
                values=values,
                clock=clock,
            )

        return self._asked(question)

    def contents(self, *, values=False):
        """Return everything that each server has, or its error."""
        began = self.clock()
        return self._asked(
            lambda address: contents_below(
                WORKERBEATS, address, lambda: self.clock() - began, values=values
            )
        )

    def read_all(self, path=WORKERBEATS, *, values=False, hurried=False):  # noqa: ARG002
        contents = self.contents(values=values)
        answered = [each for each in contents.values() if isinstance(each, ServerContents)]
        return Heartbeats(
            newest_of_each(each.copies for each in answered),
            {
                str(address): Coverage.of(each.info if isinstance(each, ServerContents) else each)
                for address, each in contents.items()
            },
        )

    def follower(self, **options):
        return HeartbeatFollower(self.read_all, self, path=WORKERBEATS, clock=self.clock, **options)

    def _asked(self, question):
        error = PacemakerUnavailableError("refused")
        if len(self.down) == len(self.clients):
            raise error
        return {
            address: error if address in self.down else ask(question(address), server)[0]
            for address, server in self.clients.items()
        }


def everything(follower):
    """Return all pulses of a follower by path."""
    return dict(item for order in follower.by_receipt() for item in order)


class WholeReadings:
    """Readings as a test sets them, which a follower takes as a whole."""

    def __init__(self, clock=None):
        self.clock = clock or Clock()
        self.found = Heartbeats({}, {})
        self.follower = HeartbeatFollower(
            self._read, path=WORKERBEATS, clock=self.clock, decode=beat_facts, values=False
        )

    def read(self, found, secs):
        """Return what a follower has of a reading so many seconds after its beginning."""
        self.clock.now, self.found = 1000.0 + secs, found
        coverage = self.follower.refresh().coverage
        return FollowedHeartbeats(self.follower, coverage, self.clock())

    def _read(self, path, *, values, hurried):  # noqa: ARG002
        return self.found


def java_coverage():
    return Coverage(0.0, position=Position(WITHOUT_REVISIONS, 0))
