"""A subscription beside the store of the tests, whatever sessions do and lose."""

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from stormkeeper.errors import StateError
from stormkeeper.state.subscription import Subscription, Subtree
from support.memory_state import MemoryEnsemble

SUBTREES = (Subtree("/a", 2, lambda _path, data: data), Subtree("/names", 1))
PATHS = st.builds("/{}/{}".format, st.sampled_from(["a", "names"]), st.sampled_from(["x", "x/p"]))


class Beside(RuleBasedStateMachine):
    """Two sessions change the store; the first has the subscription, which is stepped by hand."""

    @initialize(has_tree_watches=st.booleans())
    def open(self, has_tree_watches):
        self.ensemble = MemoryEnsemble(inline=True, has_tree_watches=has_tree_watches)
        self.own, self.other = self.ensemble.session(), self.ensemble.session()
        for root in ("/a", "/names"):
            self.other.mkdirs(root)
        self.subscription = Subscription(self.own, SUBTREES)
        self.subscription.add_listener(self.check_versions)
        self.newest = {}

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

    @rule()
    def step(self):
        with contextlib.suppress(StateError):
            self.subscription._step()

    def check_versions(self):
        for nodes in self.subscription.snapshot.trees.values():
            for path, node in nodes.items():
                version = (node.stat.created, node.stat.modified)
                assert version >= self.newest.get(path, version)
                self.newest[path] = version

    def teardown(self):
        if not hasattr(self, "ensemble"):
            return
        self.ensemble.resume(self.own)
        with contextlib.suppress(StateError):
            self.own.sync_path("/")  # a session that has ended learns of that by a call
        for _ in range(4):
            self.step()
        trees = self.subscription.snapshot.trees
        assert self.subscription.age_secs == 0.0
        shown = {path: node.value for path, node in trees["/a"].items() if path != "/a"}
        assert shown == {path: self.own.get_data(path) for path in below(self.own, "/a", 2)}
        assert set(trees["/names"]) == {"/names", *below(self.own, "/names", 1)}


def below(state, path, depth):
    names = [f"{path}/{name}" for name in state.get_children(path)]
    return names + [each for name in names if depth > 1 for each in below(state, name, depth - 1)]


TestBeside = Beside.TestCase
TestBeside.settings = settings(deadline=None, stateful_step_count=50)
