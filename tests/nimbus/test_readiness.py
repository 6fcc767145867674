"""Whether a Nimbus may lead: by the code that it has, and by whose the topologies are."""

import threading

import pytest

from stormkeeper.blobs.sync_plan import Missing
from stormkeeper.errors import StateUnavailableError
from stormkeeper.nimbus.election import Checked
from stormkeeper.nimbus.readiness import LOOKS_PER_WRITE, Candidate, DiskWatch, foreign_to
from stormkeeper.paths import NimbusId
from stormkeeper.state import leader_lock
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import NimbusSummary, StormBase, TopologyStatus
from stormkeeper.thrift.serialization import Codec
from support.interposed import Interposed
from support.leaders import lead
from support.nimbuses import Shelf, share, submit, submit_by_java
from support.waiting import until

OURS, JAVAS = "ours-1-1700000000", "java-2-1700000000"


@pytest.fixture
def session(ensemble):
    session = ensemble.session()
    yield session
    session.close()


@pytest.fixture
def storm(session):
    return StormClusterState(session, Codec())


@pytest.mark.parametrize(
    ("here", "elsewhere", "lacking"),
    [([], [], []), ([], [OURS], [OURS]), ([OURS], [OURS], []), (["x-1-1"], ["x-1-1"], [])],
)
def test_what_others_have_is_lacking(session, storm, here, elsewhere, lacking):
    submit(session, OURS)
    mine, other = Shelf(here), Shelf(elsewhere)
    mine.topologies = storm.active_storms
    share(mine, other)
    assert Candidate(storm, mine).check() == Checked(frozenset(lacking))


@pytest.mark.parametrize("others", [1, 3])
def test_topologies_in_memory_are_those_of_now(ensemble, others):
    """Of each of the leaders before."""
    mine = StormClusterState(ensemble.session(), Codec())
    candidate = Candidate(mine, Shelf(), bases=lambda: mine.view.caught_up().bases)
    assert candidate.check() == Checked()
    for number in range(others):
        session = ensemble.session()
        submit(session, f"ours-{number}")
        submit_by_java(session, f"java-{number}")
        foreign = frozenset(f"java-{each}" for each in range(number + 1))
        assert candidate.check() == Checked(foreign=foreign)
    mine.disconnect()
    until(lambda: not mine.view.subscription.is_running)


class Lacking:
    """Code of which something is missing."""

    def __init__(self, **missing):
        self._missing = missing

    def missing(self):
        return self._missing


@pytest.mark.parametrize(
    ("lost", "is_lacking"), [([], True), (["a-jar"], True), (["a-jar", "a-conf"], False)]
)
def test_what_can_be_had_of_a_topology_s_code_is_worth_a_fetch(storm, lost, is_lacking):
    code = Lacking(a=Missing(("a-jar", "a-conf"), tuple(lost)))
    assert Candidate(storm, code).check() == Checked(frozenset("a" if is_lacking else ""))


def test_the_store_catches_up_before_it_is_read(session):
    calls = []

    def recorded(name):
        def call(*arguments, **keywords):
            calls.append(name)
            return getattr(session, name)(*arguments, **keywords)

        return call

    names = ("sync_path", "get_children", "children_data")
    network = Interposed(session, **{name: recorded(name) for name in names})
    Candidate(StormClusterState(network, Codec()), Shelf()).check()
    assert calls[0] == "sync_path"
    assert len(calls) > 1


def test_a_store_that_cannot_be_read_is_told(ensemble, session, storm):
    ensemble.suspend(session)
    with pytest.raises(StateUnavailableError):
        Candidate(storm, Shelf()).check()


ME, OTHER = NimbusId("me", 1, 0), NimbusId("other", 2, 0)


@pytest.mark.parametrize(
    ("fault", "others_fault", "is_queued", "yields"),
    [
        ("full", None, True, True),
        ("full", None, False, False),
        ("full", "gone", True, False),
        (None, None, True, False),
    ],
)
def test_a_bad_disk_yields_to_a_good_one_that_queues(
    ensemble, storm, fault, others_fault, is_queued, yields
):
    other = StormClusterState(ensemble.session(), Codec())
    for nimbus, its_fault in ((ME, fault), (OTHER, others_fault)):
        storm.add_nimbus_host(NimbusSummary(*nimbus[:2], 0, False, "1", 0, its_fault))
    leader_lock.take(storm.state, str(ME).encode())
    if is_queued:
        leader_lock.take(other.state, str(OTHER).encode())
    readiness = Candidate(storm, Shelf(), nimbus=ME, disk_fault=lambda: fault)
    assert readiness.check().yields == yields
    other.disconnect()


