"""The liveness of followed heartbeats beside that of all heartbeats, for histories of any kind."""

from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from stormkeeper import paths
from stormkeeper.heartbeats.follower import FollowedHeartbeats
from stormkeeper.heartbeats.liveness import LivenessLimits, Status
from stormkeeper.heartbeats.stores import Heartbeat, Heartbeats
from stormkeeper.nimbus.scheduling import assigned_workers, followed_workers
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.nimbus.scheduling.followed_workers import judge_followed
from stormkeeper.nimbus.scheduling.workers import LivenessMemory, judge_workers
from stormkeeper.paths import Slot
from stormkeeper.topology.plan import Claim
from support.clusters import EPOCH, NOW
from support.followed import StorePool
from support.questions import Clock

TIMES = {
    "epoch": EPOCH,
    "limits": LivenessLimits(9.0, 30.0, forget_secs=200.0, timeouts={"u": 50.0}),
    "launch_secs": 40.0,
    "supervisor_secs": 60.0,
}
NODES = ("n", "m")
SLOTS = [("t", "n", 1), ("t", "m", 1), ("u", "n", 2), ("u", "m", 2), ("v", "n", 3)]


class History(RuleBasedStateMachine):
    """Workers come, beat, move, fall silent and go; machines and servers fail and return."""

    @initialize(limit=st.sampled_from([0, 2]))
    def begin(self, limit):
        self.clock = Clock()
        self.pool = StorePool(3, self.clock, limit)
        self.follower = self.pool.follower()
        self.addresses = list(self.pool.clients)
        self.launches = {}
        self.supervisors = {*NODES}
        self.count = 0
        self.whole, self.followed = LivenessMemory(), LivenessMemory()
        self.beating = set()

    @rule(slot=st.sampled_from(SLOTS), epoch=st.sampled_from([EPOCH - 1, EPOCH]))
    def launch(self, slot, epoch):
        storm_id, node, port = slot
        self.count += 1
        others = [one for one in self.launches.get(storm_id, ()) if one.slot != Slot(node, port)]
        started_at = int(NOW + self.clock.now - 1000.0)
        new = Launch(Slot(node, port), Claim(epoch, self.count), ("q",), started_at)
        self.launches[storm_id] = (*others, new)

    @rule(storm_id=st.sampled_from("tuv"))
    def remove(self, storm_id):
        self.launches.pop(storm_id, None)

    @rule(storm_id=st.sampled_from("tuv"))
    def write_again(self, storm_id):
        if storm_id in self.launches:
            self.launches[storm_id] = (*list(self.launches[storm_id]),)

    @rule(slot=st.sampled_from(SLOTS), server=st.integers(0, 2))
    def beat(self, slot, server):
        if self.addresses[server] not in self.pool.down:
            self.clock.now += 0.25
            self.pool.clients[self.addresses[server]].store.put(self._path(slot), b"x")

    @rule(slot=st.sampled_from(SLOTS))
    def delete(self, slot):
        self.clock.now += 0.25
        for address, server in self.pool.clients.items():
            if address not in self.pool.down:
                server.store.delete(self._path(slot))

    def _path(self, slot):
        return paths.workerbeat(*slot).encode()

    @rule(server=st.integers(0, 2))
    def restart(self, server):
        self.pool.restart(self.addresses[server])

    @rule(server=st.integers(0, 2))
    def lose(self, server):
        self.pool.down ^= {self.addresses[server]}
        if len(self.pool.down) == 3:
            self.pool.down.clear()

    @rule(node=st.sampled_from(NODES))
    def lose_machine(self, node):
        self.supervisors ^= {node}

    @rule(secs=st.sampled_from([1.0, 5.0, 10.0, 25.0, 31.0, 61.0, 150.0]))
    def judge(self, secs):
        self.clock.now += secs
        now = NOW + self.clock.now - 1000.0
        coverage = self.follower.refresh().coverage
        everything = {
            path: Heartbeat(one.server, self.clock() - one.received_at, one.size, one.revision)
            for path, one in self.follower.items()
        }
        launches = [
            (storm_id, launch) for storm_id, some in self.launches.items() for launch in some
        ]
        self.whole, expected = judge_workers(
            self.whole,
            launches,
            self.supervisors,
            Heartbeats(everything, coverage),
            now=now,
            **TIMES,
        )
        heartbeats = FollowedHeartbeats(self.follower, coverage, self.clock())
        self.followed, statuses = judge_followed(
            self.followed, dict(self.launches), self.supervisors, heartbeats, now=now, **TIMES
        )
        assert statuses == {
            claim: each for claim, each in expected.items() if each is not Status.ALIVE
        }
        assert self.followed.lost_at == self.whole.lost_at
        assert self.followed.assigned.since() == self.whole.since
        # Whoever is waited for is waited for no longer than by whom looks at everything.
        timeout_secs = TIMES["limits"].timeout_secs
        ahead = [row.last_seen + timeout_secs for row in self.whole.rows]
        first = min((end for end in ahead if end > now), default=None)
        if first is not None:
            mine = min((end for end in self.followed.ends if end > now), default=inf)
            assert mine <= first


