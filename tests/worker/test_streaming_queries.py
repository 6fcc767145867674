import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import WorkerError
from stormkeeper.topology import Topology
from stormkeeper.topology.plan import plan
from stormkeeper.worker.checkpoint_claims import Checkpoint, Claims
from stormkeeper.worker.executor_counts import TopologyCounts, WorkerStatistics
from stormkeeper.worker.query_events import QueryEvents
from stormkeeper.worker.shutdown import BatchGate, Countdown, LiveQueries
from stormkeeper.worker.streaming_queries import TopologyRun, build

pytestmark = [pytest.mark.spark]


def failing_topology(folder, messages):
    """A topology whose sink raises an error of each of `messages` first, and then works."""
    topology = Topology("failing")
    written = []

    @topology.spout
    def lines(spark):
        return spark.readStream.option("maxFilesPerTrigger", 2).text(str(folder))

    @topology.bolt(lines)
    def out(lines):
        return lines.writeStream.trigger(availableNow=True).foreachBatch(save)

    def save(batch, number):
        if messages:
            raise RuntimeError(messages.pop(0))
        written.append((number, batch.count()))

    return topology, written


def test_python_worker_that_was_too_slow_is_tried_again(numbers, run_topology, monkeypatch, caplog):
    monkeypatch.setattr("stormkeeper.daemon.spark._RETRY_SECS", 0.05)
    folder, values = numbers
    trouble = "Python worker failed to connect back."
    topology, written = failing_topology(folder, [trouble, trouble])
    counts = run_topology(topology)
    # Only batches that were committed count, however often they were tried.
    assert counts.executed["out", "out"] == {"lines": len(values)}
    assert written == [(0, 20), (1, 20), (2, 20)]
    assert caplog.text.count("starting it again") == 2


def test_there_is_an_end_to_trying(numbers, run_topology, monkeypatch):
    monkeypatch.setattr("stormkeeper.daemon.spark._RETRY_SECS", 0.05)
    topology, written = failing_topology(numbers[0], ["Python worker failed to connect back."] * 9)
    with pytest.raises(WorkerError, match="the query 'out' failed"):
        run_topology(topology)
    assert written == []


def test_any_other_failure_is_final(numbers, run_topology):
    topology, written = failing_topology(numbers[0], ["no room left"])
    with pytest.raises(WorkerError, match=r"(?s)'out' failed:\n.*RuntimeError: no room left$"):
        run_topology(topology)
    assert written == []


def test_ends_are_reported_and_stopped_queries_resume(spark, numbers, tmp_path):
    topology, seen = Topology("both"), []

    @topology.spout
    def lines(spark):
        return spark.readStream.option("maxFilesPerTrigger", 1).text(str(numbers[0]))

    @topology.bolt(lines)
    def once(lines):
        return lines.writeStream.format("noop").trigger(availableNow=True)

    @topology.bolt(lines)
    def always(lines):
        return lines.writeStream.foreachBatch(lambda _, number: seen.append(number))

    the_plan = plan(topology)
    events = QueryEvents(TopologyCounts(the_plan, WorkerStatistics()))
    events.attach(spark)
    gate, ended = BatchGate(), []

    def run(queries, stopping):
        built = build(
            the_plan.only(queries),
            topology.components,
            spark,
            defaults(),
            lambda query: str(tmp_path / "checkpoints" / query),
        )
        left = TopologyRun(built, events, stopping, Claims({}, Checkpoint), ended.append).run()
        LiveQueries(events, gate, lambda: False).stop(Countdown())
        return left

    with gate.installed():
        left = run(["once", "always"], lambda: bool(ended) and bool(seen))
        assert left == ["always"]
        assert ended == ["once"]
        assert not events.running()
        (numbers[0] / "more.txt").write_text("61\n")
        assert run(left, lambda: len(seen) == 7) == ["always"]
    assert seen == [*range(7)]  # each batch once, across the stop
    spark.streams.removeListener(events)
