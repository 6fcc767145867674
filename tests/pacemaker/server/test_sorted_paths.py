"""Sorted paths against a set."""

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.server.pulse_index import SortedPaths

segment_lists = st.lists(st.sampled_from([b"", b"a", b"a!", b"b"]), min_size=1, max_size=4)
paths = segment_lists.map(b"/".join)
tops = paths.map(lambda path: path.rstrip(b"/"))


def sorted_paths(given_paths):
    made = SortedPaths()
    for path in given_paths:
        made.add(path)
    return made


def below(given_paths, top):
    return sorted(path for path in given_paths if not top or path.startswith(top + b"/"))


@given(st.lists(paths, unique=True), tops, st.data())
def test_paths_below_a_path_are_found(added, top, data):
    made = sorted_paths(added)
    for path in data.draw(st.lists(st.sampled_from(added), unique=True)) if added else ():
        made.remove(path)
        added = [other for other in added if other != path]
    assert made.below(b"") == sorted(added)
    assert made.below(top) == below(added, top)
    assert made.count_below(top) == len(below(added, top))


def names_below(given_paths, top):
    start = top + b"/"
    names = {path[len(start) :].split(b"/")[0] for path in given_paths if path.startswith(start)}
    return sorted(names - {b""})


@given(st.lists(paths, unique=True), tops, tops)
def test_names_are_directly_below_a_path(added, top, other):
    made = SortedPaths()
    for number, path in enumerate(added, 1):
        made.add(path)
        for each in (top, top, other):
            assert sorted(made.names_below(each)) == names_below(added[:number], each)
    for number, path in enumerate(added, 1):
        made.remove(path)
        assert sorted(made.names_below(top)) == names_below(added[number:], top)


@given(st.lists(paths, unique=True), tops, st.integers(0, 5))
def test_paths_are_taken_piece_by_piece(added, top, limit):
    made, left, taken = sorted_paths(added), below(added, top), []
    while piece := made.take_below(top, limit):
        assert not set(piece) & set(made.below(top))
        assert len(piece) == min(limit or len(left), len(left) - len(taken))
        taken += piece
    assert sorted(taken) == left
    assert made.below(b"") == sorted(set(added) - set(left))
    assert made.names_below(top) == []
