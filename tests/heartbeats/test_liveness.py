import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stormkeeper.heartbeats.liveness import (
    LivenessLimits,
    ServerHorizon,
    Status,
    Tombstone,
    WorkerBeat,
    status,
    unseen,
)
from stormkeeper.paths import WorkerId
from support.liveness_steps import step

LIMITS = LivenessLimits(late_secs=9, timeout_secs=30, forget_secs=3600)
W, V = WorkerId("wc-1-17", "node", 6700), WorkerId("wc-1-17", "node", 6701)
A, B = "a:6699", "b:6699"
LONG = ServerHorizon(reachable=True, horizon_secs=1e6)
DOWN = ServerHorizon(reachable=False, horizon_secs=None)
JAVA = ServerHorizon(reachable=True, horizon_secs=None)


def beat(at, server=A, worker=W, *, instance="x", revision=None, time_secs=None):
    return WorkerBeat(
        worker,
        server,
        instance,
        int(at * 10) if revision is None else revision,
        at,
        int(at) if time_secs is None else time_secs,
    )


def java(time_secs, server=A, worker=W):
    return WorkerBeat(worker, server, None, None, None, time_secs)


class Table:
    """The liveness table from batch to batch."""

    def __init__(self, limits=LIMITS):
        self.rows = []
        self.taken = []
        self.forgotten = []
        self._limits = limits

    def at(self, now, *beats, a=LONG, b=LONG, tombstones=(), servers=None):
        if servers is None:
            servers = {A: a, B: b}
        known = [*self.rows, *self.forgotten]
        found = step(known, beats, tombstones, servers, now=now, limits=self._limits)
        self.rows, self.taken, self.forgotten = found
        return self

    def __getitem__(self, worker):
        (row,) = [row for row in self.rows if row.worker == worker]
        return row

    def __contains__(self, worker):
        return any(row.worker == worker for row in self.rows)


@pytest.mark.parametrize(
    ("age", "expected"),
    [(0, "alive"), (9, "alive"), (9.1, "late"), (30, "late"), (30.1, "dead"), (1e9, "dead")],
)
def test_ages_and_their_status(age, expected):
    assert status(age, LIMITS, "wc-1-17") == expected


def test_a_topologys_own_timeout_holds_where_it_is_longer():
    own = {"patient-1-17": 120, "hasty-1-17": 10}
    limits = LivenessLimits(late_secs=9, timeout_secs=30, timeouts=own)
    workers = [WorkerId(storm_id, "node", 6700) for storm_id in own]
    table = Table(limits).at(0, *(beat(0, worker=worker) for worker in workers))
    table.at(29)
    assert [table[worker].status for worker in workers] == [Status.LATE, Status.LATE]
    table.at(31)
    assert [table[worker].status for worker in workers] == [Status.LATE, Status.DEAD]
    young = ServerHorizon(reachable=True, horizon_secs=100)
    table.at(121, a=young)
    assert table[workers[0]].status == Status.UNPROVEN, "nobody vouches for so long a silence"
    assert table.at(122)[workers[0]].status == Status.DEAD
    expected = dict.fromkeys(workers, 0.0)
    found = unseen(expected, {A: LONG}, now=31, limits=limits)
    assert list(found.values()) == [Status.LATE, Status.DEAD]


def test_a_worker_is_as_old_as_the_receipt_of_its_pulse():
    """Its own clock, an hour behind or ahead, does not count."""
    for clock in (1000 - 3600, 1000 + 3600):
        row = Table().at(1010, beat(1000, time_secs=clock))[W]
        assert (row.age_secs, row.last_seen, row.status) == (10, 1000, Status.LATE)
        assert row.time_secs == clock


def test_silence_makes_a_worker_late_then_dead_until_it_beats():
    table = Table().at(1000, beat(1000))
    seen = [(now, str(table.at(now)[W].status)) for now in (1005, 1010, 1030, 1031, 2000)]
    assert [name for _, name in seen] == ["alive", "late", "late", "dead", "dead"]
    assert table.at(2001, beat(2000.5))[W].status is Status.ALIVE


def test_a_dead_worker_is_shown_for_a_while_and_then_forgotten():
    table = Table().at(1000, beat(1000))
    assert W in table.at(1000 + 3600)
    assert W not in table.at(1000 + 3601)
    table.at(1000 + 3602, beat(1000))  # its old pulse, read once more
    assert (W in table, table.taken) == (False, [])


