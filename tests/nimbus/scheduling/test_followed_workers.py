"""The liveness of followed heartbeats beside that of all heartbeats, for histories of any kind."""

from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from stormkeeper import paths
from stormkeeper.heartbeats.follower import FollowedHeartbeats
from stormkeeper.heartbeats.liveness import (
    LivenessLimits,
    ServerHorizon,
    Status,
    WorkerBeat,
    after_beat,
    judged,
)
from stormkeeper.nimbus.scheduling import followed_workers
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.nimbus.scheduling.followed_workers import (
    LivenessMemory,
    beat_facts,
    judge_workers,
)
from stormkeeper.paths import Slot, WorkerId
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import serialize
from stormkeeper.topology.plan import Claim
from support.clusters import EPOCH, NOW
from support.followed import StorePool
from support.liveness_steps import WholeMemory, judge_all
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

    @initialize(limit=st.sampled_from([0, 2]), has_java=st.booleans())
    def begin(self, limit, has_java):
        self.clock = Clock()
        self.pool = StorePool(3, self.clock, limit, has_java=has_java)
        self.follower = self.pool.follower(decode=beat_facts, values=False)
        self.addresses = list(self.pool.clients)
        self.launches = {}
        self.supervisors = {*NODES}
        self.count = 0
        self.whole, self.followed = WholeMemory(), LivenessMemory()
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

    @rule(
        slot=st.sampled_from(SLOTS),
        server=st.integers(0, 2),
        ahead_secs=st.sampled_from([0, 0, 0, -100, 100]),
        completed=st.sampled_from([None, None, None, True]),
    )
    def beat(self, slot, server, ahead_secs=0, completed=None):
        if self.addresses[server] not in self.pool.down:
            self.clock.now += 0.25
            time_secs = int(NOW + self.clock.elapsed()) + ahead_secs
            beat = ClusterWorkerHeartbeat(slot[0], {}, time_secs, 5, completed=completed)
            self.pool.put(self.addresses[server], paths.workerbeat(*slot), serialize(beat))

    @rule(slot=st.sampled_from(SLOTS))
    def delete(self, slot):
        self.clock.now += 0.25
        self.pool.delete(paths.workerbeat(*slot))

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
        of = {
            WorkerId(storm_id, *launch.slot): launch
            for storm_id, some in self.launches.items()
            for launch in some
        }
        pulses = {worker: self.follower.get(paths.workerbeat(*worker)) for worker in of}
        self.whole, expected = judge_all(
            self.whole,
            of,
            self.supervisors,
            [self._beat(worker, one, now) for worker, one in pulses.items() if one is not None],
            {
                name: ServerHorizon(each.is_reachable, each.horizon_secs)
                for name, each in coverage.items()
            },
            now=now,
            **TIMES,
        )
        heartbeats = FollowedHeartbeats(self.follower, coverage, self.clock())
        self.followed, statuses = judge_workers(
            self.followed, dict(self.launches), self.supervisors, heartbeats, now=now, **TIMES
        )
        assert statuses == {
            claim: each for claim, each in expected.items() if each is not Status.ALIVE
        }
        assert self.followed.lost_at == self.whole.lost_at
        since = {one.launch.claim: one.since for one in self.followed.assigned.by_path.values()}
        assert since == self.whole.since
        # Whoever is waited for is waited for no longer than by whom looks at everything.
        timeout_secs = TIMES["limits"].timeout_secs
        ahead = [row.last_seen + timeout_secs for row in self.whole.rows]
        heard = {row.worker for row in self.whole.rows}
        ahead += [
            max(since[launch.claim]) + TIMES["launch_secs"]
            for worker, launch in of.items()
            if worker not in heard and pulses[worker] is None
        ]
        first = min((end for end in ahead if end > now), default=None)
        if first is not None:
            mine = min((end for end in self.followed.ends if end > now), default=inf)
            assert mine <= first

    def _beat(self, worker, pulse, now):
        received_at = pulse.received_at
        age = None if received_at is None else self.clock() - received_at
        facts = {} if pulse.value is None else pulse.value._asdict()
        return WorkerBeat(worker, *pulse.id, None if age is None else now - max(0.0, age), **facts)


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


def does_not_start(history):
    history.launch(slot=A, epoch=EPOCH)
    history.judge(secs=1.0)
    history.judge(secs=10.0)


def beats_to_java(history):
    history.launch(slot=A, epoch=EPOCH)
    for secs in (1.0, 25.0):
        history.beat(slot=A, server=2)
        history.judge(secs=secs)


def falls_silent_at_java(history):
    beats_to_java(history)
    history.restart(server=2)
    history.judge(secs=31.0)


def anew(row, beat, server, now):  # noqa: ARG001
    return after_beat(None, beat, server, now)


def forgetful(row, *how):
    return judged(row._replace(status=Status.ALIVE), *how)


update = followed_workers.AssignedWorkers.update


def waits_for_all(workers, after):  # noqa: ARG001
    return dict.fromkeys(workers.unheard, inf)


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
        (does_not_start, "AssignedWorkers.starting", waits_for_all),
        (restarts, "_Look._watched", lambda *_: float("inf")),
        (falls_silent_at_java, "_Look._watched", lambda *_: float("inf")),
        (is_launched_again, "is_of_before", lambda *_: False),
        (was_dead_before_a_restart, "judged", forgetful),
        (beats_to_java, "after_beat", anew),
    ],
)
def test_a_planted_fault_is_found(monkeypatch, steps, what, fault):
    def play():
        history = History()
        history.begin(limit=0, has_java="java" in steps.__name__)
        steps(history)

    play()
    monkeypatch.setattr(f"{followed_workers.__name__}.{what}", fault)
    with pytest.raises(AssertionError):
        play()
