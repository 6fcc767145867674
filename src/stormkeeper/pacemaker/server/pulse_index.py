"""Pulses and tombstones by path and by revision, and sorted paths.

Every change gets the next revision, and a path stands in the order once, at the newest change. The
order is a doubly linked list through the entries, so a change costs constant time. `_compiled` has
twins of `PulseEntry` and `PulseIndex`. Paths are the bytes of the wire.
"""

from bisect import bisect_left, insort
from typing import Final

_BEHIND_SLASH: Final = b"0"
#: So many paths are listed one by one.
_FEW_PATHS: Final = 100


class PulseEntry:
    """A path with a pulse or tombstone; only the index writes attributes."""

    __slots__ = ("_newer", "_older", "changed", "details", "path", "revision")

    def __init__(self, path: bytes, details: bytes | None, changed: float) -> None:
        self.path = path
        #: None for a tombstone.
        self.details = details
        #: 0 for a forgotten entry.
        self.revision = 0
        #: Seconds of the clock at receipt or deletion.
        self.changed = changed
        self._older = self._newer = self


class PulseIndex:
    """Entries by path, and from the oldest change to the newest."""

    __slots__ = (
        "_ends",
        "_entries",
        "bytes_held",
        "keys",
        "max_bytes",
        "pulses_received",
        "revision",
        "tombstones",
    )

    def __init__(self) -> None:
        self.revision = 0
        self.keys = 0
        self.tombstones = 0
        self.pulses_received = 0
        self.bytes_held = 0
        #: Limit for `replace`; 0: none.
        self.max_bytes = 0
        self._entries: dict[bytes, PulseEntry] = {}
        #: Closes the ring: `_newer` is the oldest entry, `_older` the newest.
        self._ends = PulseEntry(b"", None, 0.0)

    def get(self, path: bytes) -> bytes | None:
        entry = self._entries.get(path)
        return None if entry is None else entry.details

    def entry(self, path: bytes) -> PulseEntry | None:
        return self._entries.get(path)

    def replace(self, path: bytes, details: bytes, now: float) -> bool:
        """Overwrite a pulse; return whether the new pulse was stored.

        False if the path holds no pulse, or if the store would grow beyond `max_bytes`.
        """
        entry = self._entries.get(path)
        if entry is None or entry.details is None:
            return False
        grown = len(details) - len(entry.details)
        if grown > 0 and 0 < self.max_bytes < self.bytes_held + grown:
            return False
        self.bytes_held += grown
        self.pulses_received += 1
        entry.details = details
        entry.changed = now
        self.renew(entry)
        return True

    def add(self, path: bytes, details: bytes, now: float) -> PulseEntry:
        """Store the first pulse of a path, ignoring `max_bytes`."""
        entry = self._entries.get(path)
        if entry is None:
            entry = self._entries[path] = PulseEntry(path, details, now)
        elif entry.details is None:
            self.tombstones -= 1
            entry.details, entry.changed = details, now
        else:
            raise ValueError(f"{path[:200]!r} holds a pulse already")
        self.keys += 1
        self.pulses_received += 1
        self.bytes_held += len(path) + len(details)
        self.renew(entry)
        return entry

    def bury(self, entry: PulseEntry, now: float) -> None:
        """Turn a pulse into a tombstone, the newest change."""
        if entry.details is None:
            raise ValueError(f"{entry.path[:200]!r} holds no pulse")
        self.keys -= 1
        self.tombstones += 1
        self.bytes_held -= len(entry.path) + len(entry.details)
        entry.details = None
        entry.changed = now
        self.renew(entry)

    def forget(self, entry: PulseEntry) -> None:
        if entry.details is not None or entry.revision == 0:
            raise ValueError(f"{entry.path[:200]!r} holds no tombstone")
        self.tombstones -= 1
        del self._entries[entry.path]
        entry._older._newer = entry._newer
        entry._newer._older = entry._older
        entry._older = entry._newer = entry
        entry.revision = 0

    def renew(self, entry: PulseEntry) -> None:
        """Give `entry` the next revision; `changed` stays."""
        entry._older._newer = entry._newer
        entry._newer._older = entry._older
        ends = self._ends
        newest = ends._older
        entry._older = newest
        entry._newer = ends
        newest._newer = ends._older = entry
        self.revision = entry.revision = self.revision + 1

    def since(self, revision: int, limit: int) -> list[PulseEntry]:
        """Return the oldest `limit` entries newer than `revision`, oldest first.

        The cost is the distance from the nearer end.
        """
        ends = self._ends
        forward, backward = ends._newer, ends
        while forward is not ends and forward.revision <= revision:
            if backward._older.revision <= revision:
                forward = backward
                break
            backward = backward._older
            forward = forward._newer
        return self._from(forward, limit)

    def newer(self, entry: PulseEntry, limit: int) -> list[PulseEntry]:
        """Return up to `limit` entries after `entry`; none for a forgotten entry."""
        return [] if entry._newer is entry else self._from(entry._newer, limit)

    def _from(self, entry: PulseEntry, limit: int) -> list[PulseEntry]:
        found: list[PulseEntry] = []
        while entry is not self._ends and len(found) < limit:
            found.append(entry)
            entry = entry._newer
        return found

    def oldest(self) -> PulseEntry | None:
        entry = self._ends._newer
        return None if entry is self._ends else entry

    def after(self, entry: PulseEntry) -> PulseEntry | None:
        """Return the next entry; None for the newest and for a forgotten entry."""
        newer = entry._newer
        return None if newer is self._ends or newer is entry else newer


