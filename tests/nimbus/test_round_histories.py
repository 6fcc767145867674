"""Rounds over random histories: what a round keeps from the last one changes no decision."""

import copy
import random
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from stormkeeper import paths
from stormkeeper.conf import load
from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.heartbeats.stores import Heartbeat, Heartbeats
from stormkeeper.nimbus import lifecycle
from stormkeeper.nimbus.cluster_status import ClusterStatusTracker
from stormkeeper.nimbus.lifecycle import Command, Event
from stormkeeper.nimbus.round import RoundMemory, Timeouts, decide
from stormkeeper.nimbus.scheduling.cluster import assignment_record
from stormkeeper.nimbus.scheduling.cluster_memo import ClusterMemo
from stormkeeper.nimbus.scheduling.planning import Assign, FinishRebalance, Remove
from stormkeeper.nimbus.submitted import Submitted, TopologyCache
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.thrift.nimbus import StormTopology
from stormkeeper.thrift.records import (
    CrashSeries,
    LaunchClaim,
    SlotReport,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
)
from stormkeeper.topology.description import of_topology
from support.clusters import EPOCH, NOW
from support.followed import WholeReadings
from support.topologies import make

TIMES = Timeouts(monitor=10.0, launch=120.0, limits=LivenessLimits(9.0, 30.0), kept=300.0)
SERVER = "a:6699"
PORTS = [6700, 6701, 6702]
GRAPH = {"words": ((), 2), "counts": (("words",), 3), "sums": (("words",), 1)}


class Code(dict):
    """The code of topologies, by their ids."""

    def __init__(self):
        super().__init__()
        self._versions = {}
        self.revision = 0

    def __setitem__(self, storm_id, code):
        super().__setitem__(storm_id, code)
        self.revision += 1
        self._versions[storm_id] = len(self._versions), self._versions.get(storm_id)

    def version(self, storm_id):
        return self._versions[storm_id] if storm_id in self else None


