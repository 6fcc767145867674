"""Followers beside whole readings of the same servers, for histories of any kind."""

import threading
import time

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import astuple

from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerUnavailableError, SerializationError
from stormkeeper.heartbeats import follower
from stormkeeper.heartbeats.follower import HeartbeatFollower, Pulse
from stormkeeper.heartbeats.stores import PacemakerHeartbeats
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.pacemaker.client.server_reads import ServerContents
from stormkeeper.pacemaker.wire.messages import TOMBSTONE
from support.followed import TOLERANCE_SECS, StorePool, everything
from support.heartbeats import path
from support.questions import Clock
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker

PATHS = [path("t", port=port) for port in range(5)]


class History(RuleBasedStateMachine):
    """Workers beat, move and are deleted; servers restart and cannot be reached.

    `known` is what a reader knows that reads everything at each step: the newest of all copies,
    with those remembered that the servers cannot tell any more.
    """

    follower_class = HeartbeatFollower

    @initialize(limit=st.sampled_from([0, 1, 2]), decodes=st.booleans())
    def begin(self, limit, decodes):
        self.clock = Clock()
        self.pool = StorePool(3, self.clock, limit)
        self.follower = self.follower_class(
            self.pool.read_all,
            self.pool,
            path="/workerbeats",
            clock=self.clock,
            decode=bytes if decodes else None,
        )
        self.addresses = list(self.pool.clients)
        self.known = {}
        self.changed, self.before = set(), {}
        self.is_read = False

    def _later(self):
        self.clock.now += 0.25
        self.is_read = False

    @rule(where=st.sampled_from(PATHS), server=st.integers(0, 2))
    def beat(self, where, server):
        self._later()
        store = self.pool.clients[self.addresses[server]].store
        store.put(where.encode(), b"%d" % int(4 * self.clock.now))

    @rule(where=st.sampled_from(PATHS))
    def delete(self, where):
        self._later()
        for address, server in self.pool.clients.items():
            if address not in self.pool.down:
                server.store.delete(where.encode())

    @rule(server=st.integers(0, 2))
    def restart(self, server):
        self._later()
        self.pool.restart(self.addresses[server])

    @rule(server=st.integers(0, 2))
    def lose(self, server):
        self._later()
        self.pool.down ^= {self.addresses[server]}
        if len(self.pool.down) == 3:
            with pytest.raises(PacemakerUnavailableError):
                self.follower.refresh()
            self.pool.down.clear()

    @rule()
    def read(self):
        self._later()
        contents = self.pool.contents(values=True)
        present = {
            str(address): each.info.instance
            for address, each in contents.items()
            if isinstance(each, ServerContents)
        }
        now = self.clock()
        remembered = {
            where: (instance, moment, one._replace(age_secs=now - moment))
            for where, (instance, moment, one) in self.known.items()
            if present.get(one.server) != instance
        }
        copies = [each.copies for each in contents.values() if isinstance(each, ServerContents)]
        copies.append({where: one for where, (_, _, one) in remembered.items()})
        self.before = {w: one for w, (_, _, one) in self.known.items() if one.size != TOMBSTONE}
        self.known = {}
        for where in {where for some in copies for where in some}:
            best = _newest_or_tombstone(some[where] for some in copies if where in some)
            instance = present.get(best.server)
            if where in remembered and best is remembered[where][2]:
                instance = remembered[where][0]
            self.known[where] = (instance, now - best.age_secs, best)
        refreshed = self.follower.refresh()
        self.changed = refreshed.changed
        assert {n for n, one in refreshed.coverage.items() if one.is_reachable} == present.keys()
        self.is_read = True

    @invariant()
    def equals_what_a_whole_reading_knows(self):
        if not getattr(self, "is_read", False):
            return
        expected = {w: one for w, (_, _, one) in self.known.items() if one.size != TOMBSTONE}
        found = everything(self.follower)
        assert {w: (one.server, one.revision, one.size) for w, one in found.items()} == {
            w: (one.server, one.revision, one.size) for w, one in expected.items()
        }
        now = self.clock()
        for where, pulse in found.items():
            age = expected[where].age_secs
            assert now - pulse.received_at == pytest.approx(age, abs=TOLERANCE_SECS)
            assert self.follower.get(where) is pulse
            if self.follower._decode is not None:
                assert pulse.value == expected[where].value
        news = {
            w
            for w in expected.keys() | self.before.keys()
            if (w in expected) != (w in self.before)
            or expected[w][:1] + expected[w][3:] != self.before[w][:1] + self.before[w][3:]
        }
        assert news <= self.changed
        for secs in (0.5, 1.5, 4.0):
            silent = {w for w, _ in self.follower.silent(secs, now)}
            assert {w for w, p in found.items() if now - p.received_at > secs} == silent


