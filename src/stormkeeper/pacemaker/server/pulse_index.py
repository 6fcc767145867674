"""Pulses and tombstones by path, and sorted by revision: the core of the pulse store.

Every change gets the next revision, and a path stands in the order once, at its newest change. The
order is a doubly linked list through the entries, so a change costs constant time. A buried pulse
becomes a tombstone, and a tombstone that gets a pulse becomes a pulse again.

Paths are the bytes of the wire, and the store validates them. `_compiled` has twins of both
classes; the tests run with both.
"""


class PulseEntry:
    """A path with a pulse or tombstone; only the index writes attributes."""

    __slots__ = ("_newer", "_older", "changed", "details", "home", "path", "revision")

    def __init__(self, path: bytes, details: bytes | None, changed: float, home: object) -> None:
        self.path = path
        #: None for a tombstone.
        self.details = details
        #: 0 once the entry is forgotten.
        self.revision = 0
        #: Clock seconds of the receipt or deletion.
        self.changed = changed
        #: The `Directory` of the path; None for a tombstone.
        self.home = home
        self._older = self._newer = self


class PulseIndex:
    """Entries by path, and sorted from the oldest change to the newest."""

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
        #: Limit of `bytes_held` for `replace`; 0: none.
        self.max_bytes = 0
        self._entries: dict[bytes, PulseEntry] = {}
        #: Closes the order to a ring: `_newer` is the oldest entry, `_older` the newest.
        self._ends = PulseEntry(b"", None, 0.0, None)

    def get(self, path: bytes) -> bytes | None:
        """Return the pulse of exactly `path`, or None."""
        entry = self._entries.get(path)
        return None if entry is None else entry.details

    def entry(self, path: bytes) -> PulseEntry | None:
        """Return the entry of exactly `path`, or None."""
        return self._entries.get(path)

    def replace(self, path: bytes, details: bytes, now: float) -> bool:
        """Overwrite the pulse of `path`, received at `now`; return whether the pulse was stored.

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

    def add(self, path: bytes, details: bytes, now: float, home: object) -> PulseEntry:
        """Store the first pulse of a path, whatever `max_bytes` is."""
        entry = self._entries.get(path)
        if entry is None:
            entry = self._entries[path] = PulseEntry(path, details, now, home)
        elif entry.details is None:
            self.tombstones -= 1
            entry.details, entry.changed, entry.home = details, now, home
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
        entry.details = entry.home = None
        entry.changed = now
        self.renew(entry)

    def forget(self, entry: PulseEntry) -> None:
        """Remove a tombstone."""
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

        The search runs from both ends, so the cost is the distance from the nearer one.
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
        """Return the next `limit` entries after `entry`; none for a forgotten entry."""
        return [] if entry._newer is entry else self._from(entry._newer, limit)

    def _from(self, entry: PulseEntry, limit: int) -> list[PulseEntry]:
        found: list[PulseEntry] = []
        while entry is not self._ends and len(found) < limit:
            found.append(entry)
            entry = entry._newer
        return found

    def oldest(self) -> PulseEntry | None:
        """Return the entry with the lowest revision, or None."""
        entry = self._ends._newer
        return None if entry is self._ends else entry

    def after(self, entry: PulseEntry) -> PulseEntry | None:
        """Return the entry after `entry`; None for the newest and for a forgotten entry."""
        newer = entry._newer
        return None if newer is self._ends or newer is entry else newer
