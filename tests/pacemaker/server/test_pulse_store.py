"""The store against a plain dict, with readers whose pages the changes come between."""

import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.store_limits import LimitError, StoreLimits
from stormkeeper.pacemaker.wire.encoder import encode_changes
from support.indexes import INDEXES

paths = st.lists(st.sampled_from([b"", b"a", b"a!", b"b"]), min_size=1, max_size=3).map(b"/".join)
values = st.binary(max_size=20)
prefixes = paths | st.just(b"/") | paths.map(lambda path: path + b"/")


def is_within(path, prefix):
    top = prefix.rstrip(b"/")
    return not top or path == top or path.startswith(top + b"/")


class Follower:
    """Follows the changes of a subtree and keeps a picture of it."""

    def __init__(self, path, limit, max_bytes, values=True):
        self.path, self.limit, self.max_bytes, self.values = path, limit, max_bytes, values
        self.after, self.instance, self.picture = 0, None, {}

    def read(self, store):
        page = store.changes(
            self.path,
            self.after,
            self.limit,
            max_bytes=self.max_bytes,
            instance=self.instance,
            values=self.values,
        )
        if page.reset:
            self.picture.clear()
        last = 0 if page.reset else self.after
        for entry in page.entries:
            assert last < entry.revision <= page.revision
            assert is_within(entry.path, self.path)
            last = entry.revision
            if entry.details is None:
                self.picture.pop(entry.path, None)
            else:
                self.picture[entry.path] = (entry.details, entry.changed)
        assert len(page.entries) <= self.limit or self.limit <= 0
        frame = encode_changes(1, page.to_wire(store.instance, values=self.values))
        assert len(frame) - 4 <= self.max_bytes
        assert page.revision == store.index.revision
        assert page.next == page.revision or page.more
        self.after, self.instance = page.next, store.instance
        return page.more


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


LIMITS = StoreLimits(tombstones=2)


class StoreMachine(RuleBasedStateMachine):
    implementation = None

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.readers = []
        self.new_store("i")

    def new_store(self, instance):
        self.store = PulseStore(self.implementation(), instance, self.clock, LIMITS)
        self.model = {}
        self.received = 0
        self.doomed_before = float("-inf")

    @initialize(path=prefixes)
    def a_reader_of_everything(self, path):
        self.readers = [Follower(b"/", 3, 10_000), Follower(path, 1, 160)]

    @rule(
        path=prefixes,
        limit=st.integers(-1, 4),
        max_bytes=st.sampled_from([160, 200, 10_000]),
        values=st.booleans(),
    )
    def a_reader_comes(self, path, limit, max_bytes, values):
        self.readers = [*self.readers[-4:], Follower(path, limit, max_bytes, values)]

    def remove(self, path):
        del self.model[path]

    @rule(writes=st.lists(st.tuples(st.sampled_from("ppdDte"), prefixes, values), max_size=6))
    def write(self, writes):
        """Put, delete, delete a path with all below, let time pass, or expire."""
        for verb, path, details in writes:
            before, short = self.store.expiry.expired, 0
            if verb == "p":
                revision = self.store.index.revision
                self.store.put(path, details)
                self.received += 1
                self.model[path] = (details, self.clock.now)
                assert self.store.index.revision == revision + 1
            elif verb == "d":
                assert self.store.delete(path) == (path in self.model)
                if path in self.model:
                    self.remove(path)
            elif verb == "D":
                doomed = [key for key in self.model if is_within(key, path)]
                # One that makes room for the tombstone of another has expired.
                short = len(doomed) - self.store.delete_path(path)
                old = [key for key in doomed if self.model[key][1] < self.doomed_before]
                assert 0 <= short <= len(old)
                for key in doomed:
                    assert self.store.get(key) is None
                    self.remove(key)
            elif verb == "t":
                self.clock.now += len(details)
            else:
                self.doomed_before = self.clock.now - 25.0
                while self.store.expiry.expire(25.0):
                    pass
            self.take_note_of_what_expired(before + short)

    def take_note_of_what_expired(self, before):
        """What has been found too old goes then, or with a later deletion that needs its room."""
        gone = [key for key in self.model if self.store.get(key) is None]
        assert self.store.expiry.expired - before == len(gone)
        for key in gone:
            assert self.model[key][1] < self.doomed_before
            self.remove(key)

    @rule(path=prefixes)
    def look(self, path):
        assert self.store.get(path) == self.model.get(path, (None,))[0]
        below = path.rstrip(b"/") + b"/"
        names = {key[len(below) :].split(b"/")[0] for key in self.model if key.startswith(below)}
        children = self.store.children(path)
        assert len(children) == len(set(children))
        assert set(children) == names - {b""}
        tombstones = [entry.path for entry in self.store.expiry._tombstones]
        buried = {key[len(below) :].split(b"/")[0] for key in tombstones if key.startswith(below)}
        deleted = self.store.deleted(path)
        assert len(deleted) == len(set(deleted))
        assert set(deleted) == buried - {b""}
        expected = sorted(key for key in self.model if is_within(key, path))
        pulses = list(self.store.pulses(path))
        assert [entry.path for entry in pulses] == expected
        assert [entry.details for entry in pulses] == [self.model[key][0] for key in expected]

    @rule(which=st.lists(st.integers(0, 5), max_size=6))
    def readers_read_a_page(self, which):
        for number in which:
            self.readers[number % len(self.readers)].read(self.store)

    @rule(number=st.integers(0, 5))
    def a_reader_catches_up(self, number):
        self.catch_up(self.readers[number % len(self.readers)])

    def catch_up(self, reader):
        pages = 0
        while reader.read(self.store):
            pages += 1
            assert pages < 200
        assert reader.picture == {
            key: value for key, value in self.model.items() if is_within(key, reader.path)
        }

    @precondition(lambda self: len(self.store.instance) < 3)
    @rule()
    def restart(self):
        self.new_store(self.store.instance + "'")

    def teardown(self):
        for number in range(len(self.readers)):
            self.a_reader_catches_up(number)

    @invariant()
    def counters_are_true(self):
        assert self.store.index.keys == len(self.model)
        assert self.store.index.pulses_received == self.received
        held = sum(len(path) + len(details) for path, (details, _) in self.model.items())
        assert self.store.index.bytes_held == held
        expiry = self.store.expiry
        assert self.store.index.tombstones == len(expiry._tombstones) <= 2
        assert expiry._bytes == sum(len(entry.path) for entry in expiry._tombstones)
        oldest = self.store.index.oldest()
        assert oldest is None or oldest.revision > expiry.floor

    @invariant()
    def paths_are_sorted(self):
        assert self.store._paths.below(b"") == sorted(self.model)
        buried = sorted(entry.path for entry in self.store.expiry._tombstones)
        assert self.store.expiry.buried.below(b"") == buried