def test_the_newest_of_copies_on_several_servers_counts():
    new, old = beat(1000, A), beat(900, B)
    for beats in ([new, old], [old, new]):
        table = Table().at(1001, *beats)
        assert (table[W].server, table[W].last_seen) == (A, 1000)
        assert [beats[place] for place in table.taken] == [new]
    table = Table().at(1001, new).at(1002, old)  # the copy comes a batch later
    assert (table[W].server, table[W].last_seen, table.taken) == (A, 1000, [])


def test_a_worker_that_goes_to_another_server_lives_on_there():
    table = Table().at(1000, beat(1000, A)).at(1005, beat(1004, B), a=DOWN)
    row = table[W]
    assert (row.server, row.status, row.moved_from, row.moved_at) == (B, "alive", A, 1004)
    assert table.at(1100, beat(1099, B), a=DOWN)[W].status is Status.ALIVE


def test_the_same_pulse_read_again_is_no_news():
    table = Table().at(1000, beat(1000, revision=5))
    table.at(1100, beat(1000.2, revision=5))  # the age is measured anew, and differs a little
    assert (table[W].last_seen, table[W].status, table.taken) == (1000, "dead", [])


def test_revisions_rank_pulses_if_the_readers_clock_is_set_back():
    table = Table().at(5000, beat(5000, revision=5)).at(1001, beat(1000, revision=6))
    assert (table[W].last_seen, table[W].revision) == (1000, 6)


# --- no death without proof -----------------------------------------------------------------------


def test_a_server_that_is_down_proves_nothing_about_its_workers():
    table = Table().at(1000, beat(1000, A), beat(1000, B, V))
    for now in range(1010, 5000, 100):
        table.at(now, beat(now, B, V), a=DOWN)
        assert table[V].status is Status.ALIVE
        assert table[W].status is (Status.UNPROVEN if now > 1030 else Status.LATE)
    # It was only out of reach, and the worker beat on.
    assert table.at(5000, beat(4999, A))[W].status is Status.ALIVE


def test_nobody_dies_while_no_server_answers():
    table = Table().at(1000, beat(1000, A), beat(1000, B, V))
    table.at(3000, a=DOWN, b=DOWN)
    assert [row.status for row in table.rows] == [Status.UNPROVEN] * 2


@pytest.mark.parametrize("others", [LONG, DOWN])
def test_workers_of_a_restarted_server_have_time_to_come_back(others):
    table = Table().at(1000, beat(1000, A)).at(1100, a=DOWN, b=others)
    for horizon in (0, 10, 30):
        young = ServerHorizon(reachable=True, horizon_secs=horizon)
        table.at(1100 + horizon, a=young, b=others)
        assert table[W].status is Status.UNPROVEN
    table.at(1131, a=ServerHorizon(reachable=True, horizon_secs=31), b=others)
    assert table[W].status is Status.DEAD


def test_who_stays_behind_when_others_left_a_lost_server_is_dead():
    """A machine is lost, with a Pacemaker and a worker on it: other workers show that it is."""
    table = Table().at(1000, beat(1000, A), beat(1001, A, V))
    table.at(1005, beat(1004, B, V), a=DOWN)
    assert table.at(1020, beat(1019, B, V), a=DOWN)[W].status is Status.LATE
    assert table.at(1031, beat(1030, B, V), a=DOWN)[W].status is Status.DEAD
    assert table[V].status is Status.ALIVE


def test_who_left_earlier_shows_nothing_about_a_later_loss():
    table = Table().at(1000, beat(1000, A, V)).at(1005, beat(1004, B, V))
    table.at(1010, beat(1010, A), beat(1010, B, V))
    table.at(1100, beat(1100, B, V), a=DOWN)
    assert table[W].status is Status.UNPROVEN


def test_a_server_that_is_no_longer_read_holds_nobody_back():
    table = Table().at(1000, beat(1000, A)).at(1100, servers={B: LONG})
    assert table[W].status is Status.DEAD


def test_workers_of_a_server_that_is_down_are_never_forgotten():
    table = Table().at(1000, beat(1000, A)).at(1000 + 36_000, a=DOWN)
    assert table[W].status is Status.UNPROVEN


def test_death_stays_proven_after_servers_go_down():
    table = Table().at(1000, beat(1000)).at(1031)
    assert table[W].status is Status.DEAD
    for server in (DOWN, ServerHorizon(reachable=True, horizon_secs=1)):
        row = table.at(1040, a=server)[W]
        assert row.status is Status.DEAD