TestHistory = History.TestCase
TestHistory.settings = settings(stateful_step_count=50)


A, B = SLOTS[:2]


def moves_away(history):
    for slot in (A, B):
        history.launch(slot=slot, epoch=EPOCH)
        history.beat(slot=slot, server=0)
    history.judge(secs=1.0)
    history.lose(server=0)
    history.beat(slot=A, server=1)
    history.judge(secs=31.0)


def is_deleted(history):
    history.launch(slot=A, epoch=EPOCH)
    for secs in (1.0, 25.0, 1.0):
        history.beat(slot=A, server=0)
        history.judge(secs=secs)
    history.delete(slot=A)
    history.judge(secs=1.0)
    history.judge(secs=31.0)


def restarts(history):
    history.launch(slot=A, epoch=EPOCH)
    history.judge(secs=1.0)
    history.beat(slot=A, server=0)
    history.judge(secs=25.0)
    history.restart(server=0)
    history.judge(secs=10.0)


def is_launched_again(history):
    history.launch(slot=A, epoch=EPOCH)
    history.beat(slot=A, server=0)
    history.judge(secs=31.0)
    history.launch(slot=A, epoch=EPOCH)
    history.judge(secs=1.0)


def was_dead_before_a_restart(history):
    restarts(history)
    history.judge(secs=31.0)
    history.restart(server=0)
    history.judge(secs=1.0)


def is_launched_where_one_was(history):
    history.launch(slot=A, epoch=EPOCH)
    history.beat(slot=B, server=0)
    history.judge(secs=1.0)
    history.delete(slot=B)
    history.launch(slot=B, epoch=EPOCH)
    history.judge(secs=25.0)


update = followed_workers.AssignedWorkers.update


def takes_any_deletion(workers, launches, follower, **options):
    update(workers, launches, follower, **options)
    for path, deletion in follower.deleted_after(0):
        workers.unheard[path] = deletion.last


@pytest.mark.parametrize(
    ("steps", "what", "fault"),
    [
        (moves_away, "_Look._left_at", lambda _self, _server: float("-inf")),
        (is_deleted, "HeartbeatFollower.deleted_after", lambda _self, _number: ()),
        (is_launched_where_one_was, "AssignedWorkers.update", takes_any_deletion),
        (restarts, "_Look._watched", lambda _self, _row: float("inf")),
        (is_launched_again, "is_of_before", lambda *_: False),
        (was_dead_before_a_restart, "_Look._is_known", lambda *_: False),
    ],
)
def test_a_planted_fault_is_found(monkeypatch, steps, what, fault):
    def play():
        history = History()
        history.begin(limit=0)
        steps(history)

    play()
    module = assigned_workers if what.startswith("Heartbeat") else followed_workers
    monkeypatch.setattr(f"{module.__name__}.{what}", fault)
    with pytest.raises(AssertionError):
        play()
