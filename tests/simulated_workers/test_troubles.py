from collections import defaultdict

import pytest

from support.simulations import BEGIN, details, read, simulation

ROUND_SECS = 600.0

#: With a step that is a part of the period, so that every heartbeat goes out when it is due.
STEP_SECS = 1.0


class Seen:
    """One round of troubles, and every heartbeat of it by its path."""

    def __init__(self, seed=0):
        self.made, self.told = simulation(
            nodes=8, workers_per_node=3, topologies=8, seed=seed, round_secs=ROUND_SECS
        )
        self.beats = defaultdict(list)
        self.deleted = []
        for step in range(int(ROUND_SECS / STEP_SECS)):
            now = BEGIN + step * STEP_SECS
            for beat in self.made.due(now):
                self.beats[beat.worker.path].append(beat)
                self.made.acknowledged(beat, "a:6699", now)
            self.deleted += self.made.deletions
            self.made.deletions.clear()
        self.troubles = {e["kind"]: e for e in self.told if e["event"] == "trouble"}
        self.made.finish(BEGIN + ROUND_SECS)

    def of(self, kind):
        """Return a trouble, and its worker's heartbeats if it has one."""
        trouble = self.troubles[kind]
        if "port" not in trouble:
            return trouble, None
        path = f"/workerbeats/{trouble['storm_id']}/{trouble['node']}-{trouble['port']}"
        return trouble, self.beats[path]

    def executed(self, storm_id, at, task=None):
        """Return what a topology's bolts, or one task, had executed by then."""
        return sum(
            value
            for seat in self.made.cluster.topologies
            if seat.storm_id == storm_id
            for beats in [
                [b for b in of_path if b.sent_at <= at]
                for of_path in self.beats.values()
                if of_path[0].worker.topology.storm_id == storm_id
            ]
            if beats
            for info, stats in read(details(beats[-1])).executor_stats.items()
            if stats.specific.bolt and task in (None, info.task_start)
            for value in stats.specific.bolt.executed[":all-time"].values()
        )


@pytest.fixture(scope="module")
def seen():
    return Seen()


def test_one_of_each_kind_is_planted_within_the_round(seen):
    assert len(seen.troubles) == 11
    for trouble in seen.troubles.values():
        assert BEGIN < trouble["since"] <= trouble["at"] <= trouble["since"] + STEP_SECS
        assert trouble["until"] is None or trouble["since"] < trouble["until"] < BEGIN + ROUND_SECS


def test_a_dead_worker_says_nothing_more(seen):
    trouble, beats = seen.of("worker_died")
    assert trouble["since"] - 4 < beats[-1].sent_at < trouble["since"]
    (ended,) = [e for e in seen.told if e["event"] == "worker_ended" and e["why"] == "died"]
    assert ended["last"]["sent_at"] == beats[-1].sent_at


@pytest.mark.parametrize(("kind", "times"), [("worker_restarted", 1), ("worker_flapping", 6)])
def test_a_restarted_worker_begins_again(seen, kind, times):
    trouble, beats = seen.of(kind)
    uptimes = [beat.uptime_secs for beat in beats]
    falls = [beats[n] for n in range(1, len(beats)) if uptimes[n] < uptimes[n - 1]]
    assert len(falls) == times
    for beat in falls:
        assert beat.uptime_secs <= 4
        assert trouble["since"] < beat.sent_at <= trouble["until"] + 4


def test_a_moved_worker_goes_on_elsewhere_from_nothing(seen):
    trouble, beats = seen.of("worker_moved")
    assert beats[-1].sent_at < trouble["since"]
    to = f"/workerbeats/{trouble['storm_id']}/{trouble['to_node']}-{trouble['to_port']}"
    assert seen.beats[to][0].uptime_secs <= 4
    assert seen.beats[to][0].worker.executors == beats[0].worker.executors


def test_a_late_node_is_silent_and_goes_on_as_it_was(seen):
    trouble, _ = seen.of("node_late")
    late = [beats for path, beats in seen.beats.items() if f"/{trouble['node']}-67" in path]
    assert len(late) == trouble["workers"] == 3
    for beats in late:
        within = [b for b in beats if trouble["since"] + 1 < b.sent_at < trouble["until"]]
        assert not within
    assert any(beats[-1].sent_at > trouble["until"] for beats in late)


def test_a_clock_is_off_for_a_while_and_uptime_is_not(seen):
    trouble, _ = seen.of("clock_off")
    for path, beats in seen.beats.items():
        if f"/{trouble['node']}-67" not in path:
            assert all(abs(beat.time_secs - beat.sent_at) < 4 for beat in beats)
            continue
        for beat in beats:
            is_off = abs(beat.time_secs - beat.sent_at) > 3600
            surely = trouble["since"] + 1 < beat.sent_at < trouble["until"]
            never = not trouble["since"] <= beat.sent_at < trouble["until"] + 1
            assert is_off or not surely
            assert not is_off or not never
            assert beat.uptime_secs == int(beat.sent_at - beat.worker.started)