# --- tombstones -----------------------------------------------------------------------------------


def tombstone(server, revision, instance="x"):
    return Tombstone(W, server, instance, revision)


def test_a_tombstone_where_the_worker_beats_removes_its_row():
    table = Table().at(1000, beat(1000, A, revision=5)).at(1001, tombstones=[tombstone(A, 6)])
    assert W not in table


def test_a_tombstone_elsewhere_means_nothing():
    """Where the worker was before, somebody tidied up."""
    table = Table().at(1000, beat(1000, A)).at(1001, tombstones=[tombstone(B, 10**6)])
    assert table[W].status is Status.ALIVE
    table.at(1002, beat(1002, B), tombstones=[tombstone(A, 10**6)])
    assert table[W].server == B


def test_a_tombstone_older_than_the_pulse_means_nothing():
    table = Table().at(1000, beat(1000, revision=7), tombstones=[tombstone(A, 6)])
    assert table[W].status is Status.ALIVE


def test_a_tombstone_of_a_restarted_server_counts():
    table = Table().at(1000, beat(1000, revision=700))
    assert W not in table.at(1001, tombstones=[tombstone(A, 2, "another")])


def test_a_worker_may_beat_again_after_its_tombstone():
    table = Table().at(1000, beat(1000)).at(1001, tombstones=[tombstone(A, 10**6)])
    assert table.at(1002, beat(1002, revision=10**6 + 1))[W].status is Status.ALIVE


# --- Java Pacemakers, which tell no age -----------------------------------------------------------


def test_without_ages_a_changed_pulse_is_a_new_one():
    table = Table().at(1000, java(400), a=JAVA)
    assert table[W].age_secs == 600  # at first sight the worker's clock, which is behind, counts
    table.at(1005, java(403), a=JAVA)
    assert (table[W].age_secs, table[W].status) == (0, Status.ALIVE)
    for now, expected in ((1010, "alive"), (1020, "late"), (1036, "dead")):
        assert table.at(now, java(403), a=JAVA)[W].status == expected


def test_a_clock_ahead_does_not_make_a_worker_immortal():
    table = Table().at(1000, java(9000), a=JAVA)
    assert table[W].age_secs == 0
    for now in (1031, 1000 + 3600):
        assert table.at(now, java(9000), a=JAVA)[W].status is Status.DEAD
    # It is not taken for a worker that has just come, whatever happens to its server.
    for now, server in ((4601, JAVA), (4606, DOWN), (4611, JAVA), (9000, JAVA), (90_000, JAVA)):
        pulses = [] if server is DOWN else [java(9000)]
        assert (W in table.at(now, *pulses, a=server), table.taken) == (False, [])
    assert table.at(90_003, java(9003), a=JAVA)[W].status is Status.ALIVE


def test_who_is_forgotten_is_known_no_longer_than_its_pulse():
    for then in ({A: JAVA}, {B: JAVA}):
        table = Table().at(1000, java(9000), a=JAVA).at(4601, java(9000), a=JAVA)
        assert [row.worker for row in table.forgotten] == [W]
        assert table.at(4606, servers=then).forgotten == []


@pytest.mark.parametrize("clock", [-(2**63), 0, 5000])
def test_a_clock_far_behind_does_not_hide_a_worker(clock):
    table = Table().at(10_000, java(clock), a=JAVA)
    assert (W in table, table.taken) == (False, [])  # as far as can be told it is long dead
    for now in (10_003, 10_006):
        clock += 3
        assert table.at(now, java(clock), a=JAVA)[W].status is Status.ALIVE
        assert table.taken == [0]


def test_an_unreadable_pulse_does_not_make_a_worker_immortal():
    pulse = java(None)._replace(error="not a ClusterWorkerHeartbeat")
    table = Table().at(1000, pulse, a=JAVA)
    for now in (1031, 1000 + 3600):
        assert table.at(now, pulse, a=JAVA)[W].status is Status.DEAD
    for now in (1000 + 3601, 1000 + 36_000):
        assert W not in table.at(now, pulse, a=JAVA)


def test_a_clock_that_is_set_back_does_not_make_a_worker_dead():
    table = Table().at(1000, java(2**63 - 1), a=JAVA)
    for now in range(1003, 1050, 3):
        assert table.at(now, java(now), a=JAVA)[W].status is Status.ALIVE
        assert table.taken == [0]