class History:
    """A cluster of records to which something random happens between two rounds."""

    def __init__(self, seed, conf):
        self.random = random.Random(seed)
        self.conf = conf
        self.code, self.cache = Code(), None
        self.memory, self.status = RoundMemory(), ClusterStatusTracker()
        self.bases, self.assignments, self.supervisors = {}, {}, {}
        self.ended, self.claimed, self.ages = {}, {}, {}
        self.unreadable = frozenset()
        self.secs, self.looks = 0.0, 0
        self.readings = WholeReadings()
        self.submitted = 0
        self.cache = TopologyCache(self.code, conf)

    def happen(self):
        what = [self.submit, self.submit, self.register, self.register, self.pass_time]
        what += [self.beat_all, self.beat_all]
        if self.bases:
            what += [self.command, self.end, self.claim, self.upload, self.spread, self.rebase]
        if self.supervisors:
            what += [self.report, self.report, self.report, self.lose]
        if self.random.random() < 0.1:
            what.append(self.spoil)
        self.random.choice(what)()

    def submit(self):
        self.submitted += 1
        id_ = f"t{self.submitted}"
        shared = self.random.random() < 0.5
        conf = MappingProxyType({"topology.checkpoint.shared": shared})
        self.code[id_] = Submitted(StormTopology({}, {}, {}), conf, of_topology(make(GRAPH)))
        workers = self.random.randint(1, 3)
        self.bases[id_] = StormBase(id_, TopologyStatus.ACTIVE, workers, {}, NOW)

    def register(self):
        id_ = f"s{self.random.randint(0, 4)}"
        self.supervisors[id_] = SupervisorInfo(
            NOW, f"{id_}.example", id_, [], PORTS, uptime_secs=0, stormkeeper="0.1.0"
        )

    def lose(self):
        del self.supervisors[self.random.choice([*self.supervisors])]

    def report(self):
        """Have a supervisor write its record again, mostly with nothing new but its uptime."""
        id_ = self.random.choice([*self.supervisors])
        info = self.supervisors[id_] = copy.deepcopy(self.supervisors[id_])
        info.uptime_secs = (info.uptime_secs or 0) + self.random.choice([5, 5, 200])
        here = [
            one for each in self.assignments.values() for one in each.launches if one.node == id_
        ]
        match self.random.randint(0, 8):
            case 0:
                info.used_ports = [one.port for one in here if not one.released]
            case 1:
                info.stopped_workers = {one.port: one.claim for one in here if one.released}
            case 2:
                info.slots = {
                    one.port: SlotReport(
                        LaunchClaim(one.claim.epoch, one.claim.counter),
                        "running",
                        NOW,
                        self.random.choice([None, CrashSeries(len(here), NOW, "it failed")]),
                    )
                    for one in here
                }
            case 3:
                info.refuses = self.random.choice([None, "the disk is full"])
            case 4:
                info.meta = self.random.sample(PORTS, 2)
            case 5:
                info.resources_map = {"memory.mb": self.random.choice([500.0, 5000.0])}
            case 6:
                info.stormkeeper = self.random.choice([None, "0.1.0"])

    def command(self):
        id_ = self.random.choice([*self.bases])
        event_ = self.random.choice([Event.KILL, Event.REBALANCE, Event.INACTIVATE, Event.ACTIVATE])
        self.say(id_, event_, **({} if "ACTIVATE" in event_.name else {"wait_secs": 3}))

    def say(self, id_, event_, **options):
        command = Command(event_, int((NOW + self.secs) * 1000), **options)
        try:
            self.bases[id_] = lifecycle.after(id_, self.bases[id_], command) or self.bases[id_]
        except lifecycle.StatusError:
            return

    def rebase(self):
        id_ = self.random.choice([*self.bases])
        self.bases[id_] = copy.copy(self.bases[id_])
        self.bases[id_].num_workers = self.random.randint(1, 3)

    def end(self):
        self.ended[self.random.choice([*self.bases])] = frozenset({"counts"})

    def claim(self):
        self.claimed[self.random.choice([*self.bases])] = frozenset({"sums"})

    def upload(self):
        id_ = self.random.choice([*self.bases])
        self.code[id_] = replace(self.code[id_], conf=MappingProxyType({}))

    def spread(self):
        id_ = self.random.choice([*self.bases])
        self.bases[id_] = copy.copy(self.bases[id_])
        self.bases[id_].component_executors = {"words": self.random.randint(1, 4)}

    def spoil(self):
        named = [*map(paths.storm, self.bases), *map(paths.assignment, self.assignments)]
        named += map(paths.supervisor, self.supervisors)
        self.unreadable = frozenset(self.random.sample(named, min(len(named), 1)))

    def pass_time(self):
        self.secs += self.random.choice([1.0, 40.0, 130.0])
        self.ages = {path: age + 40.0 for path, age in self.ages.items()}

    def beat_all(self):
        for id_, each in self.assignments.items():
            for one in each.launches:
                if self.random.random() < 0.8:
                    self.ages[paths.workerbeat(id_, one.node, one.port)] = 0.0

    def snapshot(self):
        def readable(path_of, records):
            return {id_: one for id_, one in records.items() if path_of(id_) not in self.unreadable}

        self.looks += 1
        beats = {
            path: Heartbeat(SERVER, age, 1, self.looks, None) for path, age in self.ages.items()
        }
        coverage = {SERVER: Coverage(NOW, position=Position("i", 1), horizon_secs=1e6)}
        return ClusterSnapshot(
            bases=readable(paths.storm, self.bases),
            assignments=readable(paths.assignment, self.assignments),
            supervisors=readable(paths.supervisor, self.supervisors),
            nimbuses={},
            ended=dict(self.ended),
            claimed=dict(self.claimed),
            unreadable=self.unreadable,
            heartbeats=self.readings.read(Heartbeats(beats, coverage), self.secs),
            heartbeats_at=NOW + self.secs,
        )

    def decide(self, snapshot, memory, known):
        return decide(
            memory,
            snapshot,
            {id_: each.facts for id_, each in known.items()},
            now=NOW + self.secs,
            epoch=EPOCH,
            timeouts=TIMES,
            default_wait_secs={id_: each.wait_secs for id_, each in known.items()},
        )

    def round(self):
        """Decide as a leader who goes on, and as one who keeps nothing that was made."""
        snapshot, texts = self.snapshot(), self.memory.texts
        known = self.cache.topologies(snapshot, texts)
        assert known == TopologyCache(self.code, self.conf).topologies(snapshot, texts)
        assigned = copy.copy(self.memory.watch.assigned)
        for name, value in vars(assigned).items():
            setattr(assigned, name, copy.copy(value) if isinstance(value, dict) else value)
        watch = replace(self.memory.watch, assigned=assigned)
        anew = replace(self.memory, watch=watch, memo=ClusterMemo())
        expected = self.decide(snapshot, anew, known)
        found = self.decide(snapshot, self.memory, known)
        self.memory = found.memory
        self.status.record_round(found.cluster, snapshot.heartbeats, 0.0)
        fresh = ClusterStatusTracker()
        fresh.record_round(expected.cluster, snapshot.heartbeats, 0.0)
        self.carry_out(found.actions, known)
        return found, expected, (counts(self.status), counts(fresh))

    def carry_out(self, actions, known):
        for action in actions:
            id_ = action.storm_id
            if isinstance(action, Assign):
                record = assignment_record(
                    action.launches, known[id_].executors, master_code_dir="/c", hosts={}
                )
                self.assignments[id_] = record
            elif isinstance(action, FinishRebalance):
                self.say(id_, Event.DO_REBALANCE)
            elif isinstance(action, Remove):
                for each in (self.bases, self.assignments, self.ended, self.claimed, self.code):
                    each.pop(id_, None)


