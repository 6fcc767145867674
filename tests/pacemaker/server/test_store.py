"""The store against a plain dict, its structure, and what its operations cost."""

import gc
import sys
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stormkeeper.pacemaker.server import store as store_module
from stormkeeper.pacemaker.server.store import PulseStore
from stormkeeper.pacemaker.wire import Message, Pulse, encode

paths = st.lists(st.sampled_from(["", "a", "a\u6e2c"]), min_size=1, max_size=3).map("/".join)
values = st.binary(max_size=20)
prefixes = paths | st.just("/") | paths.map(lambda path: path + "/")


def is_within(path, prefix):
    top = prefix.rstrip("/")
    return not top or path == top or path.startswith(top + "/")


class Reader:
    """Follows the changes of a subtree and keeps a picture of it."""

    def __init__(self, path, limit, max_bytes):
        self.path, self.limit, self.max_bytes = path, limit, max_bytes
        self.after, self.instance, self.picture = 0, None, {}

    def read(self, store, clock):
        page = store.changes(
            self.path, self.after, self.limit, max_bytes=self.max_bytes, instance=self.instance
        )
        if page.reset:
            self.picture.clear()
        last = 0 if page.reset else self.after
        for change in page.changes:
            assert last < change.revision <= page.revision
            assert is_within(change.path, self.path)
            last = change.revision
            if change.details is None:
                self.picture.pop(change.path, None)
            else:
                self.picture[change.path] = (change.details, clock.now - change.age_ms / 1000)
        assert len(page.changes) <= self.limit or self.limit <= 0
        frame = encode(Message(101, 1, changes=page), max_size=self.max_bytes)
        assert len(frame) - 4 <= self.max_bytes
        assert page.revision == store.revision
        assert page.instance == store.instance
        assert page.next == page.revision or page.more
        self.after, self.instance = page.next, page.instance
        return page.more


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class StoreMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.readers = []
        self.new_store("i")

    def new_store(self, instance):
        self.store = PulseStore(self.clock, instance, max_tombstones=2)
        self.model = {}
        self.received = 0

    @initialize(path=prefixes)
    def a_reader_of_everything(self, path):
        self.readers = [Reader("/", 3, 10_000), Reader(path, 1, 160)]

    @rule(path=prefixes, limit=st.integers(-1, 4), max_bytes=st.sampled_from([160, 200, 10_000]))
    def a_reader_comes(self, path, limit, max_bytes):
        self.readers = [*self.readers[-4:], Reader(path, limit, max_bytes)]

    @rule(writes=st.lists(st.tuples(st.sampled_from("ppdDt"), prefixes, values), max_size=6))
    def write(self, writes):
        """Put, delete, delete a path with all below, or let time pass."""
        for verb, path, details in writes:
            if verb == "p":
                revision = self.store.revision
                self.store.put(path, details)
                self.received += 1
                self.model[path] = (details, self.clock.now)
                assert self.store.revision == revision + 1
            elif verb == "d":
                assert self.store.delete(path) == (self.model.pop(path, None) is not None)
            elif verb == "D":
                doomed = [key for key in self.model if is_within(key, path)]
                assert self.store.delete_path(path) == len(doomed)
                for key in doomed:
                    del self.model[key]
            else:
                self.clock.now += len(details)

    @rule(path=prefixes)
    def look(self, path):
        assert self.store.get(path) == self.model.get(path, (None,))[0]
        below = path.rstrip("/") + "/"
        names = {key[len(below) :].split("/")[0] for key in self.model if key.startswith(below)}
        children = self.store.children(path)
        assert len(children) == len(set(children))
        assert set(children) == names - {""}
        expected = {Pulse(key, v) for key, (v, _) in self.model.items() if is_within(key, path)}
        pulses = list(self.store.pulses(path))
        assert len(pulses) == len(expected)
        assert set(pulses) == expected

    @rule(which=st.lists(st.integers(0, 5), max_size=6))
    def readers_read_a_page(self, which):
        for number in which:
            self.readers[number % len(self.readers)].read(self.store, self.clock)

    @rule(number=st.integers(0, 5))
    def a_reader_catches_up(self, number):
        reader = self.readers[number % len(self.readers)]
        pages = 0
        while reader.read(self.store, self.clock):
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
        assert self.store.keys == len(self.model)
        assert self.store.pulses_received == self.received

    @invariant()
    def no_node_is_there_for_nothing(self):
        stack, pulses = [self.store._root], 0
        while stack:
            node = stack.pop()
            pulses += node.details is not None
            assert node.children != {}
            if node.parent is not None:
                assert node.details is not None or node.children
                assert node.parent.children[node.segment] is node
            stack.extend((node.children or {}).values())
        assert pulses == len(self.model)
        log = self.store._log
        assert log._live == pulses + len(log._tombstones)
        assert len(log._tombstones) <= 2
        assert log._characters == sum(map(len, log._tombstones))


StoreMachine.TestCase.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)
TestStore = StoreMachine.TestCase


@pytest.fixture
def store():
    return PulseStore(time.monotonic, "instance")


def test_a_path_is_its_segments_and_nothing_else(store):
    keys = ["", "/", "//", "a", "/a", "/a/", "//a", "/a/b", "/a//b", "a/b", "/a/b/"]
    for key in keys:
        store.put(key, key.encode())
    assert [store.get(key) for key in keys] == [key.encode() for key in keys]
    assert store.keys == len(keys)
    assert sorted(pulse.id for pulse in store.pulses("/")) == sorted(keys)
    assert store.get("/a/b//") is None