class SortedPaths:
    """Paths in the order of their bytes, in which all paths below a path are adjacent.

    ``/a/b`` and ``/a//b`` are below ``/a``, ``/a!`` is not. A given path ends with no slash; below
    the empty path is everything.
    """

    __slots__ = ("_names", "_paths")

    def __init__(self) -> None:
        self._paths: list[bytes] = []
        #: The last listing, until a path is added or removed.
        self._names: dict[bytes, list[bytes]] = {}

    def add(self, path: bytes) -> None:
        insort(self._paths, path)
        self._names.clear()

    def remove(self, path: bytes) -> None:
        del self._paths[bisect_left(self._paths, path)]
        self._names.clear()

    def count_below(self, top: bytes) -> int:
        first, end = self._range_below(top)
        return end - first

    def below(self, top: bytes) -> list[bytes]:
        first, end = self._range_below(top)
        return self._paths[first:end]

    def take_below(self, top: bytes, limit: int) -> list[bytes]:
        """Remove and return at most `limit` paths; 0: all."""
        first, end = self._range_below(top)
        if limit:
            first = max(first, end - limit)
        taken = self._paths[first:end]
        del self._paths[first:end]
        self._names.clear()
        return taken

    def names_below(self, top: bytes) -> list[bytes]:
        """Return each name directly below a path; the caller must not change the list.

        Empty names (of ``/a//b`` in ``/a``) are left out: no path lists their children.
        """
        if top not in self._names:
            self._names = {top: self._find_names(top)}
        return self._names[top]

    def _find_names(self, top: bytes) -> list[bytes]:
        """Find the names, at a cost by names alone where there are many paths."""
        below, paths = top + b"/", self._paths
        first = bisect_left(paths, below)
        end = bisect_left(paths, top + _BEHIND_SLASH, first)
        if end - first <= _FEW_PATHS:
            length = len(below)
            names = {path[length:].partition(b"/")[0] for path in paths[first:end]}
            return list(names - {b""})
        names, at = set(), first
        while at < end:
            name, slash, _ = paths[at][len(below) :].partition(b"/")
            names.add(name)
            # A name and the paths below it need not be adjacent: ``/a``, ``/a!``, ``/a/b``.
            at = bisect_left(paths, below + name + _BEHIND_SLASH, at) if slash else at + 1
        return list(names - {b""})

    def _range_below(self, top: bytes) -> tuple[int, int]:
        if not top:
            return 0, len(self._paths)
        first = bisect_left(self._paths, top + b"/")
        return first, bisect_left(self._paths, top + _BEHIND_SLASH, first)
