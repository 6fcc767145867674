"""Expiry of old pulses and old tombstones.

A deletion leaves a tombstone for readers of changes. Tombstones are bounded in number, bytes and
age; the oldest go first, and `floor` is the revision of the last dropped one. Every entry has a
revision above the floor: a pulse below it gets the next revision. So a reader that starts at 0
always ends above the floor. Every deletion moves a few pulses early, so that no single
deletion has to move them all.

Expiry checks the oldest changes up to the first young pulse, or until its time budget is spent, and
continues there the next time.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from stormkeeper.pacemaker.server.directory import Directory
from stormkeeper.pacemaker.server.pulse_index import PulseEntry, PulseIndex
from stormkeeper.pacemaker.server.store_limits import StoreLimits

#: Old pulses that every deletion moves at least.
_MOVES: Final = 8
#: Entries between two readings of the clock: some 20 microseconds.
_STRIDE: Final = 16

_BEHIND_SLASH: Final = b"0"


class Expiry:
    """Turns pulses into tombstones and drops tombstones; `limits` may be set at any time."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_doomed_before",
        "_index",
        "_passed",
        "_paths",
        "_tombstones",
        "expired",
        "floor",
        "limits",
    )

    def __init__(self, index: PulseIndex, clock: Callable[[], float], limits: StoreLimits) -> None:
        self.limits = limits
        #: Tombstones up to this revision may have been dropped.
        self.floor = 0
        self.expired = 0
        self._index = index
        self._clock = clock
        #: Sorted by revision.
        self._tombstones: dict[PulseEntry, None] = {}
        self._paths: list[bytes] = []
        self._bytes = 0
        #: Pulses received before this clock reading are too old.
        self._doomed_before = float("-inf")
        #: Only tombstones stand up to this entry, which had this revision.
        self._passed: tuple[PulseEntry, int] | None = None

    def bury(self, entry: PulseEntry) -> None:
        """Replace a pulse by a tombstone, and remove the pulse from the directory."""
        _home(entry).remove(entry)
        self._add_tombstone(entry)
        self._keep_bounds(1)

    def bury_detached(self, entries: Sequence[PulseEntry]) -> None:
        """Replace pulses, already removed from their directories, by tombstones."""
        for entry in entries:
            self._add_tombstone(entry)
        self._keep_bounds(len(entries))

    def revive(self, entry: PulseEntry) -> None:
        """Stop counting a tombstone whose path is about to get a pulse."""
        del self._tombstones[entry]
        self._bytes -= len(entry.path)
        del self._paths[bisect_left(self._paths, entry.path)]

    def newer_tombstones(self, revision: int) -> Iterator[PulseEntry]:
        """Iterate over the tombstones newer than `revision`, newest first."""
        for entry in reversed(self._tombstones):
            if entry.revision <= revision:
                break
            yield entry

    def names_below(self, top: bytes) -> list[bytes]:
        """Return the nonempty names directly below `top` that have tombstones.

        The cost grows with the names, not with the tombstones.
        """
        below, paths = top + b"/", self._paths
        names: set[bytes] = set()
        at = bisect_left(paths, below)
        while at < len(paths) and paths[at].startswith(below):
            name, slash, _ = paths[at][len(below) :].partition(b"/")
            names.add(name)
            # Paths below a name are adjacent, the name itself is not: ``/a``, ``/a!``, ``/a/b``.
            at = bisect_left(paths, below + name + _BEHIND_SLASH, at) if slash else at + 1
        return list(names - {b""})

    def expire(self, max_age: float, budget: float) -> int:
        """Delete pulses older than `max_age` seconds (0: none) and old tombstones.

        Stops after `budget` seconds, to continue with the next call. Returns the number of deleted
        pulses; after 0 the next call may wait for a second.
        """
        now = self._clock()
        deadline = now + budget
        before = self.expired
        if max_age > 0:
            self._doomed_before = now - max_age
            self._expire(deadline)
        self._forget_before(now - self.limits.tombstone_seconds, deadline)
        return self.expired - before

    def _expire(self, deadline: float) -> None:
        index = self._index
        entry = index.oldest()
        if self._passed is not None and self._passed[0].revision == self._passed[1]:
            entry = index.after(self._passed[0])
        looked = 0
        while entry is not None:
            looked += 1
            if looked % _STRIDE == 0 and self._clock() >= deadline:
                return
            following = index.after(entry)
            revision = 0 if following is None else following.revision
            if entry.details is None:
                self._passed = entry, entry.revision
            elif entry.changed < self._doomed_before:
                self.expired += 1
                self.bury(entry)
                if following is not None and following.revision != revision:
                    return  # `following` was moved to make room for the tombstone
            else:
                return
            entry = following

    def _forget_before(self, changed: float, deadline: float) -> None:
        oldest = next(iter(self._tombstones), None)
        if oldest is None or oldest.changed >= changed:
            return
        steps = 0
        for tombstone in list(self._tombstones):
            if tombstone.changed >= changed:
                return
            while tombstone.revision > 0:
                steps += 1
                if steps % _STRIDE == 0 and self._clock() >= deadline:
                    return
                self._give_up_oldest()

    def _keep_bounds(self, deleted: int) -> None:
        """Keep the bounds after `deleted` deletions, and move pulses for the next ones."""
        limits, tombstones = self.limits, self._tombstones
        if len(tombstones) > limits.tombstones // 2 or self._bytes > limits.tombstone_bytes // 2:
            # All pulses are moved before the number of tombstones doubles.
            each = max(_MOVES, 1 + 2 * self._index.keys // max(1, limits.tombstones))
            for _ in range(each * deleted):
                oldest = self._index.oldest()
                if oldest is None or oldest.details is None:
                    break
                self._give_up_oldest()
        while len(tombstones) > limits.tombstones or self._bytes > limits.tombstone_bytes:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        """Drop the oldest entry: forget a tombstone, move or bury a pulse."""
        index = self._index
        entry = index.oldest()
        if entry is None:
            return
        if entry.details is None:
            self.floor = entry.revision
            self.revive(entry)
            index.forget(entry)
        elif entry.changed < self._doomed_before:
            self.expired += 1
            _home(entry).remove(entry)
            self._add_tombstone(entry)
        else:
            index.renew(entry)

    def _add_tombstone(self, entry: PulseEntry) -> None:
        self._index.bury(entry, self._clock())
        self._tombstones[entry] = None
        self._bytes += len(entry.path)
        insort(self._paths, entry.path)


def _home(entry: PulseEntry) -> Directory:
    home = entry.home
    assert isinstance(home, Directory)
    return home
