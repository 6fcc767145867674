"""A tree of directories with their pulses, for listings and for requests on subtrees.

A path is split at every ``/``: ``/a//b`` and ``/a/b`` are different paths, and so are ``/a`` and
``a``. The last segment names the pulse; a pulse and a directory may have the same name. Pulses and
directories are sorted by name, so a walk yields a pulse before the pulses below its path. Adding a
pulse to a directory of 100,000 takes some 20 microseconds. A directory without pulses is removed.
Nothing recurses, as a path may have many segments.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

from stormkeeper.pacemaker.server.pulse_index import PulseEntry

# Pulses of a directory differ in the last segment only, so sorting by path sorts by name.
_PATH: Final = attrgetter("path")
_NAME: Final = attrgetter("name")

#: Bytes of a directory beside its name: object, two lists, a place in the parent's list.
_DIRECTORY_BYTES: Final = 256


class Census:
    """Memory of all directories of a tree, in bytes; the directories keep the count."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, name: bytes) -> None:
        """Count a new directory."""
        self.bytes += _DIRECTORY_BYTES + len(name)

    def remove(self, name: bytes) -> None:
        """Subtract a removed directory."""
        self.bytes -= _DIRECTORY_BYTES + len(name)


class Directory:
    """The pulses and directories below a path; the root has no parent and an empty name."""

    __slots__ = ("_directories", "_leaves", "census", "name", "parent", "pulses")

    def __init__(self, parent: "Directory | None" = None, name: bytes = b"") -> None:
        self.parent = parent
        self.name = name
        self.census: Census = Census() if parent is None else parent.census
        self.pulses = 0
        self._leaves: list[PulseEntry] = []
        self._directories: list[Directory] = []

    def find(self, segments: Sequence[bytes]) -> "Directory | None":
        """Return the directory at `segments` below this one, or None."""
        directory = self
        for name in segments:
            below = directory._child(name)
            if below is None:
                return None
            directory = below
        return directory

    def make(self, segments: Sequence[bytes]) -> "Directory":
        """Return the directory at `segments` below this one, created as needed.

        The caller must add a pulse to the directory.
        """
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
        """Add a pulse directly below this directory."""
        insort(self._leaves, entry, key=_PATH)
        self._count(1)

    def remove(self, entry: PulseEntry) -> None:
        """Remove a pulse of this directory."""
        del self._leaves[bisect_left(self._leaves, entry.path, key=_PATH)]
        self._count(-1)

    def detach(self, limit: int) -> list[PulseEntry]:
        """Remove at most `limit` pulses here and below, and return them."""
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
        # Parent and child refer to each other: without this only the garbage collector frees them.
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
        """Return the names of the pulses and directories directly here, each once.

        Empty names (of ``/a//b`` in ``/a``) are left out: no path would list their children.
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
        """Iterate over the pulses here and below, sorted; the tree must not change meanwhile."""
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
        """Add to the counts here and above, and remove empty directories."""
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
