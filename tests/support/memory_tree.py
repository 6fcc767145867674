"""A tree of nodes in memory, with ZooKeeper's rules and the events of its changes.

No sessions, watches, threads or clock in here: an owner is a number, and every change returns what
happened, in ZooKeeper's order (its DataTree): first at the node itself, then at its parent.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stormkeeper import paths
from stormkeeper.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    StateError,
    TransactionError,
)
from stormkeeper.state.storage import (
    ANY_VERSION,
    DIRECTORY,
    Check,
    Create,
    Delete,
    EventType,
    NodeStat,
    Operation,
    Result,
    SetData,
)

#: The owner of a persistent node.
NOBODY = 0


class Event(NamedTuple):
    """What happened, and at which path."""

    type: EventType
    path: str


@dataclass(slots=True)
class Node:
    """A node; `created`, `modified` and `children_modified` are counts of changes of the tree."""

    data: bytes
    owner: int
    created: int
    modified: int
    children_modified: int
    version: int = 0
    #: How many children were ever made here; names of sequential nodes count these.
    children_created: int = 0
    children: set[str] = field(default_factory=set)

    @property
    def stat(self) -> NodeStat:
        """What is told of the node beside its value."""
        return NodeStat(
            version=self.version,
            created=self.created,
            modified=self.modified,
            children_modified=self.children_modified,
            owner=self.owner,
            children=len(self.children),
        )


class MemoryTree:
    """Nodes by path; the root is always there. Not safe for concurrent use."""

    def __init__(self) -> None:
        self._changes = 0
        self._nodes = {"/": Node(b"", NOBODY, 0, 0, 0)}
        #: Within `all_or_nothing`: each node touched so far as it was, None where there was none.
        self._former: dict[str, Node | None] | None = None

    @property
    def changes(self) -> int:
        """How many changes there were; the newest one's number, ZooKeeper's zxid."""
        return self._changes

    def find(self, path: str) -> Node | None:
        """Return the node at a path, None when there is none."""
        return self._nodes.get(path)

    def get(self, path: str) -> Node:
        """Return the node at a path.

        Raises
        ------
        NoNodeError
            There is none.
        """
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(f"there is no node {path}")
        return node

    def owned_by(self, owner: int) -> list[str]:
        """Return the paths of an owner's ephemeral nodes, in the order they were made."""
        owned = [path for path, node in self._nodes.items() if node.owner == owner]
        return sorted(owned, key=lambda path: self._nodes[path].created)

    def put(self, path: str, data: bytes) -> list[Event]:
        """Set a node's value; make it, persistent, and its ancestors if it is absent."""
        if path in self._nodes:
            return self.set_value(path, data)
        return self.make_directory(paths.parent(path)) + self.create(path, data, NOBODY)

    def put_ephemeral(self, path: str, data: bytes, owner: int) -> list[Event]:
        """Make an owner's ephemeral node, in the place of whatever is there."""
        node = self._nodes.get(path)
        if node is None:
            events = self.make_directory(paths.parent(path))
        elif node.owner == owner:
            return self.set_value(path, data)
        else:
            events = self.remove(path)
        return events + self.create(path, data, owner)

    def create_sequential(self, path: str, data: bytes, owner: int) -> tuple[str, list[Event]]:
        """Make an owner's ephemeral node, named by `path` and a number; return its path."""
        events = self.make_directory(paths.parent(path))
        numbered = self.numbered(path)
        return numbered, events + self.create(numbered, data, owner)

    def numbered(self, path: str) -> str:
        """Return the path of the next sequential node that begins with `path`."""
        return f"{path}{self.get(paths.parent(path)).children_created:010d}"

    def make_directory(self, path: str) -> list[Event]:
        """Make a node that holds `DIRECTORY`, unless there is one, and empty ancestors."""
        missing = []
        while path not in self._nodes:
            missing.append(path)
            path = paths.parent(path)
        events = []
        for above in reversed(missing):
            events += self.create(above, DIRECTORY if above == missing[0] else b"", NOBODY)
        return events

    def delete(self, path: str) -> list[Event]:
        """Delete a node and all below it, level by level from the deepest; absent is fine."""
        levels = [[path] if path in self._nodes else []]
        while levels[-1]:
            levels.append(sorted(f"{p}/{n}" for p in levels[-1] for n in self._nodes[p].children))
        return [event for level in reversed(levels) for p in level for event in self.remove(p)]

    def set_value(self, path: str, data: bytes) -> list[Event]:
        """Set the value of a node that is there."""
        node = self.get(path)
        now = self._change(path)
        node.data = data
        node.version += 1
        node.modified = now
        return [Event(EventType.NODE_DATA_CHANGED, path)]

    def create(self, path: str, data: bytes, owner: int) -> list[Event]:
        """Make a node whose parent is there.

        Raises
        ------
        NodeExistsError
            There is one already.
        NoNodeError
            There is no parent.
        StateError
            The parent is ephemeral.
        """
        if path in self._nodes:
            raise NodeExistsError(f"there is a node {path} already")
        above = paths.parent(path)
        parent = self.get(above)
        if parent.owner != NOBODY:
            raise StateError(f"cannot create {path}: its parent is ephemeral and has no children")
        now = self._change(path, above)
        self._nodes[path] = Node(data, owner, now, now, now)
        parent.children.add(path.rpartition("/")[2])
        parent.children_created += 1
        parent.children_modified = now
        return [
            Event(EventType.NODE_CREATED, path),
            Event(EventType.NODE_CHILDREN_CHANGED, above),
        ]

    def remove(self, path: str) -> list[Event]:
        """Delete a node that is there and has no children.

        Raises
        ------
        NoNodeError
            There is none.
        NotEmptyError
            It has children.
        """
        if self.get(path).children:
            raise NotEmptyError(f"cannot delete {path}: it has children")
        above = paths.parent(path)
        parent = self.get(above)
        now = self._change(path, above)
        del self._nodes[path]
        parent.children.remove(path.rpartition("/")[2])
        parent.children_modified = now
        return [
            Event(EventType.NODE_DELETED, path),
            Event(EventType.NODE_CHILDREN_CHANGED, above),
        ]

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Count all changes made within as one; undo them all if an exception leaves it."""
        before = self._changes
        self._changes += 1
        self._former = {}
        try:
            yield
        except BaseException:
            self._changes = before
            for path, node in self._former.items():
                if node is not None:
                    self._nodes[path] = node
                elif path in self._nodes:
                    del self._nodes[path]
            raise
        finally:
            self._former = None

    def _change(self, *touched: str) -> int:
        """Return the number of a change that begins now, of the nodes at these paths."""
        if self._former is None:
            self._changes += 1
            return self._changes
        for path in touched:
            if path not in self._former:
                node = self._nodes.get(path)
                self._former[path] = node and replace(node, children=set(node.children))
        return self._changes


def apply_all(
    tree: MemoryTree, operations: Sequence[Operation], owner: int
) -> tuple[list[Result], list[Event]]:
    """Apply operations in order, as one change of the tree.

    Parameters
    ----------
    tree
        What they are applied to; as it was if this raises.
    operations
        Each sees what those before it did.
    owner
        Of the ephemeral nodes among them.

    Returns
    -------
    results
        For each operation: the path that was made, the new version, or None.
    events
        What happened.

    Raises
    ------
    TransactionError
        An operation was refused; which one, and why.
    """
    results: list[Result] = []
    events: list[Event] = []
    with tree.all_or_nothing():
        for index, operation in enumerate(operations):
            try:
                result, happened = _apply(tree, operation, owner)
            except StateError as error:
                raise TransactionError(index, error) from error
            results.append(result)
            events += happened
    return results, events


def _apply(tree: MemoryTree, operation: Operation, owner: int) -> tuple[Result, list[Event]]:
    match operation:
        case Check(path, version):
            _expect(tree, path, version)
            return None, []
        case Create(path, data, ephemeral, sequential):
            made = tree.numbered(path) if sequential else path
            return made, tree.create(made, data, owner if ephemeral else NOBODY)
        case SetData(path, data, version):
            _expect(tree, path, version)
            events = tree.set_value(path, data)
            return tree.get(path).version, events
        case Delete(path, version):
            _expect(tree, path, version)
            return None, tree.remove(path)


def _expect(tree: MemoryTree, path: str, version: int) -> None:
    found = tree.get(path).version
    if version not in (ANY_VERSION, found):
        raise BadVersionError(f"{path} has version {found}, and not {version}")
