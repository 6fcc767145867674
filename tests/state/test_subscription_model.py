"""A subscription beside the store of the tests, whatever sessions do and lose."""

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from stormkeeper.errors import StateError
from stormkeeper.state.subscription import Subscription
from stormkeeper.state.subtrees import Subtree, change_order
from support.memory_state import MemoryEnsemble

SUBTREES = (
    Subtree("/a", 2, lambda _path, data: data),
    Subtree("/names", 1),
    Subtree("/calm", 2, lambda _path, data: data, is_busy=True),
)
ROOTS = [each.path for each in SUBTREES]
PATHS = st.builds("{}/{}".format, st.sampled_from(ROOTS), st.sampled_from(["x", "x/p"]))


class Beside(RuleBasedStateMachine):
    """Two sessions change the store; the first has the subscription, which is stepped by hand."""

    @initialize(has_tree_watches=st.booleans())
    def open(self, has_tree_watches):
        self.ensemble = MemoryEnsemble(inline=True, has_tree_watches=has_tree_watches)
        self.own, self.other = self.ensemble.session(), self.ensemble.session()
        for root in ROOTS:
            self.other.mkdirs(root)
        self.clock = 0.0
        self.hurried = []
        #: Found by listeners, whose exceptions are only logged.
        self.faults = []
        self.subscription = Subscription(self.own, SUBTREES, busy_reads=2, clock=lambda: self.clock)
        self.subscription.add_listener(self.check_versions)
        self.subscription.add_listener(self.check_changes)
        self.newest, self.known = {}, self.subscription.snapshot

    @rule(path=PATHS, value=st.binary(max_size=2), is_own=st.booleans())
    def write(self, path, value, is_own):
        with contextlib.suppress(StateError):
            (self.own if is_own else self.other).set_data(path, value)

    @rule(path=PATHS, is_own=st.booleans())
    def register(self, path, is_own):
        with contextlib.suppress(StateError):
            (self.own if is_own else self.other).set_ephemeral_node(f"{path}-ephemeral", b"")

    @rule(path=PATHS)
    def delete(self, path):
        self.other.delete_node(path)

    @rule(is_own=st.booleans())
    def expire(self, is_own):
        self.ensemble.expire(self.own if is_own else self.other)

    @rule()
    def suspend(self):
        self.ensemble.suspend(self.own)

    @rule()
    def end_session(self):
        self.ensemble.end_session(self.own)

    @rule()
    def resume(self):
        self.ensemble.resume(self.own)

    @rule(path=PATHS)
    def hurry(self, path):
        self.hurried = [path]
        self.subscription.hurry(self.hurried)

    @rule(secs=st.sampled_from([0.0, 0.01, 1.0]))
    def step(self, secs):
        self.clock += secs
        with contextlib.suppress(StateError):
            self.subscription._step()
        self.check_values(self.hurried)
        assert self.faults == []

    @rule()
    def ask_and_step(self):
        """A reader calls `now`."""
        self.subscription._asked += 1
        self.step(0.0)
        if self.subscription._answered == self.subscription._asked:
            self.check_values(self.subscription.snapshot.trees["/calm"].keys() - {"/calm"})

    def check_values(self, shown):
        """What does not wait is as in the store."""
        with contextlib.suppress(StateError):
            self.own.sync_path("/")  # a session that has ended learns of that by a call
            self.clock += 0.001
            for path in shown if self.subscription.age_secs == 0.0 else ():
                root = next(root for root in ROOTS if path.startswith(root))
                node = self.subscription.snapshot.trees[root].get(path)
                value = None if root == "/names" else self.own.get_data(path)
                assert (None if node is None else node.value) == value

    def check_changes(self, changes):
        """A listener gets what `Snapshot.changes_since` finds."""
        before, self.known = self.known, self.subscription.snapshot
        found = self.known.changes_since(before)
        if {one.path: one for one in changes} != {one.path: one for one in found}:
            self.faults.append((changes, found))
        if list(map(change_order, changes)) != list(map(change_order, found)):
            self.faults.append("another order")

    def check_versions(self, _changes):
        for nodes in self.subscription.snapshot.trees.values():
            for path, node in nodes.items():
                if path.startswith("/names/"):
                    continue  # listed
                version = (node.stat.created, node.stat.modified)
                if version < self.newest.get(path, version):
                    self.faults.append((path, "goes back in time"))
                self.newest[path] = version

    def teardown(self):
        if not hasattr(self, "ensemble"):
            return
        self.ensemble.resume(self.own)
        with contextlib.suppress(StateError):
            self.own.sync_path("/")
        for _ in range(4):
            self.step(1.0)
        trees = self.subscription.snapshot.trees
        assert self.subscription.age_secs == 0.0
        for root in ("/a", "/calm"):
            shown = {path: node.value for path, node in trees[root].items() if path != root}
            assert shown == {path: self.own.get_data(path) for path in below(self.own, root, 2)}
        assert set(trees["/names"]) == {"/names", *below(self.own, "/names", 1)}


def below(state, path, depth):
    names = [f"{path}/{name}" for name in state.get_children(path)]
    return names + [each for name in names if depth > 1 for each in below(state, name, depth - 1)]


TestBeside = Beside.TestCase
TestBeside.settings = settings(deadline=None, stateful_step_count=50)