@pytest.mark.parametrize("clock", [-(2**63), -1, 0])
def test_a_clock_of_before_the_epoch_is_one_that_is_behind(clock):
    table = Table(LivenessLimits(9, 30, forget_secs=2000)).at(1000, java(clock), a=JAVA)
    assert (table[W].last_seen, table[W].status) == (0, Status.DEAD)


def test_without_ages_copies_are_ranked_by_the_workers_clock():
    for clock in (500, 9000):  # behind, and ahead
        new, old = java(clock, A), java(clock - 5, B)
        for beats in ([new, old], [old, new]):
            table = Table().at(1000, *beats, a=JAVA, b=JAVA)
            assert (table[W].server, table[W].time_secs) == (A, clock)
        assert table.at(1001, java(clock - 5, B), a=JAVA, b=JAVA)[W].server == A


def test_a_java_pacemaker_without_the_pulse_proves_nothing():
    table = Table().at(1000, java(1000), a=JAVA).at(1100, a=JAVA)
    assert table[W].status is Status.UNPROVEN


@pytest.mark.parametrize(
    ("then", "shown"),
    [
        ({A: JAVA}, False),  # which tells of no deletion
        ({A: DOWN}, True),  # and may come back
        ({B: JAVA}, False),  # no longer in the configuration
    ],
)
def test_who_will_never_be_known_to_be_dead_is_forgotten_too(then, shown):
    table = Table().at(1000, java(1000), a=JAVA, b=JAVA)
    table.at(1000 + 3600, servers=then)
    assert table[W].status is Status.UNPROVEN
    assert (W in table.at(1000 + 3601, servers=then)) is shown


def test_a_worker_may_go_between_the_two_kinds_of_server():
    table = Table().at(1000, java(5000, A), a=JAVA)
    table.at(1005, beat(1004, B, time_secs=5004), java(5000, A), a=JAVA)
    assert (table[W].server, table[W].last_seen) == (B, 1004)
    table.at(1010, java(5008, A), a=JAVA)
    assert table[W].server == A


def test_a_copy_left_behind_is_not_newer_than_an_unread_value():
    table = Table().at(1000, beat(999, B)._replace(time_secs=None), a=JAVA)
    assert table.at(1005, java(900), a=JAVA)[W].server == B
    assert table.at(1010, java(1008), a=JAVA)[W].server == A


# --- readers on several machines ------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [-3600, -60, 60, 3600])
def test_what_a_readers_clock_says_counts_as_an_age(ahead):
    there = LONG._replace(ahead_secs=ahead)
    table = Table().at(1000, beat(995 + ahead), a=there, b=DOWN)
    assert (table[W].last_seen, table[W].age_secs, table[W].status) == (995, 5, Status.ALIVE)
    # The one who goes over to a server that is read with another clock.
    table.at(1005, beat(1003, B), a=there)
    assert (table[W].server, table[W].moved_at, table[W].age_secs) == (B, 1003, 2)


# --- any history with one fault at a time ---------------------------------------------------------


class World:
    """Two servers and some workers; a reader that sees of each server what is new to it.

    It reads on several machines, whose clocks differ.
    """

    def __init__(self, seed, worker_count):
        self.random = random.Random(seed)
        self.now = 10_000.0
        self.workers = [WorkerId("t-1-1", "n", port) for port in range(worker_count)]
        self.alive = set(self.workers)
        self.phase = {worker: 3 * self.random.random() for worker in self.workers}
        self.home = {worker: self.random.choice([A, B]) for worker in self.workers}
        self.started = {A: 0.0, B: 0.0}
        self.store = {A: {}, B: {}}
        self.revision = {A: 0, B: 0}
        self.up = {A: True, B: True}
        self.reachable = {A: True, B: True}
        self.read = {A: (None, 0), B: (None, 0)}
        self.table = Table()

    def restart(self, server):
        self.up[server] = True
        self.started[server] = self.now
        self.store[server] = {}
        self.revision[server] = 0

    def run(self, seconds):
        for _ in range(int(seconds)):
            self.now += 1
            for worker in sorted(self.alive):
                if (self.now + self.phase[worker]) % 3 < 1:
                    self.beat(worker)
            if self.now % 5 == 0:
                self.trigger()

    def beat(self, worker):
        if not self.up[self.home[worker]]:
            self.home[worker] = B if self.home[worker] == A else A
            if not self.up[self.home[worker]]:
                return
        server = self.home[worker]
        self.revision[server] += 1
        self.store[server][worker] = (self.revision[server], self.now)

    def trigger(self):
        beats, servers = [], {}
        for server in (A, B):
            if not (self.up[server] and self.reachable[server]):
                servers[server] = DOWN
                continue
            instance = str(self.started[server])
            ahead = self.random.choice([-3600, -31, 0, 31, 3600])
            horizon = self.now - self.started[server]
            servers[server] = ServerHorizon(reachable=True, horizon_secs=horizon, ahead_secs=ahead)
            known, after = self.read[server]
            after = after if known == instance else 0
            beats += [
                beat(at + ahead, server, worker, instance=instance, revision=revision)
                for worker, (revision, at) in self.store[server].items()
                if revision > after
            ]
            self.read[server] = (instance, self.revision[server])
        self.table.at(self.now, *beats, servers=servers)
        for row in self.table.rows:
            if row.status is Status.DEAD:
                assert row.worker not in self.alive, f"{row} of a worker that beats"
                assert row.age_secs > LIMITS.timeout_secs