def _newest_or_tombstone(copies):
    return max(copies, key=lambda one: (-one.age_secs, one.size != TOMBSTONE))


TestHistory = History.TestCase
TestHistory.settings = settings(stateful_step_count=40)


class WithoutTombstones(HeartbeatFollower):
    def _delete(self, *_):
        pass


class WithoutReset(HeartbeatFollower):
    def _delete_unlisted(self, *_):
        pass

    def _changes(self, pool, *, hurried):
        found = super()._changes(pool, hurried=hurried)
        return {
            address: each._replace(pages=[])
            if getattr(each, "is_anew", False) and self.coverage
            else each
            for address, each in found.items()
        }


class KeepsFormer(HeartbeatFollower):
    def _without_older(self, *_):
        pass


@pytest.mark.parametrize("faulty", [WithoutTombstones, WithoutReset, KeepsFormer])
def test_a_planted_fault_is_found(faulty):
    class Faulty(History):
        follower_class = faulty

    Faulty.TestCase.settings = settings(
        stateful_step_count=40,
        max_examples=300,
        database=None,
        print_blob=False,
        phases=[Phase.generate],
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        Faulty.TestCase().runTest()


@pytest.fixture
def two(start_pacemaker):
    return [start_pacemaker() for _ in range(2)]


@pytest.fixture
def heartbeats(two):
    found = PacemakerHeartbeats(PacemakerPool([Address.parse(server.address, 0) for server in two]))
    yield found
    found.close()


def send(server, where, value):
    with PacemakerClient(server.address) as client:
        client.send_pulse(where, value)


def number(value):
    if not value.isdigit():
        raise SerializationError("no number")
    return int(value)


def test_changes_come_with_values_decoded_once(two, heartbeats):
    decoded = []

    def decode(value):
        decoded.append(value)
        return number(value)

    follower = heartbeats.follower(decode)
    for server, where, value in zip((*two, two[0]), PATHS, (b"1", b"2", b"x"), strict=False):
        send(server, where, value)
    assert follower.refresh().changed == set(PATHS[:3])
    assert [follower.get(where).value for where in PATHS[:2]] == [1, 2]
    assert isinstance(follower.get(PATHS[2]).value, SerializationError)
    assert follower.refresh().changed == set()
    kept = follower.get(PATHS[1])
    send(two[0], PATHS[0], b"3")
    assert follower.refresh().changed == {PATHS[0]}
    assert follower.get(PATHS[0]).value == 3
    assert follower.get(PATHS[1]) is kept
    assert sorted(decoded) == [b"1", b"2", b"3", b"x"]


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_a_reading_ends_though_workers_beat_while_it_decodes(most, monkeypatch):
    monkeypatch.setattr(follower, "_MOST_WAITING", most)
    pool = StorePool(1, limit=1)
    (server,) = pool.clients.values()
    decoded = []

    def decode(value):
        decoded.append(value)
        if len(decoded) < 100:
            # The worker that was read beats again.
            server.store.put(PATHS[int(value) % 2].encode(), b"%d" % (int(value) + 2))
        return int(value)

    for value in (0, 1):
        server.store.put(PATHS[value].encode(), b"%d" % value)
    mirror = pool.follower(decode=decode)
    mirror.refresh()
    # Without waiting at all, a reading ends when the workers do.
    assert len(decoded) == (2 if most else 101)
    assert everything(mirror).keys() == set(PATHS[:2])


def test_without_values_only_javas_are_decoded(two, heartbeats):
    send(two[0], PATHS[0], b"1")
    ours = heartbeats.follower(number, values=False)
    ours.refresh()
    assert (ours.get(PATHS[0]).size, ours.get(PATHS[0]).value) == (1, None)
    java = JavaPacemaker()
    java.store = {PATHS[1]: b"2"}
    with ScriptedPacemaker(java) as server:
        addresses = [Address.parse(each.address, 0) for each in (server, two[0])]
        with PacemakerPool(addresses) as pool:
            follower = PacemakerHeartbeats(pool).follower(number, values=False)
            assert follower.refresh().changed == set(PATHS[:2])
            assert follower.get(PATHS[1]).value == 2
            assert follower.get(PATHS[0]).received_at is not None


def test_pulses_outlive_their_server_and_leave_it(two, heartbeats):
    follower = heartbeats.follower()
    for where in PATHS[:2]:
        send(two[0], where, b"x")
    follower.refresh()
    assert follower.left(two[0].address) == {}
    two[0].kill()
    send(two[1], PATHS[0], b"xx")
    refreshed = follower.refresh()
    assert not refreshed.coverage[two[0].address].is_reachable
    assert refreshed.changed == {PATHS[0]}
    assert [follower.get(where).server for where in PATHS[:2]] == [two[1].address, two[0].address]
    assert follower.left(two[0].address) == {PATHS[0]: follower.get(PATHS[0]).received_at}
    two[0].restart()
    deadline = time.monotonic() + 30
    while not follower.refresh().coverage[two[0].address].is_reachable:
        assert time.monotonic() < deadline
    assert follower.get(PATHS[1]).server == two[0].address
    heartbeats.remove(PATHS[0])
    assert follower.refresh().changed == {PATHS[0]}
    assert everything(follower).keys() == {PATHS[1]}
    assert [(where, one.last.size) for where, one in follower.deleted_after(0)] == [(PATHS[0], 2)]


def test_a_java_pacemaker_is_read_as_a_whole(two):
    java = JavaPacemaker()
    java.store = {PATHS[0]: b"1", PATHS[1]: b"2"}
    with ScriptedPacemaker(java) as server:
        addresses = [Address.parse(server.address, 0), Address.parse(two[0].address, 0)]
        with PacemakerPool(addresses) as pool:
            follower = PacemakerHeartbeats(pool).follower(number)
            send(two[0], PATHS[2], b"3")
            assert follower.refresh().changed == set(PATHS[:3])
            assert follower.ageless == set(PATHS[:2])
            assert astuple(follower.get(PATHS[0]))[1:] == ("", None, None, 1, 1)
            assert follower.refresh().changed == set()
            java.store = {PATHS[0]: b"5"}
            assert follower.refresh().changed == set(PATHS[:2])
            assert {where: one.value for where, one in everything(follower).items()} == {
                PATHS[0]: 5,
                PATHS[2]: 3,
            }


def test_silent_pulses_of_nobody_are_forgotten():
    clock = Clock()
    pool = StorePool(1, clock)
    follower = pool.follower(forget_secs=60)
    (server,) = pool.clients.values()
    server.store.put(PATHS[0].encode(), b"x")
    follower.refresh()
    pool.restart(*pool.clients)
    clock.now += 59
    assert follower.refresh().changed == set()
    clock.now += 2
    assert follower.refresh().changed == {PATHS[0]}
    assert everything(follower) == {}


def test_callers_share_a_reading_that_began_after_their_calls():
    pool = StorePool(1)
    begun, may_end, readings = threading.Event(), threading.Event(), []
    changes = pool.changes

    def slow(*arguments, **options):
        readings.append(1)
        begun.set()
        assert may_end.wait(30)
        return changes(*arguments, **options)

    pool.changes = slow
    follower = pool.follower()
    found = []
    callers = [threading.Thread(target=lambda: found.append(follower.refresh())) for _ in range(5)]
    callers[0].start()
    assert begun.wait(30)
    for caller in callers[1:]:
        caller.start()
    time.sleep(0.2)
    may_end.set()
    for caller in callers:
        caller.join(30)
    assert len(found) == 5
    assert len(readings) < 5


def test_old_pulses_with_new_revisions_stay_the_first():
    clock = Clock()
    pool = StorePool(1, clock)
    (server,) = pool.clients.values()
    follower = pool.follower()
    for where in PATHS:
        server.store.put(where.encode(), b"x")
        clock.now += 10
    follower.refresh()
    server.store.index.renew(server.store.index.entry(PATHS[0].encode()))
    assert follower.refresh().changed == {PATHS[0]}
    assert [where for where, _ in follower.silent(35, clock.now)] == PATHS[:2]
    assert isinstance(follower.get(PATHS[0]), Pulse)
