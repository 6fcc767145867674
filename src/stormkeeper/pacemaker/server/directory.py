"""Which paths are below which: a tree of directories, with the pulses that stand in each.

The rules that hold here:

- A path is its segments, split at every ``/`` and nothing else: ``/a//b`` and ``/a/b`` are two
  paths, and so are ``/a`` and ``a``. The last segment names the pulse, those before it the
  directories above it. One name may be a pulse's and a directory's.
- Pulses and directories are kept in the order of their names, so a walk is in path order: a pulse
  comes before what is below its path, and that before the next name.
- A directory has pulses below it; whoever takes the last one away removes it.
- No recursion: a path may have as many segments as its limit allows.

A pulse is found in its directory by halving, and put there by moving the pointers behind it: in a
directory of 100,000 pulses that is some 20 microseconds.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

from stormkeeper.pacemaker.server.pulse_index import PulseEntry

# Pulses of one directory differ in their last segment only, so whole paths are in its order.
_PATH: Final = attrgetter("path")
_NAME: Final = attrgetter("name")

#: Bytes that a directory takes beside its name: itself, its two lists, its place in another's.
_DIRECTORY_BYTES: Final = 256


class Census:
    """What all directories of a tree take together; kept by them."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        #: About so many bytes of memory; the root is not counted.
        self.bytes = 0

    def born(self, name: bytes) -> None:
        """Count a directory."""
        self.bytes += _DIRECTORY_BYTES + len(name)

    def gone(self, name: bytes) -> None:
        """Count a directory no longer."""
        self.bytes -= _DIRECTORY_BYTES + len(name)


class Directory:
    """Everything below one path.

    Parameters
    ----------
    parent
        The directory above; None for the root.
    name
        The last segment of the path; nothing for the root.
    """

    __slots__ = ("_directories", "_leaves", "census", "name", "parent", "pulses")

    def __init__(self, parent: "Directory | None" = None, name: bytes = b"") -> None:
        self.parent = parent
        self.name = name
        #: That of the whole tree.
        self.census: Census = Census() if parent is None else parent.census
        #: Pulses here and below.
        self.pulses = 0
        self._leaves: list[PulseEntry] = []
        self._directories: list[Directory] = []

    def find(self, segments: Sequence[bytes]) -> "Directory | None":
        """Return the directory at `segments` below this one; None if there is none."""
        directory = self
        for name in segments:
            below = directory._child(name)
            if below is None:
                return None
            directory = below
        return directory

    def make(self, segments: Sequence[bytes]) -> "Directory":
        """Return the directory at `segments` below this one, new where it is not there yet.

        The caller adds a pulse to it.
        """
        directory = self
        for name in segments:
            below = directory._child(name)
            if below is None:
                below = Directory(directory, name)
                insort(directory._directories, below, key=_NAME)
                self.census.born(name)
            directory = below
        return directory

    def add(self, entry: PulseEntry) -> None:
        """List a pulse, whose path is this directory's and one more segment."""
        insort(self._leaves, entry, key=_PATH)
        self._count(1)

    def remove(self, entry: PulseEntry) -> None:
        """Take a pulse of this directory out of the list."""
        del self._leaves[bisect_left(self._leaves, entry.path, key=_PATH)]
        self._count(-1)

    def detach(self, limit: int) -> list[PulseEntry]:
        """Take pulses here and below out of the tree, at most `limit`, and return them."""
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
        # Taken apart by hand: parent and child hold each other, and the garbage collector would
        # find them only later.
        while stack:
            directory = stack.pop()
            stack.extend(directory._directories)
            directory._leaves.clear()
            directory._directories.clear()
            if directory is not self:
                directory.parent = None
                self.census.gone(directory.name)
        self._count(-len(entries))
        return entries

    def names(self) -> list[bytes]:
        """Return the names of the pulses and directories right here, each once.

        An empty name (``/a//b`` makes one of ``/a``) is left out: there is no path by which its
        own children could be asked for.
        """
        leaves, directories = self._leaves, self._directories
        start = leaves[0].path.rfind(b"/") + 1 if leaves else 0
        names = [leaf.path[start:] for leaf in leaves]
        if names and not names[0]:  # nothing comes before it
            del names[0]
        if directories:
            known = {b"", *names}
            names += [below.name for below in directories if below.name not in known]
        return names

    def walk(self) -> Iterator[PulseEntry]:
        """Iterate over the pulses here and below, in order; the tree must not change meanwhile."""
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
        """Iterate over the pulses and directories right here by their names."""
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
        """Count pulses here and above; remove the directories that have none any more."""
        directory: Directory | None = self
        while directory is not None:
            directory.pulses += added
            parent = directory.parent
            if directory.pulses == 0 and parent is not None:
                at = bisect_left(parent._directories, directory.name, key=_NAME)
                del parent._directories[at]
                directory.parent = None
                self.census.gone(directory.name)
            directory = parent
