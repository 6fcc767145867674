"""The tree of directories against sorted lists of segments."""

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.server.pulse_index import Directory, PulseEntry

segment_lists = st.lists(st.sampled_from([b"", b"a", b"a!", b"b"]), min_size=1, max_size=4)


def grown(paths):
    root, entries = Directory(), {}
    for segments in paths:
        home = root.make(segments[:-1])
        entry = entries[tuple(segments)] = PulseEntry(b"/".join(segments), b"", 0.0, home)
        home.add(entry)
    return root, entries


@given(st.lists(segment_lists, unique_by=tuple), st.data())
def test_a_walk_is_in_the_order_of_segments_from_anywhere(paths, data):
    root, entries = grown(paths)
    assert [entry.path.split(b"/") for entry in root.walk()] == sorted(paths)
    top = data.draw(segment_lists)
    directory = root.find(top)
    below = [path for path in sorted(paths) if path[: len(top)] == top and len(path) > len(top)]
    assert (directory is None) == (not below)
    if directory is not None:
        assert directory.pulses == len(below)
        assert [entry.path.split(b"/") for entry in directory.walk()] == below
        names = {path[len(top)] for path in below}
        assert sorted(directory.names()) == sorted(names - {b""})
    for segments in data.draw(st.permutations(paths)):
        entry = entries[tuple(segments)]
        entry.home.remove(entry)
    assert root.pulses == 0
    assert root.names() == []
    assert root.find([b"a"]) is None


@given(st.lists(segment_lists, unique_by=tuple), segment_lists)
def test_detached_pulses_are_gone_from_the_parents(paths, top):
    root, _ = grown(paths)
    directory = root.find(top)
    if directory is None:
        return
    detached = directory.detach(directory.pulses)
    rest = [path for path in sorted(paths) if path[: len(top)] != top or len(path) == len(top)]
    assert [entry.path.split(b"/") for entry in root.walk()] == rest
    assert len(detached) == len(paths) - len(rest)
    assert root.pulses == len(rest)
    assert root.find(top) is None


@given(st.lists(segment_lists, unique_by=tuple), segment_lists, st.integers(1, 5))
def test_directory_is_detached_piece_by_piece(paths, top, limit):
    root, _ = grown(paths)
    directory = root.find(top)
    if directory is None:
        return
    total = directory.pulses
    detached = []
    while directory.pulses:
        before = root.pulses
        piece = directory.detach(limit)
        assert len(piece) == min(limit, total - len(detached))
        assert root.pulses == before - len(piece)
        detached += [entry.path for entry in piece]
        left = [entry.path for entry in root.walk()]
        assert sorted(left + detached) == sorted(b"/".join(path) for path in paths)
    assert len(set(detached)) == total
    if top:
        assert root.find(top) is None
    else:
        assert (root.census.bytes, root.names()) == (0, [])
