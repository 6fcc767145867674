"""Pulses and tombstones by path, and in the order of their revisions: the store's hot core.

The rules that hold here:

- Every change gets the next revision; a path counts once, at its newest change.
- The order is a doubly linked list that runs through the entries themselves, so that a change
  costs constant time, always: nothing is ever compacted.
- An entry that was in the order has left it for good, or stands there once: a pulse that is
  buried becomes the tombstone, and a tombstone that is given a pulse becomes the pulse.

Paths are the bytes of the wire. Nothing is validated here, and directories are not known: `home`
is kept for those who know them.

There may be a compiled module with classes of the same names and meaning; the tests run with both.
"""


class PulseEntry:
    """A path that holds a pulse, or the tombstone of one; read by all, written by its index."""

    __slots__ = ("_newer", "_older", "changed", "details", "home", "path", "revision")

    def __init__(self, path: bytes, details: bytes | None, changed: float, home: object) -> None:
        #: The key itself: one object, which the index shares.
        self.path = path
        #: The newest value; None for a tombstone.
        self.details = details
        #: The revision of the newest change; 0 once the entry is forgotten.
        self.revision = 0
        #: The clock, in seconds, when the pulse was received or deleted.
        self.changed = changed
        #: What `PulseIndex.add` was given; None for a tombstone.
        self.home = home
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
        #: The newest revision given; the first is 1.
        self.revision = 0
        #: Paths that hold a pulse.
        self.keys = 0
        #: Paths that hold the tombstone of one.
        self.tombstones = 0
        #: Pulses stored since the start.
        self.pulses_received = 0
        #: Bytes of all pulses and their paths.
        self.bytes_held = 0
        #: What `replace` lets pulses and paths grow to; 0: no limit. May be set at any time.
        self.max_bytes = 0
        self._entries: dict[bytes, PulseEntry] = {}
        #: Closes the order to a ring: its `_newer` is the oldest entry, its `_older` the newest.
        self._ends = PulseEntry(b"", None, 0.0, None)

    def get(self, path: bytes) -> bytes | None:
        """Return the pulse of exactly `path`; None if there is none."""
        entry = self._entries.get(path)
        return None if entry is None else entry.details

    def entry(self, path: bytes) -> PulseEntry | None:
        """Return the pulse or the tombstone of exactly `path`; None if there is neither."""
        return self._entries.get(path)

    def replace(self, path: bytes, details: bytes, now: float) -> bool:
        """Put `details` in the place of the pulse of `path`, received at `now`.

        Returns
        -------
        bool
            False, and nothing is changed, if the path holds no pulse, or if the new one is larger
            than the old one and `max_bytes` does not allow that.
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
        """Store the pulse of a path that holds none, whatever `max_bytes` is.

        Raises
        ------
        ValueError
            If the path holds a pulse.
        """
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
        """Make a tombstone, the newest change, of a pulse.

        Raises
        ------
        ValueError
            If `entry` is no pulse.
        """
        if entry.details is None:
            raise ValueError(f"{entry.path[:200]!r} holds no pulse")
        self.keys -= 1
        self.tombstones += 1
        self.bytes_held -= len(entry.path) + len(entry.details)
        entry.details = entry.home = None
        entry.changed = now
        self.renew(entry)

    def forget(self, entry: PulseEntry) -> None:
        """Take a tombstone out of the index.

        Raises
        ------
        ValueError
            If `entry` is no tombstone of this index.
        """
        if entry.details is not None or entry.revision == 0:
            raise ValueError(f"{entry.path[:200]!r} holds no tombstone")
        self.tombstones -= 1
        del self._entries[entry.path]
        entry._older._newer = entry._newer
        entry._newer._older = entry._older
        entry._older = entry._newer = entry
        entry.revision = 0

    def renew(self, entry: PulseEntry) -> None:
        """Give `entry` the next revision, and the newest place; `changed` stays."""
        entry._older._newer = entry._newer
        entry._newer._older = entry._older
        ends = self._ends
        newest = ends._older
        entry._older = newest
        entry._newer = ends
        newest._newer = ends._older = entry
        self.revision = entry.revision = self.revision + 1

    def since(self, revision: int, limit: int) -> list[PulseEntry]:
        """Return the oldest `limit` entries newer than `revision`, the oldest first.

        Their first is looked for from both ends at once: the cost is the distance from the nearer.
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
        """Return the `limit` entries next newer than `entry`; none for a forgotten one."""
        return [] if entry._newer is entry else self._from(entry._newer, limit)

    def _from(self, entry: PulseEntry, limit: int) -> list[PulseEntry]:
        found: list[PulseEntry] = []
        while entry is not self._ends and len(found) < limit:
            found.append(entry)
            entry = entry._newer
        return found

    def oldest(self) -> PulseEntry | None:
        """Return the entry with the lowest revision; None if there are no entries."""
        entry = self._ends._newer
        return None if entry is self._ends else entry

    def after(self, entry: PulseEntry) -> PulseEntry | None:
        """Return the entry next newer than `entry`; None for the newest and for a forgotten one."""
        newer = entry._newer
        return None if newer is self._ends or newer is entry else newer
