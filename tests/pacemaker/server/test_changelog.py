"""The log keeps order, forgets in bounds, and never strands a reader who begins from nothing."""

from stormkeeper.pacemaker.server import changelog
from stormkeeper.pacemaker.server.changelog import ChangeLog


class Leaf:
    def __init__(self, name):
        self.name, self.revision, self.changed, self.details = name, 0, 0.0, b"v"

    def path(self):
        return self.name


def followed(log, after=0):
    return [(entry.revision, entry.path(), entry.details) for entry in log.since(after)]


def test_a_path_counts_once_at_its_newest_change():
    log = ChangeLog()
    a, b = Leaf("a"), Leaf("b")
    for entry in (a, b, a):
        log.record(entry)
    assert followed(log) == [(2, "b", b"v"), (3, "a", b"v")]
    assert followed(log, 2) == [(3, "a", b"v")]
    assert followed(log, 3) == []


def test_a_tombstone_stands_until_the_path_holds_a_pulse_again():
    log = ChangeLog()
    a = Leaf("a")
    log.record(a)
    log.bury(a, now=5.0)
    assert followed(log) == [(2, "a", None)]
    assert next(log.since(0)).changed == 5.0
    log.exhume("a")
    log.exhume("never there")
    log.record(a)
    assert followed(log) == [(3, "a", b"v")]


def test_stale_entries_do_not_pile_up():
    log = ChangeLog()
    leaves = [Leaf(str(n)) for n in range(100)]
    for n in range(100_000):
        log.record(leaves[n % 100])
    assert len(log._entries) == len(log._revisions) < 2_000
    assert [path for _, path, _ in followed(log)] == [str(n) for n in range(100)]
    assert log.revision == 100_000


def test_tombstones_are_bounded_in_number_and_in_size():
    for log, name in [
        (ChangeLog(max_tombstones=10), "{}"),
        (ChangeLog(max_characters=10_000), "{:01000}"),
    ]:
        for n in range(1_000):
            leaf = Leaf(name.format(n))
            log.record(leaf)
            log.bury(leaf, now=0.0)
            assert len(log._tombstones) <= 10
            assert log._characters == sum(map(len, log._tombstones))
        assert len(followed(log)) == len(log._tombstones) > 0
        assert log.floor == followed(log)[0][0] - 2  # a pulse and its tombstone each


def test_what_is_older_than_a_forgotten_tombstone_moves_to_the_end():
    log = ChangeLog(max_tombstones=4)
    old = [Leaf("old 1"), Leaf("old 2")]
    for leaf in old:
        log.record(leaf)
    for n in range(5):
        leaf = Leaf(f"deleted {n}")
        log.record(leaf)
        log.bury(leaf, now=0.0)
    assert log.floor > 2
    assert [path for _, path, _ in followed(log)[-2:]] == ["old 1", "old 2"]
    assert all(revision > log.floor for revision, _, _ in followed(log))
    assert changelog.MAX_TOMBSTONES > 4
