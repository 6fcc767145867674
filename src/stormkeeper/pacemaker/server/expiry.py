"""Drops pulses that are too old, and tombstones that nobody needs any more.

The rules that hold here:

- A deletion leaves a tombstone for those who read changes. Tombstones are bounded in number, in
  bytes and in age; the oldest go first, and `floor` rises to the last that went.
- No change is older than the floor. A pulse that would be is given the next revision, as if it had
  been sent again. So a reader that begins from nothing always gets a revision above the floor to go
  on from. A few pulses are moved at every deletion, before it is urgent, so that no single deletion
  has to move them all.
- Expiry looks at the oldest changes, up to the first pulse that is young enough, and stops when
  its time is over. The next time it goes on from there.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from stormkeeper.pacemaker.server.directory import Directory
from stormkeeper.pacemaker.server.pulse_index import PulseEntry, PulseIndex
from stormkeeper.pacemaker.server.store_limits import StoreLimits

#: Old pulses that every deletion moves at least, so that older tombstones can be forgotten.
_MOVES: Final = 8
#: Entries between two looks at the clock: some 20 microseconds.
_STRIDE: Final = 16

#: The byte that comes after ``/``.
_BEHIND_SLASH: Final = b"0"


class Expiry:
    """Turns pulses into tombstones, and forgets tombstones.

    Parameters
    ----------
    index
        What is kept.
    clock
        Returns seconds; monotonic.
    limits
        How many tombstones are kept, and for how long; may be set at any time.
    """

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
        #: Deletions up to this revision may have been forgotten.
        self.floor = 0
        #: Pulses deleted because of their age.
        self.expired = 0
        self._index = index
        self._clock = clock
        #: In the order of their revisions.
        self._tombstones: dict[PulseEntry, None] = {}
        #: Their paths, sorted.
        self._paths: list[bytes] = []
        self._bytes = 0
        #: Pulses that were last received before that have been found too old.
        self._doomed_before = float("-inf")
        #: Up to here expiry has found tombstones only: an entry, and its revision then.
        self._passed: tuple[PulseEntry, int] | None = None

    def bury(self, entry: PulseEntry) -> None:
        """Delete a pulse: its directory no longer lists it, a tombstone takes its place."""
        _home(entry).remove(entry)
        self._add_tombstone(entry)
        self._keep_bounds(1)

    def bury_detached(self, entries: Sequence[PulseEntry]) -> None:
        """Delete pulses that no directory lists any more."""
        for entry in entries:
            self._add_tombstone(entry)
        self._keep_bounds(len(entries))

    def revive(self, entry: PulseEntry) -> None:
        """Count a tombstone no longer: its path is about to hold a pulse."""
        del self._tombstones[entry]
        self._bytes -= len(entry.path)
        del self._paths[bisect_left(self._paths, entry.path)]

    def newer_tombstones(self, revision: int) -> Iterator[PulseEntry]:
        """Iterate over the tombstones newer than `revision`, the newest first."""
        for entry in reversed(self._tombstones):
            if entry.revision <= revision:
                break
            yield entry

    def names_below(self, top: bytes) -> list[bytes]:
        """Return the names directly below `top` at or below which there are tombstones, each once.

        It costs the names, not the tombstones. Empty ones are left out, as in a listing.
        """
        below, paths = top + b"/", self._paths
        names: set[bytes] = set()
        at = bisect_left(paths, below)
        while at < len(paths) and paths[at].startswith(below):
            name, slash, _ = paths[at][len(below) :].partition(b"/")
            names.add(name)
            # What is below a name lies together; not so the name itself: ``/a``, ``/a!``, ``/a/b``.
            at = bisect_left(paths, below + name + _BEHIND_SLASH, at) if slash else at + 1
        return list(names - {b""})

    def expire(self, max_age: float, budget: float) -> int:
        """Delete pulses received more than `max_age` seconds ago, and forget old tombstones.

        Parameters
        ----------
        max_age
            In seconds; 0: no pulse is too old.
        budget
            Seconds of work after which it stops, to go on when it is called again.

        Returns
        -------
        int
            How many pulses were deleted. After 0 nothing more is due, or all the time went into
            passing tombstones by, once: in either case it is time enough to ask in a second.
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
                    return  # moved, to make room for the tombstone: what follows is elsewhere
            else:
                return
            entry = following

    def _forget_before(self, changed: float, deadline: float) -> None:
        """Forget the tombstones of deletions before `changed`."""
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
        """Make room, after so many deletions, and for those to come."""
        limits, tombstones = self.limits, self._tombstones
        if len(tombstones) > limits.tombstones // 2 or self._bytes > limits.tombstone_bytes // 2:
            # All pulses are moved by the time that there are twice as many tombstones.
            each = max(_MOVES, 1 + 2 * self._index.keys // max(1, limits.tombstones))
            for _ in range(each * deleted):
                oldest = self._index.oldest()
                if oldest is None or oldest.details is None:
                    break
                self._give_up_oldest()
        while len(tombstones) > limits.tombstones or self._bytes > limits.tombstone_bytes:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        """Take the oldest entry out of the way: forget a tombstone, move or bury a pulse."""
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
