"""Real processes that go on as if they led, when another one does: ZooKeeper refuses them."""

import json
import re
from contextlib import contextmanager

import pytest

from faults.zombie import HISTORY, Zombie
from stormkeeper import paths
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.proxy import Proxy
from support.stores import settings_for
from support.transactions import Transaction
from support.waiting import until

pytestmark = pytest.mark.zookeeper

#: In the queue of whoever is made a zombie, and how many it comes to before.
QUEUED = 200
BEFORE = 20

#: Of whoever leads next.
SUCCESSOR_S = 20

#: What an answer is, as one letter.
LETTERS = {
    "done": "d",
    "NotLeaderError": "r",
    "OutcomeUnknownError": "u",
    "StateUnavailableError": "n",
}


@pytest.fixture
def state(zookeeper_server, zookeeper_root):
    """A session that looks on."""
    state = ZooKeeperState(settings_for(zookeeper_server, zookeeper_root))
    yield state
    state.close()


@pytest.fixture
def zombie(zookeeper_server, zookeeper_root):
    def zombie(address=zookeeper_server.address, **job):
        return Zombie(address, zookeeper_root, **job)

    return zombie


def letters(process):
    return "".join(LETTERS[outcome] for outcome in process.outcomes)


def check_history(state, first, second):
    """Fail if there is more or less than was told, or the reigns overlap."""
    written = sorted(state.children_data(HISTORY).items(), key=lambda entry: entry[1].stat.created)
    assert [name for name, _ in written] == [f"w-{n:010}" for n in range(len(written))]
    records = [json.loads(node.data) for _, node in written]
    epochs = [record["epoch"] for record in records]
    assert set(epochs) == {first.epoch, second.epoch}
    assert first.epoch < second.epoch
    assert epochs == sorted(epochs)
    numbers = [record["number"] for record in records if record["epoch"] == second.epoch]
    assert numbers == list(range(SUCCESSOR_S))
    found = {record["number"] for record in records if record["epoch"] == first.epoch}
    assert len(first.outcomes) == QUEUED
    done = {n for n, outcome in enumerate(first.outcomes) if outcome == "done"}
    unknown = {n for n, outcome in enumerate(first.outcomes) if outcome == "OutcomeUnknownError"}
    assert done <= found <= done | unknown


@contextmanager
def successor(state, first, zombie):
    """A second process, which waits for the first one's end and writes then; both may begin."""
    assert first.epoch
    with zombie(writes=SUCCESSOR_S) as second:
        second.work()
        until(lambda: len(state.get_children(paths.LEADER_LOCK)) == 2, 60)
        first.work()
        yield second


def test_one_that_was_stopped_in_its_queue(state, zombie):
    with zombie(writes=QUEUED) as first, successor(state, first, zombie) as second:
        until(lambda: len(first.outcomes) >= BEFORE)
        first.stop()
        until(lambda: second.is_over)
        first.go_on()
        until(lambda: first.is_over)
        # Of what was on the wire when it was stopped it may not learn; the next one may meet a
        # connection that is dead and does not know.
        assert re.fullmatch(f"d{{{BEFORE},}}u{{0,2}}r{{50,}}", letters(first)), letters(first)
        check_history(state, first, second)


@pytest.mark.slow
def test_one_that_was_stopped_in_the_middle_of_a_large_deletion(state, zombie):
    state.mkdirs("/big")
    for start in range(0, 2000, 500):
        transaction = Transaction(state.commit)
        for number in range(start, start + 500):
            transaction.create(f"/big/{number}", b"")
        transaction.commit()
    with zombie(writes=QUEUED, delete="/big") as first, successor(state, first, zombie) as second:
        until(lambda: len(state.get_children("/big")) <= 1900)
        first.stop()
        until(lambda: second.is_over)
        left = state.get_children("/big")
        assert 0 < len(left) <= 1900
        assert first.outcomes == []
        first.go_on()
        until(lambda: first.is_over)
        assert state.get_children("/big") == left
        # The deletion itself went on where its answer was lost, and was refused.
        assert re.fullmatch(f"r{{{1 + QUEUED}}}", letters(first)), letters(first)
        written = state.children_data(HISTORY).values()
        assert [json.loads(node.data)["epoch"] for node in written] == [second.epoch] * SUCCESSOR_S


def test_one_that_was_cut_off(state, zombie, zookeeper_server):
    with (
        Proxy(zookeeper_server.address) as proxy,
        zombie(proxy.address, writes=QUEUED, call_secs=1.0) as first,
        successor(state, first, zombie) as second,
    ):
        until(lambda: len(first.outcomes) >= BEFORE)
        proxy.cut()
        until(lambda: second.is_over)
        proxy.mend()
        until(lambda: first.is_over)
        # While it is cut off it says that nothing was sent.
        pattern = f"[du]{{{BEFORE},}}n*u?r{{50,}}"
        assert re.fullmatch(pattern, letters(first)), letters(first)
        check_history(state, first, second)
