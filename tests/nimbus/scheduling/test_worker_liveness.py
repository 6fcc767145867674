from dataclasses import replace

import pytest

from stormkeeper import paths
from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import LivenessLimits, Status
from stormkeeper.heartbeats.stores import Heartbeat, Heartbeats
from stormkeeper.nimbus.scheduling.followed_workers import LivenessMemory, judge_workers
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import serialize
from stormkeeper.topology.plan import Claim
from support.clusters import EPOCH, NOW, launch
from support.followed import WholeReadings

LIMITS = LivenessLimits(late_secs=9, timeout_secs=30)
LAUNCH_SECS = 120
SUPERVISOR_SECS = 60
TIMES = {
    "epoch": EPOCH,
    "limits": LIMITS,
    "launch_secs": LAUNCH_SECS,
    "supervisor_secs": SUPERVISOR_SECS,
}
A, B = "a:6699", "b:6699"

#: A worker that the leader before has launched long ago.
OLD = launch("n:6700", "q")
#: One that this leader has launched, in the same slot.
OWN = replace(OLD, claim=Claim(EPOCH, 1))


def server(horizon_secs=1e6, error=None):
    position = None if error else Position("i", 1)
    return Coverage(NOW, error, position, horizon_secs=horizon_secs)


LONG, DOWN = server(), server(error="refused")
JAVA = Coverage(NOW, position=Position("", 0))


def pulse(age_secs, on=A, revision=1, value=None, where=OLD):
    path = paths.workerbeat("t", *where.slot)
    return {path: Heartbeat(on, age_secs, 10, revision, value)}


@pytest.fixture
def new_leader():
    return Leader


class Leader:
    """A leader that looks at a worker again and again."""

    def __init__(self):
        self._watch = LivenessMemory()
        self._readings = WholeReadings()
        self._launches = {}

    def sees(self, secs, *pulses, of=OLD, a=LONG, b=LONG, supervisors=("n", "m")):
        """What is known of a worker so many seconds after now."""
        by_path = {path: one for each in pulses for path, one in each.items()}
        self._watch, found = judge_workers(
            self._watch,
            {"t": self._launches.setdefault(of, (of,))},
            supervisors,
            self._readings.read(Heartbeats(by_path, {A: a, B: b}), secs),
            now=NOW + secs,
            **TIMES,
        )
        assert found.keys() <= {of.claim}
        return found.get(of.claim, Status.ALIVE)

    def known_claims(self):
        return {each.launch.claim for each in self._watch.assigned.by_path.values()}


@pytest.mark.parametrize(
    ("age_secs", "expected"), [(1, "alive"), (10, "late"), (31, "dead"), (900, "dead")]
)
def test_a_new_leader_believes_what_the_pacemakers_say(age_secs, expected, new_leader):
    """A machine is lost with the leader and workers on it: they are not waited for any longer."""
    assert new_leader().sees(0, pulse(age_secs)) == expected


def test_a_worker_that_falls_silent_is_late_and_then_dead(new_leader):
    leader = new_leader()
    leader.sees(0, of=OWN)
    seen = [leader.sees(secs, pulse(secs - 5), of=OWN) for secs in (5, 15, 35, 36)]
    assert seen == ["alive", "late", "late", "dead"]


def test_pulse_of_a_predecessor_kills_no_worker(new_leader):
    leader = new_leader()
    old = pulse(500)
    assert leader.sees(0, old) is Status.DEAD
    assert leader.sees(1, pulse(501), of=OWN) is Status.ALIVE
    assert leader.sees(100, pulse(600), of=OWN) is Status.LATE
    assert leader.sees(122, pulse(622), of=OWN) is Status.DEAD
    assert leader.sees(123, pulse(0, revision=2), of=OWN) is Status.ALIVE
    assert leader.sees(154, pulse(31, revision=2), of=OWN) is Status.DEAD


def test_a_predecessor_that_was_done_does_not_make_a_worker_done(new_leader):
    value = serialize(ClusterWorkerHeartbeat("t", {}, NOW, 5, completed=True))
    done = pulse(None, revision=None, value=value)
    leader = new_leader()
    assert leader.sees(1, done, a=JAVA) is Status.COMPLETED
    assert leader.sees(2, done, of=OWN, a=JAVA) is Status.ALIVE
    assert leader.sees(123, done, of=OWN, a=JAVA) is Status.DEAD


def test_a_worker_without_any_pulse_has_the_time_to_start(new_leader):
    leader = new_leader()
    assert [leader.sees(secs, of=OWN) for secs in (0, 10, 119, 121)] == [
        "alive",
        "late",
        "late",
        "dead",
    ]


def test_a_new_leader_gives_a_silent_worker_the_time_again(new_leader):
    assert new_leader().sees(0) is Status.ALIVE


