"""Heartbeats as nodes: as old as what the reader saw of them, on its own clock."""

import pytest

from stormkeeper.errors import StateUnavailableError
from stormkeeper.state.backends import ZOOKEEPER, NodeHeartbeats
from support.heartbeats import path
from support.waiting import until


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def heartbeats(state, clock):
    return NodeHeartbeats(state, clock=clock)


def ages(found):
    return {where: one.age_secs for where, one in found.by_path.items()}


def test_heartbeat_age_counts_from_the_last_seen_change(heartbeats, clock):
    heartbeats.beat(path("a"), b"1")
    heartbeats.beat(path("b"), b"1")
    clock.now += 50.0  # nobody looked
    first = heartbeats.read_all()
    assert ages(first) == {path("a"): 0.0, path("b"): 0.0}
    assert first.coverage[ZOOKEEPER].horizon_secs == 0.0
    clock.now += 7.0
    heartbeats.beat(path("b"), b"1")  # the same value is a heartbeat too
    found = heartbeats.read_all()
    assert ages(found) == {path("a"): 7.0, path("b"): 0.0}
    assert found.coverage[ZOOKEEPER].horizon_secs == 7.0
    assert found.coverage[ZOOKEEPER].is_reachable
    assert found.by_path[path("b")].revision > first.by_path[path("b")].revision


def test_values_come_where_they_are_asked_for_and_sizes_always(heartbeats):
    heartbeats.beat(path("a"), b"first")
    heartbeats.beat(path("a", port=1), b"2")
    heartbeats.beat(path("b"), b"3")
    found = heartbeats.read_all("/workerbeats/a").by_path
    assert {where: (one.size, one.value) for where, one in found.items()} == {
        path("a"): (5, None),
        path("a", port=1): (1, None),
    }
    (alone,) = heartbeats.read_all(path("a"), values=True).by_path.values()
    assert alone.value == b"first"
    assert heartbeats.read(path("a")).value == b"first"
    assert heartbeats.read(path("c")) is None
    assert heartbeats.names() == ["a", "b"]
    assert heartbeats.names("/workerbeats/a") == ["node-1", "node-6700"]
    assert heartbeats.names("/workerbeats/c") == []
    assert heartbeats.read_all("/workerbeats/c").by_path == {}


def test_one_that_was_removed_and_comes_back_is_new(heartbeats, clock):
    heartbeats.beat(path("a"), b"1")
    heartbeats.read_all()
    clock.now += 9.0
    heartbeats.remove("/workerbeats/a")
    assert ages(heartbeats.read_all()) == {}
    heartbeats.beat(path("a"), b"1")
    assert ages(heartbeats.read_all()) == {path("a"): 0.0}


def test_a_read_of_a_part_forgets_nothing_of_the_rest(heartbeats, clock):
    heartbeats.beat(path("a"), b"1")
    heartbeats.beat(path("ab"), b"1")
    heartbeats.read_all()
    clock.now += 9.0
    heartbeats.read_all("/workerbeats/a")
    assert ages(heartbeats.read_all()) == {path("a"): 9.0, path("ab"): 9.0}


def test_without_a_connection_nobody_vouches_for_a_silence(ensemble, session, clock):
    heartbeats = NodeHeartbeats(session, clock=clock)
    heartbeats.beat(path("a"), b"1")
    heartbeats.read_all()
    clock.now += 20.0
    assert heartbeats.read_all().coverage[ZOOKEEPER].horizon_secs == 20.0
    ensemble.suspend(session)
    clock.now += 60.0
    with pytest.raises(StateUnavailableError):
        heartbeats.read_all()
    ensemble.resume(session)
    found = heartbeats.read_all()
    assert ages(found) == {path("a"): 80.0}
    assert found.coverage[ZOOKEEPER].horizon_secs == 0.0
    clock.now += 5.0
    assert heartbeats.read_all().coverage[ZOOKEEPER].horizon_secs == 5.0


def test_a_gap_in_which_nobody_read_is_a_gap_too(ensemble, session, clock):
    heartbeats = NodeHeartbeats(session, clock=clock)
    heartbeats.read_all()
    clock.now += 20.0
    ensemble.suspend(session)
    ensemble.resume(session)
    until(lambda: heartbeats.read_all().coverage[ZOOKEEPER].horizon_secs == 0.0)


def test_a_leader_s_writer_removes(session):
    removed = []

    class Writer:
        def delete_node(self, path):
            removed.append(path)

    heartbeats = NodeHeartbeats(session, remover=Writer())
    heartbeats.beat(path("a"), b"1")
    heartbeats.remove("/workerbeats/a")
    assert removed == ["/workerbeats/a"]
    assert heartbeats.read(path("a")) is not None


def test_a_follower_keeps_the_moments_of_nodes(heartbeats, clock):
    follower = heartbeats.follower(bytes.decode)
    for name in "ab":
        heartbeats.beat(path(name), b"1")
    assert follower.refresh().changed == {path("a"), path("b")}
    kept = follower.get(path("a"))
    clock.now += 7.0
    heartbeats.beat(path("b"), b"2")
    refreshed = follower.refresh()
    assert (refreshed.began, refreshed.changed) == (clock.now, {path("b")})
    assert refreshed.coverage[ZOOKEEPER].horizon_secs == 7.0
    assert follower.get(path("a")) is kept
    assert (follower.get(path("b")).value, follower.get(path("b")).received_at) == ("2", clock.now)
    assert [where for where, _ in follower.silent(5, clock.now)] == [path("a")]
    heartbeats.remove(path("a"))
    assert follower.refresh().changed == {path("a")}
    assert follower.get(path("a")) is None