def counts(tracker):
    status = tracker.status
    return (
        *(status.supervisors, status.slots, status.free_slots),
        *(status.topologies, status.workers),
    )


def planned(cluster):
    """A cluster as a plan reads it: an uptime counts only as more than the launch time or not."""
    return replace(
        cluster,
        supervisors={
            id_: replace(one, uptime_secs=one.uptime_secs > cluster.launch_secs)
            for id_, one in cluster.supervisors.items()
        },
        topologies=dict(cluster.topologies),
    )


@pytest.fixture(scope="module")
def conf():
    return load(files=())


@given(st.integers(0, 10**9))
def test_rounds_that_keep_what_was_made_decide_the_same(conf, seed):
    history = History(seed, conf)
    done = 0
    for _ in range(30):
        for _ in range(history.random.randint(0, 4)):
            history.happen()
        found, expected, (status, fresh) = history.round()
        done += len(found.actions)
        assert found.actions == expected.actions
        assert planned(found.cluster) == planned(expected.cluster)
        assert found.memory.texts == expected.memory.texts
        assert found.memory.crashes == expected.memory.crashes
        assert found.memory.next_counter == expected.memory.next_counter
        assert found.next_round_at == expected.next_round_at
        assert status == fresh
    event(f"{min(done // 10 * 10, 40)} actions or more")


def test_round_without_a_change_keeps_all_objects(conf):
    history = History(1, conf)
    for _ in range(3):
        history.submit()
        history.register()
    history.round()
    before, _, _ = history.round()
    history.supervisors = copy.deepcopy(history.supervisors)
    for info in history.supervisors.values():
        info.uptime_secs = 500
    before, _, _ = history.round()
    history.supervisors = copy.deepcopy(history.supervisors)
    for info in history.supervisors.values():
        info.uptime_secs += 5
    after, _, _ = history.round()
    assert after.cluster.has_same_parts(before.cluster)
    assert after.memory.texts is before.memory.texts
    history.rebase()
    assert not history.round()[0].cluster.has_same_parts(before.cluster)
