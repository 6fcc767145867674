from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.simulation.cluster import Activity, Change, Ramp, begins, spans
from support.simulations import (
    BEGIN,
    PERIOD_SECS,
    as_told,
    details,
    read,
    simulation,
    told_executors,
)

COUNTS = ("emitted", "transferred", "acked", "failed", "executed")

changes = st.builds(
    Change,
    since=st.floats(0, 400).map(lambda secs: BEGIN + secs),
    until=st.floats(401, 900).map(lambda secs: BEGIN + secs),
    factor=st.floats(0, 5),
)
activities = st.builds(
    Activity,
    swing=st.floats(0, 0.9),
    period_secs=st.floats(10, 86400),
    phase=st.floats(0, 7),
    changes=st.lists(changes, max_size=1).map(tuple),
)


@settings(max_examples=30)
@given(activities, st.floats(0, 200_000), st.lists(st.floats(0, 5_000), min_size=2, max_size=8))
def test_counts_grow_and_no_window_exceeds_all_time(activity, age, times):
    started = BEGIN - age
    before = 0.0
    for at in sorted(times):
        now = BEGIN + at
        work = spans(activity, begins(started, now), now)
        assert work[3] >= before - 1e-4
        assert all(0.0 <= part <= work[3] + 1e-4 for part in work)
        before = work[3]


@settings(max_examples=50)
@given(st.floats(1, 1_000_000), st.sampled_from([(0, 600), (1, 10800), (2, 86400)]))
def test_a_window_has_19_to_20_of_its_20_steps(age, window):
    place, length = window
    began = begins(BEGIN - age, BEGIN)[place]
    assert began == BEGIN - age or 0.95 * length <= BEGIN - began <= length
    assert BEGIN - began <= age + 1e-6


def test_a_latency_that_rises_is_usual_before_and_after():
    ramp = Ramp(BEGIN, BEGIN + 100, rise=4.0)
    assert ramp.mean(BEGIN - 100, BEGIN) == 1.0
    assert ramp.mean(BEGIN, BEGIN + 100) == pytest.approx(3.0)
    assert ramp.mean(BEGIN + 100, BEGIN + 200) == 1.0


class Servers:
    """Takes heartbeats, or not, as the test says, and keeps the newest of each path."""

    def __init__(self, made):
        self.made = made
        self.held = {}
        self.seen = []

    def run(self, begin, end, answers=lambda _: True):
        now = begin
        while now <= end:
            for beat in self.made.due(now):
                self.seen.append(beat)
                if answers(beat):
                    self.held[beat.worker.path] = beat
                    self.made.acknowledged(beat, "a:6699", now + 0.001)
                else:
                    self.made.failed(beat, now + 0.001)
            now += 0.5
        return now


def counts(executors):
    return {
        (task, name, window, str(stream)): value
        for task, stats in executors.items()
        for name in COUNTS
        for window, by_stream in stats.get(name, {}).items()
        for *stream, value in (
            by_stream.items()
            if isinstance(by_stream, dict)
            else [tuple(each) for each in by_stream]
        )
    }


def test_counters_never_fall_within_an_incarnation():
    made, _ = simulation(round_secs=60.0)
    servers = Servers(made)
    servers.run(BEGIN, BEGIN + 70)
    before = {}
    for beat in servers.seen:
        found = counts(as_told(read(details(beat))))
        for key, value in found.items():
            assert value <= found[*key[:2], ":all-time", key[3]]
        all_time = {key: value for key, value in found.items() if key[2] == ":all-time"}
        for key, value in before.get(beat.worker, {}).items():
            assert all_time[key] >= value
        before[beat.worker] = all_time
    assert sum(map(len, before.values())) > 100


