"""The order in which paths changed, for readers who ask what changed since a revision.

The rules that hold here:

- Every change gets the next revision; a path counts once, at its newest change.
- The log is append-only. An entry whose path changed again is stale: it is passed over, and
  dropped when the stale ones outnumber the others, so a change costs constant time on average.
- Tombstones are bounded in number and in memory. When the oldest are dropped, `floor` rises to the
  last of them, and what else is older than it moves to the end of the log as if it had changed
  again. So nothing in the log is older than the floor, and a reader that begins from nothing is
  always given a revision above it to go on from.
"""

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile
from typing import Final, Protocol

#: Deleted paths that are remembered: twice the workers of the largest clusters we know of.
MAX_TOMBSTONES: Final = 16_384
#: Characters of the paths in all tombstones, should somebody delete very long paths.
MAX_TOMBSTONE_CHARACTERS: Final = 4_194_304
#: Stale entries that are not worth a compaction.
_SLACK: Final = 1_024


class Entry(Protocol):
    """What the log keeps: a path that holds a pulse, or the tombstone of one."""

    #: The entry's place in the log; 0 while it is not in it.
    revision: int
    #: The clock, in seconds, when the pulse was received or the path was deleted.
    changed: float

    @property
    def details(self) -> bytes | None:
        """The value; None for a tombstone."""

    def path(self) -> str:
        """Return the whole path."""


class Tombstone:
    """Remembers that a path was deleted."""

    __slots__ = ("_path", "changed", "revision")

    details: Final = None

    def __init__(self, path: str, changed: float) -> None:
        self._path = path
        self.changed = changed
        self.revision = 0

    def path(self) -> str:
        """Return the path that was deleted."""
        return self._path


class ChangeLog:
    """Entries in the order of their revisions, the oldest first."""

    __slots__ = (
        "_characters",
        "_entries",
        "_live",
        "_max_characters",
        "_max_tombstones",
        "_revisions",
        "_tombstones",
        "floor",
        "revision",
    )

    def __init__(
        self,
        max_tombstones: int = MAX_TOMBSTONES,
        max_characters: int = MAX_TOMBSTONE_CHARACTERS,
    ) -> None:
        #: The newest revision given; the first one is 1.
        self.revision = 0
        #: Deletions up to this revision may have been forgotten.
        self.floor = 0
        self._entries: list[Entry] = []
        #: The revision at which each of `_entries` was put there.
        self._revisions = array("q")
        self._live = 0
        #: By path, the oldest first.
        self._tombstones: OrderedDict[str, Tombstone] = OrderedDict()
        self._characters = 0
        self._max_tombstones = max_tombstones
        self._max_characters = max_characters

    def record(self, entry: Entry) -> None:
        """Put `entry` at the end of the log, out of its former place."""
        if entry.revision == 0:
            self._live += 1
        self.revision += 1
        entry.revision = self.revision
        self._entries.append(entry)
        self._revisions.append(self.revision)
        if len(self._entries) > 2 * self._live + _SLACK:
            self._compact()

    def forget(self, entry: Entry) -> None:
        """Take `entry` out of the log."""
        entry.revision = 0
        self._live -= 1

    def bury(self, entry: Entry, now: float) -> None:
        """Put a tombstone for the path of `entry` in its place."""
        path = entry.path()
        self.forget(entry)
        tombstone = Tombstone(path, now)
        self._tombstones[path] = tombstone
        self._characters += len(path)
        self.record(tombstone)
        if len(self._tombstones) > self._max_tombstones or self._characters > self._max_characters:
            self._drop_oldest_tombstones()

    def exhume(self, path: str) -> None:
        """Take the tombstone of a path that holds a pulse again out of the log."""
        tombstone = self._tombstones.pop(path, None)
        if tombstone is not None:
            self._characters -= len(path)
            self.forget(tombstone)

    def since(self, revision: int) -> Iterator[Entry]:
        """Iterate over the entries newer than `revision`; the log must not change meanwhile."""
        for index in range(bisect_right(self._revisions, revision), len(self._entries)):
            entry = self._entries[index]
            if entry.revision == self._revisions[index]:
                yield entry

    def _compact(self) -> None:
        self._entries = list(self.since(0))
        self._revisions = array("q", [entry.revision for entry in self._entries])

    def _drop_oldest_tombstones(self) -> None:
        while (
            len(self._tombstones) > self._max_tombstones // 2
            or self._characters > self._max_characters // 2
        ):
            path, tombstone = self._tombstones.popitem(last=False)
            self._characters -= len(path)
            self.floor = tombstone.revision
            self.forget(tombstone)
        for entry in list(takewhile(lambda entry: entry.revision <= self.floor, self.since(0))):
            self.record(entry)