class TestTheDiskWatch:
    def look(self, watch, faults):
        """Let the disk have one fault after another, each until after the next write."""
        for fault in faults:
            watch._find_fault = lambda *_, fault=fault: fault
            for _ in range(LOOKS_PER_WRITE):
                watch.look()

    def test_a_fault_is_told_after_each_write_and_its_end_once(self):
        told = []
        self.look(DiskWatch(lambda *_: None, told.append), [None, "full", "full", None, None])
        assert told == ["full", "full", None]

    def test_a_look_finds_a_fault_and_only_a_write_its_end(self):
        asked = []
        watch = DiskWatch(lambda is_write, _: asked.append(is_write) or str(is_write), print)
        watch.fault = "full"
        for _ in range(2 * LOOKS_PER_WRITE):
            watch.look()
        assert asked == [True, True]
        watch = DiskWatch(lambda is_write, _: None if is_write else "full", print)
        watch.look()
        assert watch.fault is None
        watch.look()
        assert watch.fault == "full"

    def test_after_a_fault_the_look_is_told_of_it(self):
        told = []
        watch = DiskWatch(lambda _, had_fault: told.append(had_fault) or "full", print)
        for _ in range(LOOKS_PER_WRITE + 1):
            watch.look()
        assert told == [False, True]

    def test_what_could_not_be_published_is_published_later(self):
        told = []

        def publish(fault):
            told.append(fault)
            if len(told) == 2:
                raise StateUnavailableError("away")

        self.look(DiskWatch(lambda *_: None, publish), ["full", None, None])
        assert told == ["full", None, None]

    def test_a_write_that_hangs_is_a_fault_until_it_ends(self):
        goes_on = threading.Event()
        watch = DiskWatch(lambda *_: goes_on.wait() and None, lambda _: None, hang_secs=0.01)
        watch.look()
        assert "a write has not ended" in watch.fault
        goes_on.set()
        until(lambda: watch.look() or watch.fault is None)

    def test_it_looks_by_itself(self):
        looks = []
        watch = DiskWatch(lambda *_: looks.append(1), lambda _: None, period_secs=0.01)
        watch.start()
        until(lambda: len(looks) > 2)
        watch.close()


def test_what_java_wrote_last_is_foreign(session, storm):
    submit(session, OURS)
    submit_by_java(session, JAVAS)
    assert Candidate(storm, Shelf()).check() == Checked(foreign=frozenset([JAVAS]))
    assert Candidate(storm, Shelf(), may_take_over=True).check() == Checked()


def test_what_java_writes_again_is_foreign_again(session, storm):
    """It drops our fields from what it reads, and writes the rest."""
    submit(session, OURS)
    assert foreign_to(storm.storm_bases()) == frozenset()
    submit_by_java(session, OURS)
    assert foreign_to(storm.storm_bases()) == {OURS}


def test_what_is_taken_over_is_marked_and_stays_as_it_was_else(session, storm):
    base = StormBase(JAVAS, TopologyStatus.KILLED, 3, {"split": 2}, 1700000000, "me")
    session.set_data(f"/storms/{JAVAS}", Codec().write(base))
    leader = lead(storm)
    Candidate(storm, Shelf()).take_over(leader)
    assert storm.storm_base(JAVAS) == base
    Candidate(storm, Shelf(), may_take_over=True).take_over(leader)
    base.leader_epoch = leader.fence.epoch
    assert storm.storm_base(JAVAS) == base


def test_one_that_is_gone_meanwhile_is_not_taken_over(session, storm):
    submit_by_java(session, JAVAS)
    leader = lead(storm)
    bases = leader.storm_bases()
    session.delete_node(f"/storms/{JAVAS}")
    leader.storm_bases = lambda: bases
    Candidate(storm, Shelf(), may_take_over=True).take_over(leader)
    assert storm.storm_base(JAVAS) is None


def test_the_log_says_once_what_is_the_matter(session, storm, caplog):
    submit_by_java(session, JAVAS)
    lost = Missing(("lost-jar",), ("lost-jar",), ("nimbus2.example:6627:0",))
    code = Lacking(**{OURS: Missing(("jar",))}, lost=lost, gone=Missing(("jar",), ("jar",)))
    readiness = Candidate(storm, code)
    caplog.set_level("INFO")
    readiness.check()
    readiness.check()
    messages = [each.getMessage() for each in caplog.records]
    assert len(messages) == 4
    assert f"leads these topologies: {JAVAS}; start it with --take-over" in messages[0]
    assert f"fetching the code of topologies: {OURS}" in messages[1]
    assert "no live Nimbus has the code of gone" in messages[2]
    assert messages[2].endswith("start the Nimbus that held it last: unknown")
    assert "no live Nimbus has the code of lost" in messages[3]
    assert messages[3].endswith("start the Nimbus that held it last: nimbus2.example:6627:0")