def model_test(implementation):
    machine = type("Machine", (StoreMachine,), {"implementation": implementation})
    case = machine.TestCase
    case.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
    return case


TestPlain = model_test(INDEXES["plain"])
if "compiled" in INDEXES:
    TestPlain = pytest.mark.slow(TestPlain)
    TestCompiled = model_test(INDEXES["compiled"])


@pytest.fixture(params=INDEXES)
def index(request):
    return INDEXES[request.param]()


@pytest.fixture
def store(index):
    return PulseStore(index, "instance", time.monotonic)


def test_expiry_for_a_tombstone_does_not_count_as_deletion(index):
    clock = Clock()
    store = PulseStore(index, "i", clock, StoreLimits(tombstones=1))
    store.put(b"/a/old", b"")
    clock.now += 30
    store.put(b"/b", b"")
    store.put(b"/a", b"")
    store.put(b"/gone", b"")
    store.delete(b"/gone")
    store.expiry._doomed_before = clock.now - 25
    assert (store.delete_path(b"/a"), store.expiry.expired, store.index.keys) == (1, 1, 1)


def test_a_path_is_its_segments_and_nothing_else(store):
    keys = [b"", b"/", b"//", b"a", b"/a", b"/a/", b"//a", b"/a/b", b"/a//b", b"a/b", b"/a/b/"]
    for key in keys:
        store.put(key, key)
    assert [store.get(key) for key in keys] == keys
    assert store.index.keys == len(keys)
    assert [entry.path for entry in store.pulses(b"/")] == sorted(keys)
    assert store.get(b"/a/b//") is None


def test_a_very_long_path_is_as_good_as_any(index):
    store = PulseStore(
        index, "instance", time.monotonic, StoreLimits(path_bytes=10**6, path_segments=10**6)
    )
    path = b"/s" * 20_000
    store.put(path, b"deep")
    store.put(b"/s/s", b"shallow")
    assert store.get(path) == b"deep"
    assert store.children(b"/s" * 19_999) == [b"s"]
    assert [entry.path for entry in store.changes(b"/s").entries] == [path, b"/s/s"]
    assert store.delete(path)
    assert store.children(b"/s/s") == []
    store.put(path, b"again")
    assert store.delete_path(b"/") == 2
    assert store.index.keys == 0


def test_a_path_is_checked_when_its_first_pulse_comes(store):
    store.set_limits(StoreLimits(path_segments=2))
    store.put(b"/a/b", b"1")
    with pytest.raises(LimitError, match="3 segments"):
        store.put(b"/a/b/c", b"")
    with pytest.raises(LimitError, match="control character"):
        store.put(b"/a\n", b"")
    store.set_limits(StoreLimits(path_segments=1))
    store.put(b"/a/b", b"2")
    assert store.children(b"/") == [b"a"]
    assert store.delete(b"/a/b")
    with pytest.raises(LimitError):
        store.put(b"/a/b", b"3")


def test_other_instance_or_revision_resets_the_page(store):
    for n in range(4):
        store.put(b"/%d" % n, b"")
    whole = [entry.path for entry in store.changes(b"/").entries]
    for after, instance, is_reset in [
        (2, "instance", False),
        (2, None, False),
        (2, "another", True),
        (0, "another", True),
        (5, "instance", True),
        (-7, "instance", False),
    ]:
        page = store.changes(b"/", after, instance=instance)
        assert page.reset == is_reset
        expected = whole if is_reset or after < 0 else whole[after:]
        assert [entry.path for entry in page.entries] == expected


def seconds(operation):
    best = 1e9
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(20):
            operation()
        best = min(best, time.perf_counter() - started)
    return best


def test_cost_follows_the_answer_not_the_store():
    small, large = (PulseStore(INDEXES["plain"](), "instance", time.monotonic) for _ in range(2))
    for store, topologies in [(small, 2), (large, 400)]:
        for topology in range(topologies):
            for node in range(100):
                store.put(b"/workerbeats/t%d/n%d" % (topology, node), b"pulse")
    for operation in [
        lambda store: store.children(b"/workerbeats/t1"),
        lambda store: list(store.pulses(b"/workerbeats/t1")),
        lambda store: store.changes(b"/", store.index.revision - 50),
        lambda store: store.changes(b"/workerbeats/t0"),
        lambda store: store.changes(b"/workerbeats/none"),
        lambda store: (
            store.put(b"/gone/1", b""),
            store.put(b"/gone/2", b""),
            store.delete_path(b"/gone"),
        ),
    ]:
        # Two hundred times the store; a tenth of that would already be a scan.
        assert seconds(lambda op=operation: op(large)) < 20 * seconds(
            lambda op=operation: op(small)
        )
