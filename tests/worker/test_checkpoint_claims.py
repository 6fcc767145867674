"""Claims in real checkpoints, of real queries."""

import threading

import pytest

from stormkeeper.daemon import spark_callbacks
from stormkeeper.errors import ClaimedError, OccupiedError, WorkerError
from stormkeeper.topology import Topology
from stormkeeper.topology.plan import Claim, plan
from stormkeeper.worker import checkpoint_claims as claims_module
from stormkeeper.worker.checkpoint_claims import Checkpoint, Claims
from stormkeeper.worker.executor_counts import TopologyCounts, WorkerStatistics
from stormkeeper.worker.job import Owner
from stormkeeper.worker.query_events import QueryEvents
from stormkeeper.worker.shutdown import BatchGate
from stormkeeper.worker.streaming_queries import TopologyRun, build
from support.waiting import DEADLINE_SECS, until

pytestmark = [pytest.mark.spark]

FIRST, SECOND, THIRD = Claim(7, 1), Claim(7, 2), Claim(12, 1)


@pytest.fixture
def checkpoint(spark, tmp_path):
    return Checkpoint(spark, f"{tmp_path}/checkpoint")


@pytest.fixture
def files(tmp_path):
    """The names of the claims in the checkpoint."""
    folder = tmp_path / "checkpoint" / "claims"
    return lambda: sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))


def test_first_claim_of_a_checkpoint(checkpoint, files):
    assert checkpoint.claims() == []
    assert checkpoint.take(FIRST) is None
    assert checkpoint.claims() == [FIRST]
    assert files() == [str(FIRST)]


def test_a_launch_that_starts_again_has_its_claim_already(checkpoint):
    assert [checkpoint.take(FIRST), checkpoint.take(FIRST)] == [None, None]


def test_later_launch_takes_the_claim(checkpoint, files):
    for claim in (FIRST, SECOND, THIRD):
        assert checkpoint.take(claim) is None
    assert checkpoint.newer(SECOND) == THIRD
    assert checkpoint.newer(THIRD) is None
    assert files() == [str(THIRD)]


def test_earlier_launch_writes_no_claim(checkpoint, files):
    checkpoint.take(THIRD)
    assert checkpoint.take(SECOND) == THIRD
    assert files() == [str(THIRD)]


def test_of_two_that_claim_at_once_the_greater_one_goes_on(checkpoint, monkeypatch):
    newer, looks = checkpoint.newer, []

    def overtaken(claim):
        found = newer(claim)
        looks.append(found)
        if len(looks) == 1:
            checkpoint.take(SECOND)
        return found

    monkeypatch.setattr(checkpoint, "newer", overtaken)
    assert checkpoint.take(FIRST) == SECOND
    assert looks[0] is None


def test_foreign_files_are_no_claims(checkpoint, tmp_path):
    checkpoint.take(FIRST)
    (tmp_path / "checkpoint" / "claims" / "notes.txt").write_text("99-9-9")
    assert checkpoint.claims() == [FIRST]


class TestClaims:
    def test_a_query_without_one_runs_without(self, tmp_path):
        claims = Claims({}, lambda _: pytest.fail("there is nothing to look at"))
        claims.take("q")
        assert claims.is_kept("q")
        assert not (tmp_path / "checkpoint").exists()

    def test_the_first_claim_of_a_checkpoint_is_told_before(self, checkpoint):
        told = []

        def begin(query):
            assert checkpoint.claims() == []
            told.append(query)

        Claims({"q": FIRST}, lambda _: checkpoint, begin).take("q")
        Claims({"q": SECOND}, lambda _: checkpoint, begin).take("q")
        assert told == ["q"]

    def test_launch_that_was_taken_back_is_lost(self, checkpoint):
        def begin(query):
            raise ClaimedError(f"{query} was given to another worker")

        claims = Claims({"q": FIRST}, lambda _: checkpoint, begin)
        with pytest.raises(ClaimedError, match="given to another"):
            claims.take("q")
        assert checkpoint.claims() == []
        assert not claims.is_kept("q")

    def test_claim_lost_before_the_start(self, checkpoint):
        checkpoint.take(SECOND)
        claims = Claims({"q": FIRST}, lambda _: checkpoint)
        with pytest.raises(
            ClaimedError, match=r"'q' runs elsewhere: the worker's start 7-2-0 .* 7-1-0"
        ):
            claims.take("q")
        assert not claims.is_kept("q")
        assert claims.lost == {"q": SECOND}

    def test_claim_lost_later(self, checkpoint, caplog):
        claims = Claims({"q": FIRST}, lambda _: checkpoint)
        claims.take("q")
        assert claims.is_kept("q")
        checkpoint.take(THIRD)
        assert [claims.is_kept("q"), claims.is_kept("q")] == [False, False]
        assert claims.lost == {"q": THIRD}
        assert [r.message for r in caplog.records if "the worker's start 12-1-0" in r.message] == [
            "the query q is left to the worker's start 12-1-0, which has claimed it"
        ]

    def test_script_claims_its_own_checkpoints(self, spark, tmp_path):
        claims = Claims({"script": FIRST}, lambda place: Checkpoint(spark, place))
        one, other = f"{tmp_path}/one", f"{tmp_path}/other"
        claims.take(one, FIRST)
        claims.take(other, FIRST)
        assert claims.are_all_kept()
        assert Checkpoint(spark, other).claims() == [FIRST]
        Checkpoint(spark, other).take(SECOND)
        assert not claims.are_all_kept()
        assert claims.lost == {other: SECOND}
        assert claims.is_kept(one)

    def test_a_checkpoint_that_cannot_be_written(self, spark, tmp_path):
        (tmp_path / "file").write_text("")
        claims = Claims({"q": FIRST}, lambda _: Checkpoint(spark, f"{tmp_path}/file"))
        with pytest.raises(WorkerError, match="'q' could not be claimed in its checkpoint:"):
            claims.take("q")

    def test_unreadable_claim_is_not_lost(self, checkpoint, tmp_path):
        claims = Claims({"q": FIRST}, lambda _: checkpoint)
        claims.take("q")
        folder = tmp_path / "checkpoint" / "claims"
        folder.rename(tmp_path / "elsewhere")
        assert claims.is_kept("q")
        folder.write_text("no folder")
        assert claims.is_kept("q")

    def test_lost_claim_is_reported_once(self, checkpoint):
        claims = Claims({"q": FIRST, "r": FIRST}, lambda _: checkpoint)
        claims.take("q")
        lost = []
        with claims.watched(lost.append):
            checkpoint.take(SECOND)
            until(lambda: lost)
        assert lost == ["q"]
        assert claims.lost == {"q": SECOND}


