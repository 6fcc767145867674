"""A subscription keeps up with the store, whatever befalls session and members.

``SIMULATION_SEEDS`` says how many schedules; ``make simulate`` runs 10,000.
"""

import contextlib
import os
import random
from collections import Counter

import pytest

from simulation.lagging_ensemble import ROOTS, LaggingEnsemble
from stormkeeper.errors import StateUnavailableError
from stormkeeper.state import subtrees
from stormkeeper.state.storage import EventType
from stormkeeper.state.subscription import Subscription
from stormkeeper.state.subtrees import Mirror, Subtree

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "100"))

SUBTREES = (
    Subtree("/a", 2, lambda _path, value: value),
    Subtree("/names", 2),
    Subtree("/calm", 2, lambda _path, value: value, is_busy=True),
)
#: Its value does not wait.
HURRIED = "/calm/x"
STEPS = 40


class World:
    """A subscription and its store, stepped by a seed; `snapshots` has all that was published."""

    def __init__(self, seed, mirror=Mirror, kind=Subscription):
        self.store = LaggingEnsemble(random.Random(seed))
        self.clock = 0.0
        self.subscription = kind(self.store, SUBTREES, busy_reads=1, clock=lambda: self.clock)
        self.subscription._mirror = mirror(SUBTREES)
        self.subscription.hurry([HURRIED])
        self.snapshots = []
        #: Calls of `now` that wait: their number, and the log's length.
        self.asked = []
        self.late_answers = 0
        #: Steps after which values wait.
        self.waits = 0
        draw = random.Random(seed)
        self.subscription.add_listener(lambda _: self.snapshots.append(self.subscription.snapshot))
        for _ in range(STEPS):
            self.store.disturb()
            if draw.random() < 0.1:
                self.ask()
            self.clock += draw.choice((0.0, 0.01, 0.1))
            self.step()
        self.store.calm_down()
        for member in range(3):
            self.store.advance(member, len(self.store.log))
        for _ in range(15):
            self.clock += 1.0
            self.step()

    def step(self):
        with contextlib.suppress(StateUnavailableError):
            self.subscription._step()
        self.waits += bool(self.subscription._mirror.waiting)
        self.clock += 0.001
        if self.subscription.age_secs == 0.0:
            answered = [at for number, at in self.asked if number <= self.subscription._answered]
            self.late_answers += any(self.is_before(at) for at in answered)
            self.asked = [one for one in self.asked if one[0] > self.subscription._answered]

    def ask(self):
        """Call `now`, which a step is to answer."""
        with contextlib.suppress(StateUnavailableError):
            self.store.sync_path("/")
            self.subscription._asked += 1
            self.asked.append((self.subscription._asked, len(self.store.log)))

    def is_before(self, at):
        """Whether the snapshot lacks a change of the first `at` entries of the log."""
        for root, nodes in self.subscription.snapshot.trees.items():
            for path in all_paths(self.store):
                if below(path, root) and path != root:
                    node = nodes.get(path)
                    shown = version(node and node.stat, path)
                    since = self.store.log[at - 1 :]
                    if all(version(tree.find(path), path) != shown for tree, _ in since):
                        return True
        return False

    def faults(self):
        """What a reader may never see, in words."""
        tree, _ = self.store.log[-1]
        for root in ROOTS:
            found = self.subscription.snapshot.trees.get(root, {})
            wanted = {path for path in all_paths(self.store) if below(path, root)}
            wanted = {path for path in wanted if tree.find(path) is not None}
            if found.keys() != wanted:
                yield "at rest, nodes differ"
            elif root != "/names" and any(
                node.value != tree.get(path).data for path, node in found.items() if path != root
            ):
                yield "at rest, values differ"
        if self.late_answers:
            yield "an answer lacks a change before its call"
        for path in all_paths(self.store):
            if self.goes_back(path):
                yield "a node goes back in time"
        for snapshot in self.snapshots:
            if not any(is_of(snapshot, tree) for tree, _ in self.store.log):
                yield "a snapshot is of no moment"

    def goes_back(self, path):
        """Whether no rising positions of the log have what the snapshots show of a node."""
        root = next(root for root in ROOTS if below(path, root))
        history = [version(tree.find(path), path) for tree, _ in self.store.log]
        at = 0
        for snapshot in self.snapshots:
            node = snapshot.trees[root].get(path)
            shown = version(node and node.stat, path)
            # Nothing is known before the first comparison of a subtree.
            if shown is None and not snapshot.trees[root]:
                continue
            while at < len(history) and history[at] != shown:
                at += 1
            if at == len(history):
                return True
        return False


