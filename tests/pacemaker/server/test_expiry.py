"""Expiry and tombstones: in bounds, in time, and never stranding who begins from nothing."""

import pytest

from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.store_limits import StoreLimits
from support.indexes import INDEXES


class Clock:
    """A clock that may take time to look at."""

    def __init__(self):
        self.now = 1000.0
        self.cost = 0.0

    def __call__(self):
        self.now += self.cost
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=INDEXES)
def make(request, clock):
    return lambda **limits: PulseStore(
        INDEXES[request.param](), "instance", clock, StoreLimits(**limits)
    )


def followed(store, after=0):
    return [(e.revision, e.path, e.details) for e in store.changes(b"/", after).entries]


def test_a_tombstone_stands_until_the_path_holds_a_pulse_again(make, clock):
    store = make()
    store.put(b"/a", b"v")
    clock.now += 5
    store.delete(b"/a")
    assert followed(store) == [(2, b"/a", None)]
    assert store.changes(b"/").entries[0].changed == clock.now
    store.put(b"/a", b"w")
    assert followed(store) == [(3, b"/a", b"w")]


def test_tombstones_are_bounded_in_number_and_in_size(make):
    for limits, name in [
        ({"tombstones": 10}, b"/%d"),
        ({"tombstone_bytes": 10_000}, b"/%01000d"),
    ]:
        store = make(**limits)
        for n in range(1_000):
            store.put(name % n, b"")
            store.delete(name % n)
            assert store.index.tombstones <= 10
        assert len(followed(store)) == store.index.tombstones > 5
        assert store.expiry.floor == followed(store)[0][0] - 2  # a pulse and its tombstone


def test_pulse_older_than_dropped_tombstone_moves_to_the_end(make):
    store = make(tombstones=4)
    store.put(b"/old/1", b"")
    store.put(b"/old/2", b"")
    for n in range(5):
        store.put(b"/gone/%d" % n, b"")
        store.delete(b"/gone/%d" % n)
    assert store.expiry.floor > 2
    assert {b"/old/1", b"/old/2"} <= {path for _, path, _ in followed(store)}
    assert all(revision > store.expiry.floor for revision, _, _ in followed(store))


def test_reader_away_too_long_must_read_anew(make, clock):
    store = make(tombstone_seconds=60)
    store.put(b"/a", b"")
    store.put(b"/b", b"")
    store.delete(b"/a")
    after = store.index.revision
    clock.now += 59
    store.put(b"/c", b"")
    store.expiry.expire(0)
    assert store.changes(b"/", 2).reset is False
    clock.now += 2
    store.expiry.expire(0)
    assert store.index.tombstones == 0
    assert store.changes(b"/", 2).reset is True
    page = store.changes(b"/", after)
    assert (page.reset, {entry.path for entry in page.entries}) == (False, {b"/b", b"/c"})


def test_pulses_expire_by_their_age_and_leave_tombstones(make, clock):
    store = make(tombstones=4)
    store.put(b"/a/old", b"")
    clock.now += 10
    store.put(b"/a/young", b"")
    assert store.expiry.expire(10.0) == 0
    clock.now += 1
    assert store.expiry.expire(10.0) == 1
    assert store.children(b"/a") == [b"young"]
    assert [change[1:] for change in followed(store)][1:] == [(b"/a/old", None)]
    clock.now += 60
    assert store.expiry.expire(10.0) == 1
    assert store.expiry.expired == 2
    assert store.children(b"/") == []


def test_a_ttl_of_0_lets_everything_stay(make, clock):
    store = make()
    store.put(b"/a", b"")
    clock.now += 1e9
    assert store.expiry.expire(0) == 0
    assert store.index.keys == 1


def test_expiry_stops_at_its_budget_and_continues_later(make, clock):
    store = make()
    for n in range(200):
        store.put(b"/%d" % n, b"")
    clock.now += 100
    store.put(b"/young", b"")
    clock.cost = 0.0001
    rounds = []
    while not rounds or rounds[-1]:
        began = clock.now
        rounds.append(store.expiry.expire(50.0, budget=0.005))
        assert clock.now - began < 0.01
    assert sum(rounds) == 200
    assert len(rounds) > 4
    assert [entry.path for entry in store.pulses(b"/")] == [b"/young"]


def test_expiry_passes_older_tombstones(make, clock):
    store = make()
    for n in range(500):
        store.put(b"/gone/%d" % n, b"")
    store.delete_path(b"/gone")
    store.put(b"/silent", b"")
    clock.now += 100
    clock.cost = 0.0001
    # A budget for some sixteen entries at a time.
    for _ in range(100):
        store.expiry.expire(50.0, budget=0.0001)
    assert store.get(b"/silent") is None


def test_repeatedly_moved_pulse_still_expires(make, clock):
    store = make(tombstones=8)
    store.put(b"/silent", b"")
    n = 0
    for _ in range(100):
        clock.now += 1
        store.put(b"/beating", b"")
        for _ in range(10):
            n += 1
            store.put(b"/%d" % n, b"")
            store.delete(b"/%d" % n)
        store.expiry.expire(10.0)
        if clock.now > 1030:
            assert [entry.path for entry in store.pulses(b"/")] == [b"/beating"]


def test_expiry_while_making_room_is_counted(make, clock):
    store = make(tombstones=4)
    for n in range(50):
        store.put(b"/d/%d" % n, b"")
    clock.now += 100
    store.put(b"/beating", b"")
    while store.expiry.expire(10.0):
        pass
    assert store.expiry.expired == 50
    assert store.children(b"/") == [b"beating"]
    assert store.index.tombstones <= 4
    for n in range(20):
        store.put(b"/e/%d" % n, b"")
    clock.now += 20
    store.expiry._doomed_before = clock.now - 10
    assert store.delete_path(b"/e") == 20
    assert store.index.keys in (0, 1)
    assert store.children(b"/e") == []
