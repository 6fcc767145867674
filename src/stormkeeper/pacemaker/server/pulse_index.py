"""Pulses and tombstones by path, sorted by revision, and by directory.

Every change gets the next revision, and a path stands in the order once, at the newest change. The
order is a doubly linked list through the entries, so a change costs constant time. `_compiled` has
twins of `PulseEntry` and `PulseIndex`. Paths are the bytes of the wire.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

# Pulses of a directory differ in the name only, so sorting by path sorts by name.
_PATH: Final = attrgetter("path")
_NAME: Final = attrgetter("name")

#: Beside the name.
_DIRECTORY_BYTES: Final = 256


class PulseEntry:
    """A path with a pulse or tombstone; only the index writes attributes."""

    __slots__ = ("_newer", "_older", "changed", "details", "home", "path", "revision")

    def __init__(self, path: bytes, details: bytes | None, changed: float, home: object) -> None:
        self.path = path
        #: None for a tombstone.
        self.details = details
        #: 0 for a forgotten entry.
        self.revision = 0
        #: Seconds of the clock at receipt or deletion.
        self.changed = changed
        #: A `Directory`; None for a tombstone.
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
        self.revision = 0
        self.keys = 0
        self.tombstones = 0
        self.pulses_received = 0
        self.bytes_held = 0
        #: Limit for `replace`; 0: none.
        self.max_bytes = 0
        self._entries: dict[bytes, PulseEntry] = {}
        #: Closes the ring: `_newer` is the oldest entry, `_older` the newest.
        self._ends = PulseEntry(b"", None, 0.0, None)

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

    def add(self, path: bytes, details: bytes, now: float, home: object) -> PulseEntry:
        """Store the first pulse of a path, ignoring `max_bytes`."""
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


class Census:
    """Bytes of memory of all directories of a tree."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, name: bytes) -> None:
        self.bytes += _DIRECTORY_BYTES + len(name)

    def remove(self, name: bytes) -> None:
        self.bytes -= _DIRECTORY_BYTES + len(name)


class Directory:
    """The pulses and directories below a path, for listings and requests on subtrees.

    A path is split at every ``/``: ``/a//b`` and ``/a/b`` differ, and so do ``/a`` and ``a``. A
    pulse and a directory may have the same name. Both are sorted by name, so a walk yields a pulse
    before the pulses below its path. Nothing recurses, as a path may have many segments.
    """

    __slots__ = ("_directories", "_leaves", "census", "name", "parent", "pulses")

    def __init__(self, parent: "Directory | None" = None, name: bytes = b"") -> None:
        self.parent = parent
        self.name = name
        self.census: Census = Census() if parent is None else parent.census
        self.pulses = 0
        self._leaves: list[PulseEntry] = []
        self._directories: list[Directory] = []

    def find(self, segments: Sequence[bytes]) -> "Directory | None":
        directory = self
        for name in segments:
            below = directory._child(name)
            if below is None:
                return None
            directory = below
        return directory

    def make(self, segments: Sequence[bytes]) -> "Directory":
        """Return the directory at `segments`, created as needed; the caller must add a pulse."""
        directory = self
        for name in segments:
            below = directory._child(name)
            if below is None:
                below = Directory(directory, name)
                insort(directory._directories, below, key=_NAME)
                self.census.add(name)
            directory = below
        return directory

    def add(self, entry: PulseEntry) -> None:
        insort(self._leaves, entry, key=_PATH)
        self._count(1)

    def remove(self, entry: PulseEntry) -> None:
        del self._leaves[bisect_left(self._leaves, entry.path, key=_PATH)]
        self._count(-1)

    def detach(self, limit: int) -> list[PulseEntry]:
        """Remove and return at most `limit` pulses here and below."""
        entries: list[PulseEntry] = []
        while self.pulses and len(entries) < limit:
            room = limit - len(entries)
            directory = self
            while directory.pulses > room and directory._directories:
                directory = directory._directories[-1]
            if directory.pulses <= room:
                entries += directory._detach_all()
            else:
                entries += directory._leaves[-room:]
                del directory._leaves[-room:]
                directory._count(-room)
        return entries

    def _detach_all(self) -> list[PulseEntry]:
        entries = list(self.walk())
        stack = [self]
        # Parent and child refer to each other: else only the garbage collector frees both.
        while stack:
            directory = stack.pop()
            stack.extend(directory._directories)
            directory._leaves.clear()
            directory._directories.clear()
            if directory is not self:
                directory.parent = None
                self.census.remove(directory.name)
        self._count(-len(entries))
        return entries

    def names(self) -> list[bytes]:
        """Return each name directly here once.

        Empty names (of ``/a//b`` in ``/a``) are left out: no path lists their children.
        """
        leaves, directories = self._leaves, self._directories
        start = leaves[0].path.rfind(b"/") + 1 if leaves else 0
        names = [leaf.path[start:] for leaf in leaves]
        if names and not names[0]:  # an empty name sorts first
            del names[0]
        if directories:
            known = {b"", *names}
            names += [below.name for below in directories if below.name not in known]
        return names

    def walk(self) -> Iterator[PulseEntry]:
        """Yield the pulses here and below, sorted; the tree must not change meanwhile."""
        stack = [self._in_order()]
        while stack:
            for item in stack[-1]:
                if isinstance(item, Directory):
                    stack.append(item._in_order())
                    break
                yield item
            else:
                stack.pop()

    def _in_order(self) -> Iterator["PulseEntry | Directory"]:
        leaves = self._leaves
        prefix = leaves[0].path[: leaves[0].path.rfind(b"/") + 1] if leaves else b""
        leaf = 0
        for directory in self._directories:
            end = bisect_right(leaves, prefix + directory.name, leaf, key=_PATH)
            for at in range(leaf, end):
                yield leaves[at]
            leaf = end
            yield directory
        for at in range(leaf, len(leaves)):
            yield leaves[at]

    def _child(self, name: bytes) -> "Directory | None":
        directories = self._directories
        at = bisect_left(directories, name, key=_NAME)
        if at < len(directories) and directories[at].name == name:
            return directories[at]
        return None

    def _count(self, added: int) -> None:
        """Add to the counts here and above; remove empty directories."""
        directory: Directory | None = self
        while directory is not None:
            directory.pulses += added
            parent = directory.parent
            if directory.pulses == 0 and parent is not None:
                at = bisect_left(parent._directories, directory.name, key=_NAME)
                del parent._directories[at]
                directory.parent = None
                self.census.remove(directory.name)
            directory = parent