@pytest.fixture
def run(spark, tmp_path):
    """Runs two endless queries, `one` and `two`, each with a claim; gives what there is to see."""
    topology = Topology("claims")
    batches = {"one": [], "two": []}

    @topology.spout
    def numbers(spark):
        return spark.readStream.format("rate").option("rowsPerSecond", 100).load()

    def sink(name):
        def bolt(numbers):
            return numbers.writeStream.foreachBatch(lambda _, number: batches[name].append(number))

        topology.bolt(numbers, name=name)(bolt)

    sink("one")
    sink("two")
    the_plan = plan(topology)
    events = QueryEvents(TopologyCounts(the_plan, WorkerStatistics()))
    events.attach(spark)

    def location(query):
        return f"{tmp_path}/checkpoints/{query}"

    claims = Claims(
        {"one": SECOND, "two": SECOND}, lambda query: Checkpoint(spark, location(query))
    )

    def admits(batch):
        return claims.is_kept(events.running_as(spark_callbacks.query_id(batch)).name)

    stopped = threading.Event()
    with BatchGate(admits).installed():
        built = build(the_plan, topology.components, spark, {}, location)
        running = TopologyRun(built, events, stopped.is_set, claims)
        thread = threading.Thread(target=running.run, daemon=True)
        yield thread, batches, lambda query: Checkpoint(spark, location(query)), claims
        stopped.set()
        for query in spark.streams.active:
            query.stop()
        if thread.ident is not None:
            thread.join(DEADLINE_SECS)
        until(lambda: not events.running())
    spark.streams.removeListener(events)


def test_newer_claim_stops_batches_of_its_query_alone(run):
    thread, batches, checkpoint, claims = run
    thread.start()
    until(lambda: all(batches.values()), 120)
    checkpoint("one").take(THIRD)
    begun = len(batches["one"])
    others = len(batches["two"])
    until(lambda: len(batches["two"]) >= others + 3, 120)
    # One may have passed the gate already.
    assert len(batches["one"]) <= begun + 1
    assert claims.lost == {"one": THIRD}
    assert thread.is_alive()


def test_only_unclaimed_queries_are_started(run):
    thread, batches, checkpoint, claims = run
    checkpoint("one").take(THIRD)
    thread.start()
    until(lambda: len(batches["two"]) >= 2, 120)
    assert batches["one"] == []
    assert claims.lost == {"one": THIRD}


def owner(topology):
    who = {"query": "script", "host": "a", "port": 6700, "pid": 1, "cluster": "zk"}
    return Owner(topology=topology, since=1_700_000_000.0, **who)


@pytest.fixture
def script(checkpoint, monkeypatch):
    """Makes the claims of a script of a topology; those in `script.gone` are gone."""
    monkeypatch.setattr(claims_module, "SETTLE_SECS", 0.0)

    def make(claim, topology):
        who = {"owner": lambda: owner(topology), "is_gone": lambda one: one.topology in make.gone}
        return Claims({"script": claim}, lambda _: checkpoint, **who)

    make.gone = []
    return make


def test_script_waits_until_the_other_topology_is_gone(script):
    first, second = script(FIRST, "first-1-1"), script(SECOND, "second-2-1")
    first.take("place", FIRST)
    second.take("place", SECOND)
    assert not first.is_kept("place")
    assert first.occupied == {"place": owner("second-2-1")}
    assert second.is_kept("place")
    again = script(FIRST, "first-1-1")
    said = r"place belongs to the topology second-2-1 at a:6700 since 2023-11-14 22:13:20 UTC"
    with pytest.raises(OccupiedError, match=said):
        again.take("place", FIRST)
    script.gone.append("second-2-1")
    again.take("place", FIRST)
    assert again.is_kept("place")
    # A worker of the other one that still runs stops.
    assert not second.is_kept("place")


def test_a_later_launch_of_the_same_topology_is_not_waited_for(script):
    script(SECOND, "first-1-1").take("place", SECOND)
    earlier = script(FIRST, "first-1-1")
    with pytest.raises(ClaimedError) as lost:
        earlier.take("place", FIRST)
    assert not isinstance(lost.value, OccupiedError)
    assert earlier.occupied == {}
