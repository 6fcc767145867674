"""How pages are cut, and what is looked at for them."""

import pytest

from stormkeeper.pacemaker.server import pulse_store
from stormkeeper.pacemaker.server.pulse_index import SortedPaths
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.store_limits import StoreLimits
from support.indexes import INDEXES


@pytest.fixture(params=INDEXES)
def store(request):
    limits = StoreLimits(store_bytes=0)
    return PulseStore(INDEXES[request.param](), "instance", lambda: 0.0, limits)


def paths(page):
    return [entry.path for entry in page.entries]


def test_a_pulse_too_large_for_any_answer_is_left_out(store):
    store.put(b"/large", bytes(5_000))
    store.put(b"/small", b"")
    page = store.changes(b"/", max_bytes=5_000)
    assert (paths(page), page.more, page.next) == ([b"/small"], False, 2)


@pytest.mark.parametrize("path", [b"/", b"/a"])
def test_page_is_a_mebibyte_and_a_larger_pulse_stands_alone(store, path):
    sizes = [400_000, 400_000, 400_000, 3_000_000, 10, 3_000_000, 3_000_000, 1_000_000, 10]
    for n, size in enumerate(sizes):
        store.put(b"/a/%d" % n, bytes(size))
    expected = [[0, 1], [2], [3], [4], [5], [6], [7, 8]]
    found, after, more = [], 0, True
    while more:
        page = store.changes(path, after)
        found.append([int(entry.path[3:]) for entry in page.entries])
        after, more = page.next, page.more
    assert found == expected


def test_a_page_without_values_has_no_room_for_them_to_take(store):
    for n in range(5):
        store.put(b"/a/%d" % n, bytes(1_000_000))
    assert len(store.changes(b"/a").entries) == 1
    assert len(store.changes(b"/a", values=False).entries) == 5
    for n in range(pulse_store.MAX_CHANGES):
        store.put(b"/b/%d" % n, b"")
    page = store.changes(b"/", values=False)
    assert (len(page.entries), page.more) == (pulse_store.MAX_CHANGES, True)
    assert len(store.changes(b"/", page.next, values=False).entries) == 5


def test_a_page_that_is_just_full_is_the_last(store):
    for n in range(3):
        store.put(b"/%d" % n, b"")
    assert store.changes(b"/", limit=3).more is False
    page = store.changes(b"/", limit=2)
    assert (page.more, page.next) == (True, page.entries[-1].revision)


def test_page_checks_a_bounded_number_of_entries(store, monkeypatch):
    for n in range(100):
        store.put(b"/other/%03d" % n, b"")
    for n in range(90):
        store.put(b"/wanted/%03d" % n, b"")
    monkeypatch.setattr(pulse_store, "MAX_LOOKED_AT", 20)
    after, pages = 0, []
    while not pages or pages[-1].more:
        pages.append(store.changes(b"/wanted", after))
        assert pages[-1].next > after
        after = pages[-1].next
    assert len(pages) > 4
    assert sum(map(len, map(paths, pages))) == 90


def test_a_page_without_values_looks_at_a_bounded_part_too(store, monkeypatch):
    for n in range(100):
        store.put(b"/other/%03d" % n, b"")
    for n in range(90):
        store.put(b"/wanted/%03d" % n, b"")
    store.put(b"/wanted", b"")
    monkeypatch.setattr(pulse_store, "MAX_LOOKED_AT", 20)
    after, pages = 0, []
    while not pages or pages[-1].more:
        pages.append(store.changes(b"/wanted", after, limit=7, values=False))
        assert pages[-1].next > after
        after = pages[-1].next
    assert [len(page.entries) for page in pages] == [0, 0, 0, 0, 5, *[7] * 12, 2]


@pytest.mark.parametrize("path", [b"/", b"/a"])
def test_long_paths_fill_a_page_without_values(store, path):
    store.set_limits(StoreLimits(path_bytes=500_000))
    for n in range(5):
        store.put(b"/a/%d" % n + bytes(48 + n for _ in range(400_000)), b"value")
    found, after, more = [], 0, True
    while more:
        page = store.changes(path, after, values=False)
        found.append([int(entry.path[3:4]) for entry in page.entries])
        after, more = page.next, page.more
    assert found == [[0, 1], [2, 3], [4]]


def test_the_changes_of_a_small_part_are_looked_for_in_that_part(store, monkeypatch):
    for n in range(1_000):
        store.put(b"/w/t%d/n%d" % (n % 50, n), b"v")
    for n in range(60):
        store.delete(b"/w/t%d/n%d" % (n % 50, n))
    store.put(b"/w/t7", b"itself")
    expected = [entry.path for entry in store.index.since(0, 2_000) if b"/w/t7" in entry.path]
    expected = [path for path in expected if path == b"/w/t7" or path.startswith(b"/w/t7/")]
    assert len(expected) == 21
    with monkeypatch.context() as patched:
        patched.setattr(PulseStore, "_batches", lambda *_: pytest.fail("looked at all"))
        for after in (0, 600):
            page = store.changes(b"/w/t7/", after)
            wanted = [path for path in expected if store.index.entry(path).revision > after]
            assert paths(page) == wanted
    found, after, more = [], 0, True
    while more:
        page = store.changes(b"/w/t7", after, limit=4)
        found += paths(page)
        after, more = page.next, page.more
    assert found == expected
    with monkeypatch.context() as patched:
        patched.setattr(SortedPaths, "below", lambda *_: pytest.fail("looked at the part"))
        assert paths(store.changes(b"/w/t7", store.index.revision - 3)) == [b"/w/t7"]
        assert len(paths(store.changes(b"/w", 0))) == 1_001


def test_next_page_begins_at_the_end_of_the_last(store, monkeypatch):
    for n in range(100):
        store.put(b"/%d" % n, b"")
    page = store.changes(b"/", limit=50)
    store.put(b"/49", b"again")  # the last of the page: it has to be looked for
    assert paths(store.changes(b"/", page.next, limit=2)) == [b"/50", b"/51"]
    page = store.changes(b"/", limit=50)
    monkeypatch.setattr(store, "index", Unsearched(store.index))
    assert paths(store.changes(b"/", page.next, limit=2)) == [b"/51", b"/52"]


class Unsearched:
    """An index in which nothing may be looked for."""

    def __init__(self, index):
        self._index = index

    def __getattr__(self, name):
        assert name != "since"
        return getattr(self._index, name)


def test_the_ends_of_pages_that_are_remembered_are_few(store):
    for n in range(1_000):
        store.put(b"/%d" % n, b"")
    after = 0
    for _ in range(400):
        after = store.changes(b"/", after, limit=2).next
    assert len(store._page_ends) <= 64
