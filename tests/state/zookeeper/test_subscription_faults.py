"""A subscription on an ensemble whose members are killed, frozen and cut off."""

import contextlib
import os
import random
import signal
import threading
import time

import pytest

from stormkeeper.errors import StateError
from stormkeeper.state.subscription import Subscription
from stormkeeper.state.subtrees import Subtree
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.ensemble import Ensemble
from support.proxy import Proxy
from support.waiting import DEADLINE_SECS, until

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

SUBTREES = (Subtree("/a", 2, lambda _path, data: data), Subtree("/names", 2))
ROUNDS = 12
#: More seeds on demand.
SEEDS = int(os.environ.get("FAULT_SEEDS", "1"))
#: As short as members with ticks of 250 ms allow.
TIMES = {"session_timeout_secs": 3.0, "call_timeout_secs": 20.0, "retry_interval_secs": 0.05}


def session(addresses, **changes):
    return ZooKeeperState(
        EnsembleSettings(servers=tuple(addresses), root="/faults", **{**TIMES, **changes})
    )


class Writer(threading.Thread):
    """Changes random nodes, persistent and ephemeral, until told to rest."""

    def __init__(self, state, seed):
        super().__init__(daemon=True)
        self._state = state
        self._draw = random.Random(seed)
        self._is_running = threading.Event()
        self._rests = threading.Event()
        self._ends = False
        self.done = 0

    def run(self):
        while not self._ends:
            if not self._is_running.wait(0.05):
                self._rests.set()
                continue
            self._rests.clear()
            with contextlib.suppress(StateError):
                self._write()
                self.done += 1

    def go(self):
        self._rests.clear()
        self._is_running.set()

    def rest(self):
        self._is_running.clear()
        assert self._rests.wait(DEADLINE_SECS)

    def end(self):
        self._ends = True
        self._is_running.set()
        self.join(DEADLINE_SECS)

    def _write(self):
        draw = self._draw
        path = f"/{draw.choice(('a', 'names'))}/{draw.randrange(20)}"
        match draw.randrange(6):
            case 0:
                self._state.delete_node(path)
            case 1:
                self._state.set_ephemeral_node(f"{path}-ephemeral", b"")
            case 2:
                self._state.delete_node(f"{path}-ephemeral")
            case 3:
                self._state.set_data(f"{path}/{draw.randrange(3)}", b"")
            case _:
                self._state.set_data(path, str(self.done).encode())


@contextlib.contextmanager
def cut_off(proxies):
    for proxy in proxies:
        proxy.cut()
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.mend()


@contextlib.contextmanager
def frozen(member):
    os.kill(member.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(member.pid, signal.SIGCONT)


@contextlib.contextmanager
def killed(ensemble, member):
    ensemble.kill(member)
    try:
        yield
    finally:
        ensemble.start([member])


def contents(state, root):
    """Return the nodes at and below a path, with metadata; of the store as it is now."""
    state.sync_path(root)
    found, level = {}, [root]
    while level:
        stats = dict(zip(level, state.stat_many(level), strict=True))
        found |= {path: stat for path, stat in stats.items() if stat is not None}
        listed = zip(level, state.children_many(level), strict=True)
        level = [f"{path}/{name}" for path, names in listed for name in names or ()]
    return found


def is_listed(path):
    return path.startswith("/names/") and path.count("/") == 3


def shown(nodes, root):
    """Return what a subscription keeps up to date of each node."""
    if root == "/names":
        return {path: is_listed(path) or stat.created for path, stat in nodes.items()}
    return {path: (stat.created, stat.modified) for path, stat in nodes.items() if path != root}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_view_equals_the_store_at_every_rest(tmp_path, seed):
    draw = random.Random(seed)
    with contextlib.ExitStack() as running:
        ensemble = running.enter_context(Ensemble(tmp_path))
        proxies = [running.enter_context(Proxy(address)) for address in ensemble.addresses]
        writers = [Writer(session(ensemble.addresses), number) for number in range(2)]
        for writer in writers:
            running.callback(writer._state.close)
            running.callback(writer.end)
        first = writers[0]._state
        first.mkdirs("/a")
        first.mkdirs("/names")
        reader = session([proxy.address for proxy in proxies])
        running.callback(reader.close)
        subscription = running.enter_context(Subscription(reader, SUBTREES))
        newest, faults = {}, []

        def note(_changes):
            for nodes in subscription.snapshot.trees.values():
                for path, node in nodes.items():
                    if is_listed(path):
                        continue
                    version = (node.stat.created, node.stat.modified)
                    if version < newest.get(path, version):
                        faults.append((path, newest[path], version))
                    newest[path] = version

        subscription.add_listener(note)
        for writer in writers:
            writer.start()
        for _ in range(ROUNDS):
            for writer in writers:
                writer.go()
            member = draw.choice(ensemble.members)
            some = draw.sample(proxies, draw.randrange(1, 4))
            faulty = draw.choice((cut_off(some), frozen(member), killed(ensemble, member)))
            with faulty:
                time.sleep(draw.uniform(0.2, 4.0))
            time.sleep(draw.uniform(0.0, 0.5))
            for writer in writers:
                writer.rest()
            # Sessions that ended in a fault go, and registrations are made again, in their time.
            until(lambda: equals_the_store(subscription, first))
        assert faults == []
        assert sum(writer.done for writer in writers) > 100


def equals_the_store(subscription, state):
    with contextlib.suppress(StateError):
        trees = subscription.now().trees
        return all(
            shown({path: node.stat for path, node in nodes.items()}, root)
            == shown(contents(state, root), root)
            for root, nodes in trees.items()
        )
    return False