def test_a_killed_topology_is_deleted_after_its_last_heartbeat(seen):
    trouble, _ = seen.of("topology_killed")
    assert seen.deleted == [f"/workerbeats/{trouble['storm_id']}"]
    last = max(b[-1].sent_at for path, b in seen.beats.items() if trouble["storm_id"] in path)
    (deleted,) = [e for e in seen.told if e["event"] == "pulses_deleted"]
    assert last < trouble["since"] + 1 < deleted["at"]


def rates(seen, trouble, task=None):
    """Return the work a second before and within a trouble."""
    storm_id, since, until = trouble["storm_id"], trouble["since"], trouble["until"]
    begin, middle, end = since - 50, since, until - 15
    done = [seen.executed(storm_id, at, task) for at in (begin, middle, middle + 20, end)]
    return (done[1] - done[0]) / 50, (done[3] - done[2]) / (end - middle - 20)


def test_an_executor_does_more_than_its_share(seen):
    trouble, _ = seen.of("executor_skewed")
    before, within = rates(seen, trouble, trouble["task"])
    assert within > 2.5 * before
    before, within = rates(seen, trouble)
    assert within < 2.5 * before


def test_throughput_drops(seen):
    before, within = rates(seen, seen.of("throughput_dropped")[0])
    assert within < 0.5 * before


def test_a_bolt_saturates(seen):
    trouble, _ = seen.of("bolt_saturating")
    capacities = []
    for beats in seen.beats.values():
        worker = beats[0].worker
        if worker.topology.storm_id != trouble["storm_id"]:
            continue
        tasks = {e.task for e in worker.executors if e.component.id == trouble["component"]}
        for beat in beats:
            is_near = trouble["until"] - 20 < beat.sent_at < trouble["until"]
            if not is_near and not trouble["since"] - 8 < beat.sent_at < trouble["since"]:
                continue
            uptime = min(beat.uptime_secs, 600)
            for info, stats in read(details(beat)).executor_stats.items():
                if info.task_start in tasks and uptime > 60:
                    bolt = stats.specific.bolt
                    busy = sum(
                        bolt.execute_ms_avg["600"][key] * count
                        for key, count in bolt.executed["600"].items()
                    )
                    capacities.append((beat.sent_at, busy / uptime / 1000.0))
    before = [c for at, c in capacities if at < trouble["since"]]
    at_the_end = [c for at, c in capacities if at > trouble["since"]]
    assert max(before) < 0.8
    assert max(at_the_end) > 1.0


def test_heartbeats_grow_and_stay_so(seen):
    trouble, _ = seen.of("heartbeats_growing")
    for beats in seen.beats.values():
        if beats[0].worker.topology.storm_id == trouble["storm_id"]:
            before = [len(details(b)) for b in beats if b.sent_at < trouble["since"]]
            # Long after, as a node that was silent meanwhile first sends what it had counted then.
            after = [len(details(b)) for b in beats if b.sent_at > BEGIN + ROUND_SECS - 100]
            assert min(after, default=10**6) > 1.5 * max(before)


def test_the_next_round_has_its_own():
    made, told = simulation(nodes=4, workers_per_node=2, topologies=8, round_secs=60.0)
    for step in range(0, 180, 5):
        for beat in made.due(BEGIN + step):
            made.failed(beat, BEGIN + step)
    kinds = [event["kind"] for event in told if event["event"] == "trouble"]
    assert kinds.count("worker_died") == 3
    assert 1 < kinds.count("topology_killed") <= 3


def test_a_cluster_of_one_worker_has_what_it_can_have():
    made, told = simulation(nodes=1, workers_per_node=1, topologies=1, round_secs=60.0)
    for step in range(60):
        for beat in made.due(BEGIN + step):
            made.acknowledged(beat, "a:6699", BEGIN + step)
    assert "node_late" in {event.get("kind") for event in told}


@pytest.mark.parametrize(("topologies", "killed"), [(1, 0), (2, 1)])
def test_killed_workers_have_no_other_trouble(topologies, killed):
    for seed in range(3):
        made, told = simulation(
            nodes=4, workers_per_node=2, topologies=topologies, seed=seed, round_secs=60.0
        )
        for step in range(180):
            for beat in made.due(BEGIN + step):
                made.acknowledged(beat, "a:6699", BEGIN + step)
        troubles = [event for event in told if event["event"] == "trouble"]
        gone = [each["storm_id"] for each in troubles if each["kind"] == "topology_killed"]
        assert len(gone) == killed
        others = [each for each in troubles if each["kind"] != "topology_killed"]
        assert {each["kind"] for each in others} >= {"worker_died", "worker_restarted"}
        assert not {each.get("storm_id") for each in others} & set(gone)