def test_a_very_long_path_is_as_good_as_any(store):
    path = "/s" * 100_000
    store.put(path, b"deep")
    store.put("/s/s", b"shallow")
    assert store.get(path) == b"deep"
    assert store.children("/s" * 99_999) == ["s"]
    assert [change.path for change in store.changes("/s").changes] == [path, "/s/s"]
    assert {pulse.id for pulse in store.pulses("/")} == {path, "/s/s"}
    assert store.delete(path)
    assert store.children("/s/s") == []
    store.put(path, b"again")
    assert store.delete_path("/") == 2
    assert store.keys == 0


def test_a_deleted_subtree_is_given_back_at_once(store):
    gc.collect()
    gc.disable()  # what is left then is freed by its counts alone
    try:
        store.delete_path("/never")
        before = sys.getallocatedblocks()
        for n in range(300):
            store.put(f"/workerbeats/topology/{n}/" + "d/" * 20, b"pulse")
        assert sys.getallocatedblocks() > before + 10_000
        store.delete_path("/workerbeats")
        # A tombstone is kept for each of them: some blocks, not a tree.
        assert sys.getallocatedblocks() < before + 300 * 10
    finally:
        gc.enable()


def test_equal_segments_are_one_object(store):
    for topology in ("one", "two"):
        store.put(f"/workerbeats/{topology}/node-6700", b"")
    leaves = [store._find(f"/workerbeats/{topology}/node-6700") for topology in ("one", "two")]
    assert leaves[0].segment is leaves[1].segment


def test_other_instances_and_other_times_are_answered_from_the_beginning(store):
    for n in range(4):
        store.put(f"/{n}", b"")
    whole = store.changes("/").changes
    for after, instance, is_reset in [
        (2, "instance", False),
        (2, None, False),
        (2, "another", True),
        (0, "another", True),
        (5, "instance", True),
        (-7, "instance", False),
    ]:
        page = store.changes("/", after, instance=instance)
        assert page.reset == is_reset
        expected = whole if is_reset or after < 0 else whole[after:]
        assert [change[:3] for change in page.changes] == [change[:3] for change in expected]


def test_a_pulse_too_large_for_any_answer_is_left_out(store):
    store.put("/large", bytes(5_000))
    store.put("/small", b"")
    page = store.changes("/", max_bytes=5_000)
    assert [change.path for change in page.changes] == ["/small"]
    assert (page.more, page.next) == (False, 2)


def test_one_scan_looks_at_a_bounded_part_and_the_next_goes_on(store, monkeypatch):
    for n in range(100):
        store.put(f"/other/{n:03}", b"")
    store.put("/wanted", b"")
    monkeypatch.setattr(store_module, "MAX_SCAN_CHARACTERS", 200)
    after, pages = 0, []
    while not pages or pages[-1].more:
        pages.append(store.changes("/wanted", after))
        assert pages[-1].next > after
        after = pages[-1].next
    assert len(pages) > 4
    assert [change.path for page in pages for change in page.changes] == ["/wanted"]


def test_a_page_that_is_just_full_is_the_last(store):
    for n in range(3):
        store.put(f"/{n}", b"")
    assert store.changes("/", limit=3).more is False
    page = store.changes("/", limit=2)
    assert (page.more, page.next) == (True, page.changes[-1].revision)


def test_pulses_expire_by_their_age_and_leave_tombstones():
    clock = Clock()
    store = PulseStore(clock, "instance", max_tombstones=4)
    store.put("/a/old", b"")
    clock.now += 10
    store.put("/a/young", b"")
    assert store.expire(10.0) == 0
    clock.now += 1
    assert store.expire(10.0) == 1
    assert store.children("/a") == ["young"]
    assert [change[:2] for change in store.changes("/").changes][1:] == [("/a/old", None)]
    clock.now += 60
    assert store.expire(10.0) == 1
    assert store._root.children is None


def test_no_more_pulses_expire_at_a_time_than_asked_for():
    clock = Clock()
    store = PulseStore(clock, "instance")
    for n in range(10):
        store.put(f"/{n}", b"")
    clock.now += 1
    assert [store.expire(0.5, limit=4) for _ in range(4)] == [4, 4, 2, 0]


def test_a_pulse_moved_to_the_end_of_the_log_expires_too():
    clock = Clock()
    store = PulseStore(clock, "instance", max_tombstones=4)
    store.put("/silent", b"")
    for n in range(8):
        store.put(f"/gone/{n}", b"")
    for n in range(5):
        if n == 4:
            clock.now += 5
            store.put("/beating", b"")
        store.delete(f"/gone/{n}")
    assert store._find("/silent").revision > store._find("/beating").revision
    for _ in range(21):
        clock.now += 1
        store.put("/beating", b"")
        store.expire(10.0)
    assert [pulse.id for pulse in store.pulses("/")] == ["/beating"]


def seconds(operation):
    best = 1e9
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(20):
            operation()
        best = min(best, time.perf_counter() - started)
    return best


def test_cost_follows_the_answer_not_the_store():
    small, large = (PulseStore(time.monotonic, "instance") for _ in range(2))
    for store, topologies in [(small, 2), (large, 400)]:
        for topology in range(topologies):
            for node in range(100):
                store.put(f"/workerbeats/t{topology}/n{node}", b"pulse")
    for operation in [
        lambda store: store.children("/workerbeats/t1"),
        lambda store: list(store.pulses("/workerbeats/t1")),
        lambda store: store.changes("/", store.revision - 50),
        lambda store: (
            store.put("/gone/1", b""),
            store.put("/gone/2", b""),
            store.delete_path("/gone"),
        ),
    ]:
        # Two hundred times the store; a tenth of that would already be a scan.
        assert seconds(lambda op=operation: op(large)) < 20 * seconds(
            lambda op=operation: op(small)
        )
