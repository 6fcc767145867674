"""An ensemble of which a session sees one member, which may lag behind, in steps that a test draws.

The leader's log is a list of trees. A member has a position in the log, and a session reads there.
The events of a change reach the session when its member takes the change. A lost connection loses
what the member has not sent. Within a session a member is never behind what the session has seen;
a new session may be with any member, as a client then forgets what it has seen.
"""

import copy
import random
from collections.abc import Sequence

from stormkeeper.errors import StateUnavailableError
from stormkeeper.state.storage import EventType, NodeData
from support.memory_tree import Event, MemoryTree

ROOTS = ("/a", "/names", "/calm")


class LaggingEnsemble:
    """The log, the members and one session, as the part of `StateReader` that subscriptions use."""

    def __init__(self, draw: random.Random, members: int = 3) -> None:
        self._draw = draw
        self._tree = MemoryTree()
        for root in ROOTS:
            self._tree.put(root, b"")
        #: The trees after each change, and the events of the change.
        self.log: list[tuple[MemoryTree, list[Event]]] = [(copy.deepcopy(self._tree), [])]
        self._positions = [0] * members
        self._member = 0
        self._seen = 0
        self._is_connected = True
        self._watched: set[str] = set()
        self._observers: dict[str, object] = {}
        self.is_calm = False

    # --- what the test does

    def change(self) -> None:
        """Commit a random change."""
        draw, tree = self._draw, self._tree
        path = f"{draw.choice(ROOTS)}/{draw.choice('xyz')}"
        if draw.random() < 0.5:
            path += f"/{draw.choice('pq')}"
        if draw.random() < 0.4:
            if tree.find(path) is None:
                return
            events = tree.delete(path)
        else:
            events = tree.put(path, bytes([draw.randrange(3)]))
        self.log.append((copy.deepcopy(tree), events))

    def advance(self, member: int, changes: int) -> None:
        """Let a member take changes; the session gets their events if it is with the member."""
        for _ in range(changes):
            if self._positions[member] + 1 == len(self.log):
                return
            self._positions[member] += 1
            if member == self._member and self._is_connected:
                for event in self.log[self._positions[member]][1]:
                    self._notify(event)

    def disconnect(self) -> None:
        if self._is_connected:
            self._is_connected = False
            self._watched.clear()
            for root, observer in self._observers.items():
                observer(EventType.EVENTS_MISSED, root)

    def reconnect(self, *, as_new_session: bool) -> None:
        if self._is_connected:
            return
        if as_new_session:
            self._seen = 0
        able = [n for n, at in enumerate(self._positions) if at >= self._seen]
        self._member = self._draw.choice(able)
        self._is_connected = True

    def disturb(self) -> None:
        """Do some random things."""
        draw = self._draw
        while not self.is_calm and draw.random() < 0.6:
            match draw.choices(range(4), (8, 8, 1, 4))[0]:
                case 0:
                    self.change()
                case 1:
                    self.advance(draw.randrange(len(self._positions)), draw.randrange(1, 4))
                case 2:
                    self.disconnect()
                case _:
                    self.reconnect(as_new_session=draw.random() < 0.5)

    def calm_down(self) -> None:
        """Disturb no more: the session is connected, and its member still behind."""
        self.is_calm = True
        self.reconnect(as_new_session=True)

    # --- what a subscription does

    def watch_tree(self, path, observer) -> bool:
        self._call()
        self._observers[path] = observer
        self._watched.add(path)
        return True

    def unwatch_tree(self, path, _observer) -> None:
        self._observers.pop(path, None)

    def sync_path(self, _path: str) -> None:
        self._call()
        self.advance(self._member, len(self.log))
        self._seen = self._positions[self._member]

    def children_many(self, paths: Sequence[str], _watch: bool = False) -> list[list[str] | None]:
        nodes = [tree.find(path) for path, tree in self._reads(paths)]
        return [None if node is None else sorted(node.children) for node in nodes]

    def stat_many(self, paths: Sequence[str], _watch: bool = False):
        nodes = [tree.find(path) for path, tree in self._reads(paths)]
        return [None if node is None else node.stat for node in nodes]

    def read_many(self, paths: Sequence[str], _watch: bool = False) -> list[NodeData | None]:
        nodes = [tree.find(path) for path, tree in self._reads(paths)]
        return [None if node is None else NodeData(node.data, node.stat) for node in nodes]

    def _reads(self, paths: Sequence[str]) -> list[tuple[str, MemoryTree]]:
        """Return the tree that each read of a bulk read finds: the member goes on meanwhile."""
        self._call()
        found = []
        for path in paths:
            at = self._positions[self._member]
            self._seen = max(self._seen, at)
            found.append((path, self.log[at][0]))
            if not self.is_calm and self._draw.random() < 0.2:
                self.advance(self._member, 1)
        if not self.is_calm and self._draw.random() < 0.08:
            # The client repeats reads after a lost connection, perhaps in another session.
            self.disconnect()
            self.reconnect(as_new_session=self._draw.random() < 0.5)
            return self._reads(paths)
        return found

    def _call(self) -> None:
        self.disturb()
        if not self._is_connected:
            raise StateUnavailableError("cut off")

    def _notify(self, event: Event) -> None:
        if event.type is EventType.NODE_CHILDREN_CHANGED:
            return
        for root in self._watched:
            if event.path == root or event.path.startswith(f"{root}/"):
                self._observers[root](*event)
