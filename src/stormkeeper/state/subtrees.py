"""Subtrees of the store as known: snapshots, their differences, and what to read next. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from stormkeeper import paths
from stormkeeper.state.storage import EventType, NodeData, NodeStat

#: Most lists, most looks and most values of one `Work`: the store answers them within the deadline
#: of one request, and nodes that were read before a failure are not read again.
_READS: Final = 2000


class Subtree(NamedTuple):
    """A node and `depth` levels below.

    `decode` takes path and value of each node below the first, on all levels, once per version, and
    must not raise: it returns an error as the value. Without `decode` only names are kept; nodes of
    the last level have their parents' metadata. `is_busy`: many values change often, so they may
    wait.
    """

    path: str
    depth: int = 1
    decode: Callable[[str, bytes], Any] | None = None
    is_busy: bool = False

    def is_listed(self, level: int) -> bool:
        """Return whether nodes of a level are known from their parents' lists alone."""
        return self.decode is None and level == self.depth


class Node(NamedTuple):
    """A node's decoded value and metadata; of a name in a list, the parent's metadata."""

    value: Any
    stat: NodeStat


class Difference(NamedTuple):
    """A difference between two snapshots; None for an absent node."""

    path: str
    before: Node | None
    after: Node | None


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Nodes by path, by subtree; nodes that did not change are the same objects in two snapshots.

    A subtree's first node is among its nodes, with the value None. `revision` rises by one with
    each snapshot.
    """

    revision: int = 0
    trees: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)

    def changes_since(self, before: Snapshot) -> list[Difference]:
        """Return the differences: removals first, the deepest first, then by zxid."""
        changes = []
        for root, nodes in self.trees.items():
            old = before.trees.get(root, {})
            if nodes is old:
                continue
            changes += [Difference(path, old[path], None) for path in old.keys() - nodes.keys()]
            changes += [
                Difference(path, old.get(path), node)
                for path, node in nodes.items()
                if old.get(path) is not node
            ]
        return sorted(changes, key=change_order)


def change_order(change: Difference) -> tuple[int, int]:
    """Sort key: removals first, the deepest first, then by zxid."""
    if change.after is None:
        return (-1, -change.path.count("/"))
    return (max(change.after.stat.created, change.after.stat.modified), change.path.count("/"))


class Work(NamedTuple):
    """Paths to read: children's names, metadata, and values."""

    lists: list[str]
    stats: list[str]
    values: list[str]