FAULTS = ["kill worker", "restart", "down", "unreachable", "nothing"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 10**9),
    st.integers(1, 6),
    st.lists(
        st.tuples(st.sampled_from(FAULTS), st.sampled_from([A, B]), st.integers(1, 200)),
        max_size=8,
    ),
)
def test_no_living_worker_dies_and_every_dead_one_is_found(seed, worker_count, faults):
    world = World(seed, worker_count)
    world.run(60)
    for fault, server, seconds in faults:
        if fault == "kill worker" and world.alive:
            worker = world.random.choice(sorted(world.alive))
            world.alive.discard(worker)
        elif fault == "restart":
            world.restart(server)
        elif fault == "down":
            world.up[server] = False
            world.run(seconds)
            world.restart(server)
        elif fault == "unreachable":
            world.reachable[server] = False
            world.run(seconds)
            world.reachable[server] = True
        world.run(60)  # one fault at a time
    for row in world.table.rows:
        assert row.status == (Status.ALIVE if row.worker in world.alive else Status.DEAD), row
    assert {row.worker for row in world.table.rows} >= world.alive


def done(at, server=A):
    return beat(at, server)._replace(completed=True)


def test_a_completed_worker_is_not_missed():
    table = Table().at(100, beat(100)).at(103, done(103))
    assert table[W].status is Status.COMPLETED
    table.at(103 + LIMITS.late_secs + 1)
    assert table[W].status is Status.COMPLETED
    table.at(103 + LIMITS.timeout_secs + 1)
    assert table[W].status is Status.COMPLETED
    assert table[W].age_secs == pytest.approx(LIMITS.timeout_secs + 1)


def test_completion_stays_when_the_server_that_knew_of_it_goes():
    table = Table().at(103, done(103)).at(200, a=DOWN)
    assert table[W].status is Status.COMPLETED


def test_a_completed_worker_that_beats_again_is_alive():
    table = Table().at(103, done(103)).at(110, beat(110))
    assert table[W].status is Status.ALIVE


def test_a_completed_worker_is_forgotten_as_a_dead_one_is():
    table = Table().at(103, done(103)).at(103 + LIMITS.forget_secs)
    assert [row.worker for row in table.rows] == [W]
    assert table.at(104 + LIMITS.forget_secs).rows == []


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ({A: LONG, B: LONG}, Status.DEAD),
        ({A: LONG, B: DOWN}, Status.UNPROVEN),
        ({A: LONG, B: ServerHorizon(reachable=True, horizon_secs=30)}, Status.UNPROVEN),
        ({A: LONG, B: ServerHorizon(reachable=True, horizon_secs=30.1)}, Status.DEAD),
        ({A: LONG, B: JAVA}, Status.DEAD),
        ({A: JAVA, B: DOWN}, Status.UNPROVEN),
        ({}, Status.UNPROVEN),
    ],
)
def test_a_worker_that_never_beat_is_dead_if_all_servers_vouch(servers, expected):
    assert unseen({W: 960}, servers, now=1000, limits=LIMITS) == {W: expected}


def test_who_was_launched_just_now_has_the_time_that_others_have():
    since = {W: 1001, V: 985}  # the first by a clock that is ahead
    found = unseen(since, {A: LONG}, now=1000, limits=LIMITS)
    assert found == {W: Status.ALIVE, V: Status.LATE}
    assert unseen(since, {A: DOWN}, now=1000, limits=LIMITS) == found
    assert unseen({}, {A: LONG}, now=1000, limits=LIMITS) == {}