def test_the_truth_has_who_was_not_heard_for_three_periods():
    made, told = simulation()
    path = made.seats[0].worker.path
    servers = Servers(made)

    def run(begin, end, answers=lambda _: True):
        servers.run(BEGIN + begin, BEGIN + end, answers)

    run(0, 6)
    run(6.5, 9.5, lambda beat: beat.worker.path != path)
    run(10, 20)
    last = servers.held[path].acknowledged_at
    run(20.5, 32, lambda beat: beat.worker.path != path)
    assert not [event for event in told if event["event"] == "worker_paused"]
    run(32.5, 40)
    (pause,) = [event for event in told if event["event"] == "worker_paused"]
    assert path.endswith(f"{pause['storm_id']}/{pause['node']}-{pause['port']}")
    assert pause["since"] == last
    assert BEGIN + 32 < pause["until"] == pause["at"] < BEGIN + 36


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1_000_000), failing=st.integers(2, 9), count_every=st.integers(1, 4))
def test_the_truth_is_what_was_last_acknowledged(seed, failing, count_every):
    made, told = simulation(seed=seed, count_every=count_every, round_secs=60.0)
    servers = Servers(made)
    number = iter(range(1_000_000))
    now = servers.run(BEGIN, BEGIN + 40, lambda _: next(number) % failing)
    made.finish(now)
    ended = [event for event in told if event["event"] == "worker_ended"]
    started = [event for event in told if event["event"] == "worker_started"]
    assert len(ended) == len(started)
    last = {}
    for event in ended:
        if event["last"] is not None:
            last[f"/workerbeats/{event['storm_id']}/{event['node']}-{event['port']}"] = event
    assert last.keys() == servers.held.keys()
    for path, event in last.items():
        record = read(details(servers.held[path]))
        assert told_executors(event) == as_told(record)
        assert event["last"]["time_secs"] == record.time_secs
        assert event["last"]["uptime_secs"] == record.uptime_secs
    assert sum(event["acknowledged"] for event in ended) == made.tally.acknowledged
    assert sum(event["failed"] for event in ended) == made.tally.failed > 0


def test_each_worker_beats_once_a_period():
    made, _ = simulation()
    servers = Servers(made)
    servers.run(BEGIN, BEGIN + 4 * PERIOD_SECS)
    assert Counter(beat.worker.path for beat in servers.seen) == dict.fromkeys(servers.held, 4)
    assert len(servers.held) == 6
    assert made.tally.left_out == 0


def test_times_are_new_in_every_heartbeat_and_counters_in_some():
    made, _ = simulation(nodes=1, workers_per_node=1, topologies=1, count_every=4)
    servers = Servers(made)
    servers.run(BEGIN, BEGIN + 9 * PERIOD_SECS)
    records = [read(details(beat)) for beat in servers.seen]
    assert len({record.time_secs for record in records}) == 9
    assert len({str(record.executor_stats) for record in records}) == 3


def test_overdue_pulses_are_skipped_and_pending_ones_not_doubled():
    made, _ = simulation()
    assert len(list(made.due(BEGIN + PERIOD_SECS - 0.001))) == 6
    assert list(made.due(BEGIN + 2 * PERIOD_SECS - 0.001)) == []
    assert made.tally.left_out == 6
    assert made.unanswered() == 6
    again, _ = simulation()
    late = list(again.due(BEGIN + 10 * PERIOD_SECS - 0.001))
    assert len(late) <= 12
    assert again.tally.left_out == 60 - len(late)


def test_a_restarted_worker_begins_with_nothing():
    made, _ = simulation()
    seat = made.seats[0]
    before = made.stop(seat, "restarted", BEGIN + 1)
    made.replace(seat, before, before.slot, BEGIN + 1)
    (beat,) = [beat for beat in made.due(BEGIN + 2.999) if beat.worker is seat.worker] or [None]
    record = read(details(beat or next(made.due(BEGIN + 5.999))))
    assert record.uptime_secs < 6
    assert (
        max(counts(as_told(record)).values())
        < 6 * 40_000
        < max(counts({e["task_start"]: e for e in before.counters(BEGIN)}).values())
    )


def test_seed_determines_the_cluster():
    def first(seed):
        made, _ = simulation(seed=seed)
        return details(next(made.due(BEGIN + PERIOD_SECS)))

    assert first(1) == first(1)
    assert first(1) != first(2)