def is_of(snapshot, tree):
    """Whether a snapshot is the state of a tree, as far as subscriptions follow it."""
    for root, nodes in snapshot.trees.items():
        found = {path: node.stat for path, node in nodes.items() if path != root}
        for path, stat in found.items():
            there = tree.find(path)
            # A value that waits is older than the node's moment.
            if root == "/calm" and path != HURRIED:
                is_same = there is not None and there.created == stat.created
            else:
                is_same = version(there, path) == version(stat, path)
            if not is_same:
                return False
        if len(found) != sum(below(path, root) for path in nodes_of(tree)) - 1:
            return False
    return True


def nodes_of(tree, path="/"):
    yield path
    for name in tree.get(path).children:
        yield from nodes_of(tree, f"{path.rstrip('/')}/{name}")


def all_paths(store):
    return {path for _, events in store.log for _, path in events} | set(ROOTS)


def below(path, root):
    return path == root or path.startswith(f"{root}/")


def version(node, path):
    """Return what a subscription tells of a node; None if it is not there."""
    if node is None:
        return None
    if not below(path, "/names"):
        return (node.created, node.modified)
    return node.created if path.count("/") < 3 else "listed"


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed-{seed}")
def test_snapshots_follow_the_store(seed):
    assert list(World(seed).faults()) == []


def test_schedules_have_what_they_should_withstand():
    seen = Counter()
    for seed in range(20):
        world = World(seed)
        seen["snapshots"] += len(world.snapshots)
        seen["changes"] += len(world.store.log)
        seen["waits"] += world.waits
        seen["answers"] += world.subscription._answered
        seen["old answers"] += world.subscription.old_answers
    assert seen["snapshots"] > 100, seen
    assert seen["changes"] > 500, seen
    assert seen["answers"] > 20, seen
    assert seen["waits"] > 50, seen


class NoSync(Subscription):
    """Compares with a member that may lag behind."""

    def _watch_again(self):
        sync, self._state.sync_path = self._state.sync_path, lambda _path: None
        try:
            super()._watch_again()
        finally:
            self._state.sync_path = sync


class NoComparison(Mirror):
    """Takes no notice of lost events after the first comparison."""

    was_compared = False

    def compare_all(self, **how):
        if not self.was_compared:
            super().compare_all(**how)
        self.was_compared = True


class DropsEvents(Subscription):
    """Drops the events that come while nodes are read, as if the answers had their changes."""

    def _is_done(self, work):
        done = super()._is_done(work)
        if done:
            self._events.clear()
        return done


class NoNewLists(Mirror):
    """Does not list what is new."""

    def _put(self, path, node):
        super()._put(path, node)
        if path not in ROOTS:
            self._lists.pop(path, None)


class KeepsOldAnswers(Subscription):
    """Takes answers of another session for the last session's: hears too late of the loss."""

    _is_reading = _is_late = False

    def _on_event(self, event, path):
        if self._is_reading and event is EventType.EVENTS_MISSED:
            self._is_late = True
        else:
            super()._on_event(event, path)

    def _is_done(self, work):
        self._is_reading, self._is_late = True, False
        try:
            return super()._is_done(work) and not self._is_late
        finally:
            self._is_reading = False
            if self._is_late:
                self._on_event(EventType.EVENTS_MISSED, "/a")


class CalmNodes(Subscription):
    """Lets nodes that come and go wait, too."""

    def _may_wait(self, event, path):
        return event is not EventType.EVENTS_MISSED and below(path, "/calm")


class NoHurry(Subscription):
    """Lets all values wait."""

    def _may_wait(self, event, path):
        return event is EventType.NODE_DATA_CHANGED and below(path, "/calm")


class NeverRead(Mirror):
    """Forgets the values that wait."""

    def end_waits(self, paths):
        for path in paths:
            self.waiting.pop(path, None)


class NotNow(Subscription):
    """Answers calls of `now` without the values that wait."""

    def _end_waits(self, _asked):
        super()._end_waits(0)


FAULTS = [NoSync, NoComparison, DropsEvents, NoNewLists, KeepsOldAnswers]
FAULTS += [CalmNodes, NoHurry, NeverRead, NotNow]


def has_same_version(known, stat):
    return known is not None and known.stat.version == stat.version


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_found(fault):
    options = {"mirror": fault} if issubclass(fault, Mirror) else {"kind": fault}
    assert any(True for seed in range(500) for _ in World(seed, **options).faults())


def test_versions_alone_do_not_show_a_new_node(monkeypatch):
    monkeypatch.setattr(subtrees, "_has_same_value", has_same_version)
    assert any(True for seed in range(500) for _ in World(seed).faults())
