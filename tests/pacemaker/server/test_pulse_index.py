"""Both pulse indexes against a dict and a list, and what they cost."""

import gc
import sys
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.indexes import INDEXES

paths = st.sampled_from([b"", b"/", b"/a", b"/a/b", b"/c", b"\xff"])
values = st.binary(max_size=8)


@pytest.fixture(params=INDEXES)
def index(request):
    return INDEXES[request.param]()


def followed(index, revision=0, limit=1_000):
    return [(e.revision, e.path, e.details) for e in index.since(revision, limit)]


class IndexMachine(RuleBasedStateMachine):
    """The model: for each path (details, revision, changed), in the order of revisions."""

    implementation = None

    def __init__(self):
        super().__init__()
        self.index = self.implementation()
        self.model = {}
        self.revision = self.received = 0
        self.now = 0.5

    def change(self, path, details):
        self.model.pop(path, None)
        self.revision += 1
        self.model[path] = (details, self.revision, self.now)

    def held(self):
        return sum(len(p) + len(e[0]) for p, e in self.model.items() if e[0] is not None)

    @rule(path=paths, details=values, max_bytes=st.integers(0, 40))
    def replace(self, path, details, max_bytes):
        self.index.max_bytes = max_bytes
        self.now += 1
        old = self.model.get(path, (None,))[0]
        is_allowed = old is not None and (
            len(details) <= len(old)
            or max_bytes == 0
            or self.held() - len(old) + len(details) <= max_bytes
        )
        assert self.index.replace(path, details, self.now) is is_allowed
        if is_allowed:
            self.received += 1
            self.change(path, details)

    @rule(path=paths, details=values)
    def add(self, path, details):
        self.now += 1
        if self.model.get(path, (None,))[0] is not None:
            with pytest.raises(ValueError, match="already"):
                self.index.add(path, details, self.now)
            return
        entry = self.index.add(path, details, self.now)
        self.received += 1
        self.change(path, details)
        assert entry is self.index.entry(path)

    @rule(path=paths)
    def bury(self, path):
        self.now += 1
        entry = self.index.entry(path)
        if entry is None:
            return
        if entry.details is None:
            with pytest.raises(ValueError, match="no pulse"):
                self.index.bury(entry, self.now)
            return
        self.index.bury(entry, self.now)
        self.change(path, None)

    @rule(path=paths)
    def forget(self, path):
        entry = self.index.entry(path)
        if entry is None:
            return
        if entry.details is not None:
            with pytest.raises(ValueError, match="no tombstone"):
                self.index.forget(entry)
            return
        self.index.forget(entry)
        del self.model[path]
        assert (entry.revision, self.index.after(entry)) == (0, None)
        assert self.index.newer(entry, 9) == []
        with pytest.raises(ValueError, match="no tombstone"):
            self.index.forget(entry)

    @rule(path=paths)
    def renew(self, path):
        entry = self.index.entry(path)
        if entry is not None:
            self.index.renew(entry)
            details, _, changed = self.model.pop(path)
            self.revision += 1
            self.model[path] = (details, self.revision, changed)

    @rule(revision=st.integers(-1, 40), limit=st.integers(-1, 8))
    def look(self, revision, limit):
        expected = [(e[1], path, e[0]) for path, e in self.model.items() if e[1] > revision]
        assert followed(self.index, revision, limit) == expected[: max(limit, 0)]

    @invariant()
    def it_is_as_the_model(self):
        index = self.index
        details = [entry[0] for entry in self.model.values()]
        assert index.tombstones == details.count(None)
        assert index.keys == len(details) - index.tombstones
        assert (index.revision, index.pulses_received) == (self.revision, self.received)
        assert index.bytes_held == self.held()
        walked, entry = [], index.oldest()
        while entry is not None:
            walked.append(entry.path)
            assert index.entry(entry.path) is entry
            assert index.get(entry.path) == entry.details
            seen = (entry.details, entry.revision, entry.changed)
            assert seen == self.model[entry.path]
            newer = index.newer(entry, 3)
            assert [one.path for one in newer] == list(self.model)[len(walked) :][:3]
            entry = index.after(entry)
            assert entry is next(iter(newer), None)
        assert walked == list(self.model)
        assert index.get(b"never") is index.entry(b"never") is None


def model_test(implementation):
    machine = type("Machine", (IndexMachine,), {"implementation": implementation})
    case = machine.TestCase
    case.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
    return case


TestPlain = model_test(INDEXES["plain"])
if "compiled" in INDEXES:
    TestPlain = pytest.mark.slow(TestPlain)
    TestCompiled = model_test(INDEXES["compiled"])


def test_the_key_and_the_entry_share_one_path(index):
    path = bytes(bytearray(b"/a"))
    assert index.add(path, b"1", 0.0).path is path
    assert index.replace(bytes(bytearray(b"/a")), b"2", 0.0)
    assert index.entry(b"/a").path is path


def test_values_are_kept_as_they_are(index):
    for n, details in enumerate([b"", b"\0\xff", bytes(100_000)]):
        index.add(b"%d" % n, details, 0.0)
        assert index.get(b"%d" % n) == details
        assert index.replace(b"%d" % n, details, 0.0)


def test_a_limit_that_is_lowered_stops_growth_and_nothing_else(index):
    index.add(b"/a", bytes(100), 0.0)
    index.max_bytes = 50
    assert index.replace(b"/a", bytes(100), 0.0)
    assert index.replace(b"/a", bytes(99), 0.0)
    assert not index.replace(b"/a", bytes(100), 0.0)
    assert index.replace(b"/a", bytes(10), 0.0)
    assert index.replace(b"/a", bytes(48), 0.0)
    assert not index.replace(b"/a", bytes(49), 0.0)


def test_dropped_entries_are_freed(index):
    details = bytes(50)
    before = sys.getrefcount(details)
    for round_ in range(3):
        for n in range(2_000):
            index.add(b"/%d" % n, details, 0.0)
        assert sys.getrefcount(details) == before + 2_000
        entries = index.since(0, 10_000)
        for entry in entries:
            index.bury(entry, 0.0)
        assert sys.getrefcount(details) == before, round_
        for entry in entries:
            index.forget(entry)
        del entry, entries
    assert (index.keys, index.tombstones, index.bytes_held, index.oldest()) == (0, 0, 0, None)


def test_index_with_many_entries_is_freed(index):
    # Entries hold each other: freed one by the other, they would need a stack as deep as the list.
    for n in range(200_000):
        index.add(b"%d" % n, b"", 0.0)
    assert index.revision == 200_000
    del index
    gc.collect()


@pytest.mark.parametrize("after", [20, 99_960])
def test_reading_near_either_end_costs_the_distance_from_it(index, after):
    for n in range(100_000):
        index.add(b"%d" % n, b"", 0.0)

    def seconds(revision):
        best = 1e9
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(20):
                assert len(index.since(revision, 5)) == 5
            best = min(best, time.perf_counter() - started)
        return best

    assert seconds(after) * 50 < seconds(50_000)
