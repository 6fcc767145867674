"""The pulses that a Pacemaker holds: a tree of path segments, and the order of its changes.

The rules that hold here:

- A path is its segments, split at every ``/`` and nothing else: ``/a//b`` and ``/a/b`` are two
  paths, and so are ``/a`` and ``a``.
- Listing children costs the children, deleting a subtree costs the subtree, reading the changes
  since a revision costs those changes; nothing but a full listing costs the store.
- No recursion: a path may have a hundred thousand segments.
- A node that holds no pulse has children; whoever takes the last child away removes it.

Nothing is validated here, and nothing is reserved: that is for those who answer requests.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Final

from stormkeeper.pacemaker.server.changelog import (
    MAX_TOMBSTONE_CHARACTERS,
    MAX_TOMBSTONES,
    ChangeLog,
)
from stormkeeper.pacemaker.wire import (
    CHANGE_OVERHEAD,
    CHANGES_OVERHEAD,
    DEFAULT_MAX_SIZE,
    Change,
    Changes,
    Pulse,
)

#: Changes in one answer, at most. At 3 KiB a pulse a frame is full before that.
MAX_CHANGES: Final = 10_000
#: Pulses that expire at a time: some milliseconds of work.
MAX_EXPIRED: Final = 1_000
#: What one scan may look at, in characters of paths: some 100,000 workers' paths, or 50 ms. A scan
#: of a small subtree in a large store is then continued by the next request.
MAX_SCAN_CHARACTERS: Final = 8_388_608


class _Node:
    """A segment of the tree, with or without a pulse; an `Entry` of the change log."""

    __slots__ = ("changed", "children", "details", "parent", "revision", "segment")

    def __init__(self, parent: "_Node | None", segment: str) -> None:
        self.parent = parent
        self.segment = segment
        self.children: dict[str, _Node] | None = None
        self.details: bytes | None = None
        self.revision = 0
        self.changed = 0.0

    def path(self) -> str:
        segments: list[str] = []
        node = self
        while node.parent is not None:
            segments.append(node.segment)
            node = node.parent
        segments.reverse()
        return "/".join(segments)


class PulseStore:
    """Holds the newest pulse of every path, in memory.

    Parameters
    ----------
    clock
        Returns seconds; monotonic.
    instance
        Identifies this store and its revisions; another one after every start.
    max_tombstones, max_tombstone_characters
        How many deleted paths are remembered for those who read changes.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        instance: str,
        *,
        max_tombstones: int = MAX_TOMBSTONES,
        max_tombstone_characters: int = MAX_TOMBSTONE_CHARACTERS,
    ) -> None:
        self.instance = instance
        #: Paths that hold a pulse.
        self.keys = 0
        #: Pulses stored since the start.
        self.pulses_received = 0
        self._clock = clock
        self._root = _Node(None, "")
        self._log = ChangeLog(max_tombstones, max_tombstone_characters)

    @property
    def revision(self) -> int:
        """The revision of the newest change; 0 while there was none."""
        return self._log.revision

    def put(self, path: str, details: bytes) -> None:
        """Store the pulse of `path` in place of any earlier one."""
        node = self._root
        for segment in path.split("/"):
            children = node.children
            child = None if children is None else children.get(segment)
            if child is None:
                child = _Node(node, sys.intern(segment))
                if children is None:
                    node.children = {child.segment: child}
                else:
                    children[child.segment] = child
            node = child
        if node.details is None:
            self.keys += 1
            self._log.exhume(path)
        node.details = details
        node.changed = self._clock()
        self.pulses_received += 1
        self._log.record(node)

    def get(self, path: str) -> bytes | None:
        """Return the value stored for exactly `path`; None if there is none."""
        node = self._find(path)
        return None if node is None else node.details

    def children(self, path: str) -> list[str]:
        """Return the names of the direct children of `path`, whose trailing slashes do not count.

        A child with an empty name (``/a//b`` makes one of ``/a``) is not listed: there is no path
        by which its own children could be asked for.
        """
        node = self._find(path.rstrip("/"))
        if node is None or node.children is None:
            return []
        return [name for name in node.children if name]

    def pulses(self, path: str) -> Iterator[Pulse]:
        """Iterate over the pulses at and below `path`; the store must not change meanwhile."""
        for node in self._subtree(path):
            if node.details is not None:
                yield Pulse(node.path(), node.details)

    def delete(self, path: str) -> bool:
        """Delete the pulse of exactly `path`; return whether there was one."""
        node = self._find(path)
        if node is None or node.details is None:
            return False
        self._bury(node, self._clock())
        self._prune(node)
        return True

    def delete_path(self, path: str) -> int:
        """Delete all pulses at and below `path`; return their number.

        Trailing slashes do not count, so ``/`` is everything.
        """
        top = self._top(path)
        if top is None:
            return 0
        now = self._clock()
        keys = self.keys
        nodes = list(self._subtree(path))
        for node in nodes:
            if node.details is not None:
                self._bury(node, now)
        for node in nodes:
            # Taken apart by hand: parent and child hold each other, and the garbage collector
            # would find them only later.
            node.children = None
            if node is not top:
                node.parent = None
        self._prune(top)
        return keys - self.keys

    def expire(self, max_age: float, limit: int = MAX_EXPIRED) -> int:
        """Delete pulses received more than `max_age` seconds ago, at most `limit`; return how many.

        Only the oldest changes are looked at, up to the first that is young enough. A pulse that
        has moved to the end of the log (see `ChangeLog`) is found when what was changed before it
        is gone or has changed again: within another `max_age`.
        """
        now = self._clock()
        doomed: list[_Node] = []
        for entry in self._log.since(0):
            if now - entry.changed <= max_age or len(doomed) == limit:
                break
            if isinstance(entry, _Node):
                doomed.append(entry)
        for node in doomed:
            self._bury(node, now)
            self._prune(node)
        return len(doomed)

    def changes(
        self,
        path: str,
        after: int = 0,
        limit: int = 0,
        *,
        max_bytes: int = DEFAULT_MAX_SIZE,
        instance: str | None = None,
    ) -> Changes:
        """Return what changed at and below `path` since revision `after`, the oldest first.

        Parameters
        ----------
        path
            Trailing slashes do not count; ``/`` is everything.
        after
            `Changes.next` of the answer before, or 0.
        limit
            How many changes at most; 0 or less for `MAX_CHANGES`.
        max_bytes
            The largest payload that the answer may make. A single pulse that could never fit is
            left out.
        instance
            The instance that gave `after`. Another than this one's, an `after` that is from the
            future, or from before deletions that are forgotten, is answered from the beginning,
            with `Changes.reset`.
        """
        log = self._log
        reset = instance not in (None, self.instance) or (
            after > 0 and not log.floor <= after <= log.revision
        )
        after = 0 if reset else max(after, 0)
        if not 0 < limit <= MAX_CHANGES:
            limit = MAX_CHANGES
        top = path.rstrip("/")
        below = f"{top}/"
        room = whole_room = max_bytes - CHANGES_OVERHEAD - len(self.instance.encode())
        characters = MAX_SCAN_CHARACTERS
        now = self._clock()
        changes: list[Change] = []
        more_after: int | None = None
        for entry in log.since(after):
            where = entry.path()
            if not top or where == top or where.startswith(below):
                details = entry.details
                size = CHANGE_OVERHEAD + len(where if where.isascii() else where.encode())
                size += 0 if details is None else len(details)
                if size <= whole_room:
                    room -= size
                    if room < 0 or len(changes) == limit:
                        more_after = changes[-1].revision
                        break
                    age_ms = max(0, int((now - entry.changed) * 1000))
                    changes.append(Change(where, details, entry.revision, age_ms))
            characters -= len(where) + 1
            if characters < 0:
                more_after = entry.revision
                break
        return Changes(
            instance=self.instance,
            revision=log.revision,
            changes=changes,
            more=more_after is not None,
            reset=reset,
            next=log.revision if more_after is None else more_after,
        )

    def _find(self, path: str) -> _Node | None:
        node = self._root
        for segment in path.split("/"):
            children = node.children
            if children is None:
                return None
            child = children.get(segment)
            if child is None:
                return None
            node = child
        return node

    def _top(self, path: str) -> _Node | None:
        """Find the node of a path whose trailing slashes do not count; of ``/`` the root."""
        path = path.rstrip("/")
        return self._find(path) if path else self._root

    def _subtree(self, path: str) -> Iterator[_Node]:
        """Iterate over the nodes at and below `path`, parents first."""
        top = self._top(path)
        stack = [] if top is None else [top]
        while stack:
            node = stack.pop()
            yield node
            if node.children is not None:
                stack.extend(reversed(node.children.values()))

    def _bury(self, node: _Node, now: float) -> None:
        self._log.bury(node, now)
        node.details = None
        self.keys -= 1

    def _prune(self, node: _Node) -> None:
        """Remove `node` and those above it as far as they have neither pulse nor children."""
        while node.details is None and not node.children:
            parent = node.parent
            if parent is None or parent.children is None:
                break
            del parent.children[node.segment]
            if not parent.children:
                parent.children = None
            node.parent = None
            node = parent