@pytest.mark.parametrize("clock_ahead_secs", [3600, -3600])
def test_beating_worker_is_alive_despite_clocks(clock_ahead_secs, new_leader):
    other = replace(OLD, started_at=NOW + clock_ahead_secs)
    leader = new_leader()
    for secs in range(0, 400, 20):
        assert leader.sees(secs, pulse(1, revision=secs), of=other) is Status.ALIVE


def test_no_worker_dies_right_after_a_pacemaker_restart(new_leader):
    leader = new_leader()
    assert leader.sees(0, pulse(1)) is Status.ALIVE
    for secs in (40, 60):
        assert leader.sees(secs, a=server(horizon_secs=secs - 35)) is Status.UNPROVEN
    assert leader.sees(70, a=server(horizon_secs=35)) is Status.DEAD


def test_nobody_dies_while_its_pacemaker_cannot_be_reached(new_leader):
    leader = new_leader()
    assert leader.sees(0, pulse(1)) is Status.ALIVE
    assert leader.sees(1000, a=DOWN) is Status.UNPROVEN
    assert new_leader().sees(0, a=DOWN, b=DOWN) is Status.ALIVE


def test_who_never_beat_is_not_dead_while_a_pacemaker_is_down(new_leader):
    leader = new_leader()
    leader.sees(0, of=OWN)
    assert leader.sees(200, of=OWN, b=DOWN) is Status.UNPROVEN
    assert leader.sees(201, of=OWN) is Status.DEAD


def test_machine_lost_with_its_pacemaker(new_leader):
    leader = new_leader()
    assert leader.sees(0, pulse(1)) is Status.ALIVE
    # Its supervisor's session ends later than it does.
    assert leader.sees(20, a=DOWN) is Status.LATE
    assert leader.sees(40, a=DOWN, supervisors=()) is Status.UNPROVEN
    assert leader.sees(100, a=DOWN, supervisors=()) is Status.UNPROVEN
    assert leader.sees(101, a=DOWN, supervisors=()) is Status.DEAD


def test_so_it_is_for_a_leader_that_has_not_seen_them(new_leader):
    leader = new_leader()
    seen = [leader.sees(secs, a=DOWN, supervisors=()) for secs in (0, 100, 121)]
    assert seen == ["alive", "late", "dead"]


def test_no_worker_dies_with_its_supervisor_present(new_leader):
    leader = new_leader()
    leader.sees(0, pulse(1))
    assert leader.sees(1000, a=DOWN) is Status.UNPROVEN
    assert leader.sees(1001, a=DOWN, supervisors=()) is Status.UNPROVEN
    assert leader.sees(1020, a=DOWN) is Status.UNPROVEN
    assert leader.sees(1070, a=DOWN, supervisors=()) is Status.UNPROVEN


def test_worker_at_another_pacemaker_lives(new_leader):
    leader = new_leader()
    leader.sees(0, pulse(1))
    for secs in (20, 40, 80):
        over = pulse(1, on=B, revision=secs)
        assert leader.sees(secs, over, a=DOWN, supervisors=()) is Status.ALIVE


@pytest.mark.parametrize("b", [DOWN, server(horizon_secs=30)], ids=["down", "just started"])
def test_nobody_is_given_up_where_nobody_could_have_told(b, new_leader):
    leader = new_leader()
    leader.sees(0, pulse(1))
    for secs in (100, 200):
        assert leader.sees(secs, a=DOWN, b=b, supervisors=()) is Status.UNPROVEN


def test_without_ages_values_say_who_is_alive(new_leader):
    def beat(time_secs, **facts):
        record = ClusterWorkerHeartbeat("t", {}, time_secs, 5, **facts)
        return pulse(None, revision=None, value=serialize(record))

    leader = new_leader()
    assert leader.sees(0, beat(NOW), a=JAVA) is Status.ALIVE
    assert leader.sees(31, beat(NOW), a=JAVA) is Status.DEAD
    assert leader.sees(32, beat(NOW + 1), a=JAVA) is Status.ALIVE
    assert leader.sees(33, beat(NOW + 2, completed=True), a=JAVA) is Status.COMPLETED
    assert leader.sees(900, beat(NOW + 2, completed=True), a=JAVA) is Status.COMPLETED
    broken = pulse(None, revision=None, value=b"no heartbeat")
    assert new_leader().sees(0, broken, a=JAVA) is Status.ALIVE


def test_workers_that_are_no_longer_assigned_are_forgotten(new_leader):
    leader = new_leader()
    leader.sees(0, pulse(1))
    other = launch("m:6700", "q", claim=2)
    leader.sees(1, pulse(2), pulse(1, where=other), of=other)
    assert leader.known_claims() == {other.claim}
    assert leader.sees(40, of=other) is Status.DEAD
    assert [row.worker.node for row in leader._watch.rows] == ["m"]