class Mirror:
    """The nodes of subtrees as known, and what to read next. Pure; for one thread."""

    def __init__(self, subtrees: Iterable[Subtree]) -> None:
        self._subtrees = {each.path: each for each in subtrees}
        self._trees: dict[str, dict[str, Node]] = {path: {} for path in self._subtrees}
        self._children: dict[str, set[str]] = {}
        self._lists: dict[str, None] = {}
        self._stats: dict[str, None] = {}
        self._values: dict[str, None] = {}
        #: Paths of changed values that wait, the longest waiting first.
        self.waiting: dict[str, None] = {}
        self._changed = set(self._subtrees)
        #: Nodes as of the last snapshot, of paths that changed since.
        self._before: dict[str, Node | None] = {}
        self._snapshot = Snapshot()
        #: Answers older than what is known: the server of a new session lags behind.
        self.old_answers = 0

    def compare_all(self, *, with_lists: bool = False) -> None:
        """Read the metadata of all nodes but listed ones, and then what differs.

        `with_lists`: read all lists too, as a watch on children comes with the list.
        """
        self._stats |= dict.fromkeys(self._subtrees)
        for root, nodes in self._trees.items():
            subtree, top = self._subtrees[root], root.count("/")
            levels = {path: path.count("/") - top for path in nodes}
            self._stats |= {path: None for path in nodes if not subtree.is_listed(levels[path])}
            if with_lists:
                self._lists |= {path: None for path in nodes if levels[path] < subtree.depth}

    def on_event(self, event: EventType, path: str, *, may_wait: bool = False) -> None:
        place = self._place(path)
        if place is None:
            return
        subtree, level = place
        if event is EventType.NODE_CHILDREN_CHANGED:
            if level < subtree.depth:
                self._lists[path] = None
        elif level and subtree.decode is not None:
            if may_wait:
                self.waiting[path] = None
            else:
                self._values[path] = None
        elif not level:
            # Also when its value changed: a watch is used up.
            self._stats[path] = None
        elif event is not EventType.NODE_DATA_CHANGED:
            if subtree.is_listed(level):
                self._lists[paths.parent(path)] = None
            else:
                self._stats[path] = None

    def on_deletion(self, path: str) -> None:
        """Take a node for deleted, and look for a new one in the list.

        A look at the node itself would leave a watch, on client and server, that stays.
        """
        place = self._place(path)
        if place is not None and place[1]:
            self._remove(path)
            self._lists[paths.parent(path)] = None
        else:
            self.on_event(EventType.NODE_DELETED, path)

    def end_waits(self, paths: Iterable[str]) -> None:
        """Read the values at `paths` that wait with the next work."""
        self._values |= {path: None for path in paths if path in self.waiting}

    def take(self) -> Work | None:
        """Return what to read next, None if all else is known; `restore` the work that failed."""
        if not (self._lists or self._stats or self._values):
            return None
        queues = (self._lists, self._stats, self._values)
        work = Work(*(list(itertools.islice(queue, _READS)) for queue in queues))
        for queue, taken in zip(queues, work, strict=True):
            for path in taken:
                del queue[path]
        for path in work.values:
            self.waiting.pop(path, None)
        return work

    def restore(self, work: Work) -> None:
        self._lists |= dict.fromkeys(work.lists)
        self._stats |= dict.fromkeys(work.stats)
        self._values |= dict.fromkeys(work.values)

    def listed(self, path: str, names: Sequence[str] | None) -> None:
        if names is None:
            self._remove(path)
            return
        below = {f"{path}/{name}" for name in names}
        known = self._children.get(path, set())
        for gone in known - below:
            self._remove(gone)
        subtree, level = self._placed(path)
        new = dict.fromkeys(sorted(below - known))
        if path not in self._trees[subtree.path]:
            self._stats[path] = None  # nothing is known below an unknown node
        elif subtree.is_listed(level + 1):
            self._put_names(subtree, path, new)
        elif subtree.decode is None:
            self._stats |= new
        else:
            self._values |= new

    def checked(self, path: str, stat: NodeStat | None) -> None:
        """Take a node's metadata, and read the value if it differs."""
        subtree, level = self._placed(path)
        if stat is None:
            self._remove(path)
            return
        known = self._trees[subtree.path].get(path)
        if level and subtree.decode is not None and not _has_same_value(known, stat):
            self._values[path] = None
        else:
            self._put(path, Node(known.value if known is not None else None, stat))

    def read(self, path: str, found: NodeData | None) -> None:
        """Take a node's value and metadata."""
        subtree, _ = self._placed(path)
        if found is None:
            self._remove(path)
            return
        known = self._trees[subtree.path].get(path)
        value = None if known is None else known.value
        if subtree.decode is not None and not _has_same_value(known, found.stat):
            value = subtree.decode(path, found.data)
        self._put(path, Node(value, found.stat))

    def changes(self) -> list[Difference]:
        """Return the differences to the last snapshot; before `snapshot`."""
        changes = [
            Difference(path, before, self._trees[self._placed(path)[0].path].get(path))
            for path, before in self._before.items()
        ]
        return sorted((one for one in changes if one.before is not one.after), key=change_order)

    def snapshot(self) -> Snapshot:
        """Return the nodes as known; the last snapshot if nothing changed."""
        self._before.clear()
        if self._changed:
            trees = dict(self._snapshot.trees)
            for root in self._changed:
                trees[root] = MappingProxyType(dict(self._trees[root]))
            self._changed.clear()
            self._snapshot = Snapshot(self._snapshot.revision + 1, MappingProxyType(trees))
        return self._snapshot

    def _place(self, path: str) -> tuple[Subtree, int] | None:
        """Return the subtree with `path`, and the level below the subtree's first node."""
        for root, subtree in self._subtrees.items():
            if paths.is_at_or_below(path, root):
                level = path.count("/") - root.count("/")
                return (subtree, level) if level <= subtree.depth else None
        return None

    def _placed(self, path: str) -> tuple[Subtree, int]:
        place = self._place(path)
        assert place is not None, path
        return place

    def _put(self, path: str, node: Node) -> None:
        subtree, level = self._placed(path)
        nodes = self._trees[subtree.path]
        known = nodes.get(path)
        if known is not None and _is_older(node.stat, known.stat):
            self.old_answers += 1
            self._stats[path] = None
            return
        if level < subtree.depth and not _has_same_children(known, node.stat):
            self._lists[path] = None
        if known is None or known.stat != node.stat:
            self._before.setdefault(path, known)
            nodes[path] = node
            self._changed.add(subtree.path)
        if level:
            self._children.setdefault(paths.parent(path), set()).add(path)

    def _put_names(self, subtree: Subtree, parent: str, names: Iterable[str]) -> None:
        nodes = self._trees[subtree.path]
        for path in names:
            self._before.setdefault(path, None)
            nodes[path] = Node(None, nodes[parent].stat)
            self._children.setdefault(parent, set()).add(path)
            self._changed.add(subtree.path)

    def _remove(self, path: str) -> None:
        subtree, level = self._placed(path)
        if level:
            for names in (self._lists, self._stats, self._values, self.waiting):
                names.pop(path, None)
        for child in self._children.pop(path, ()):
            self._remove(child)
        self._children.get(paths.parent(path), set()).discard(path)
        known = self._trees[subtree.path].pop(path, None)
        if known is not None:
            self._before.setdefault(path, known)
            self._changed.add(subtree.path)


def _has_same_value(known: Node | None, stat: NodeStat) -> bool:
    return known is not None and known.stat[1:3] == stat[1:3]


def _has_same_children(known: Node | None, stat: NodeStat) -> bool:
    return known is not None and (
        (known.stat.created, known.stat.children_modified) == (stat.created, stat.children_modified)
    )


def _is_older(stat: NodeStat, known: NodeStat) -> bool:
    return (stat.created, stat.modified) < (known.created, known.modified)
