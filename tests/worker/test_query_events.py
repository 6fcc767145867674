"""What a ``foreachBatch`` function reads, on a real Spark session and by itself."""

import threading

import pytest

from stormkeeper.topology import Topology
from stormkeeper.worker.query_events import BatchReading, BatchRows, fullest, parsed, stops_early


def lines_topology(folder):
    topology = Topology("reading")

    @topology.spout
    def lines(spark):
        return spark.readStream.option("maxFilesPerTrigger", 3).text(str(folder))

    return topology, lines


def sink(topology, source, function):
    """Add a sink that hands its batches to `function`, and is named after it."""

    def run(batch, _):
        function(batch)

    def write(lines):
        return lines.writeStream.trigger(availableNow=True).foreachBatch(run)

    topology.bolt(source, name=function.__name__)(write)


@pytest.mark.spark
class TestRealBatches:
    #: What is a reading of its own kind, each once; the others differ in their order alone.
    KINDS = frozenset({"shown_and_written", "kept", "by_way_of_rdds", "limited_by_sql"})

    @pytest.mark.parametrize(
        "tried",
        [pytest.param(KINDS, id="kinds"), pytest.param(None, id="all", marks=pytest.mark.slow)],
    )
    def test_the_fullest_reading_counts_and_a_part_is_said_to_be_one(
        self, numbers, run_topology, tmp_path, tried
    ):
        folder, values = numbers
        topology, lines = lines_topology(folder)
        places = iter(range(1000))

        def write(batch):
            batch.write.parquet(str(tmp_path / f"out-{next(places)}"))

        def written_and_shown(batch):
            write(batch)
            batch.show(1)

        def shown_and_written(batch):
            batch.show(1)
            write(batch)

        def counted_twice(batch):
            assert batch.count() == batch.count()

        def kept(batch):
            batch.persist()
            batch.first()
            batch.count()
            batch.first()
            batch.unpersist()

        def in_two_threads(batch):
            threads = [threading.Thread(target=write, args=(batch,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        def by_way_of_rdds(batch):
            assert not batch.rdd.isEmpty()
            batch.foreachPartition(list)

        def grouped_and_shown(batch):
            batch.groupBy("value").count().show(1)

        def sorted_and_looked_at(batch):
            batch.orderBy("value").first()

        whole = (
            *(written_and_shown, shown_and_written, counted_twice, kept, in_two_threads),
            *(by_way_of_rdds, grouped_and_shown, sorted_and_looked_at),
        )

        def shown(batch):
            batch.show(1)

        def limited_by_sql(batch):
            batch.createOrReplaceTempView("batch")
            batch.sparkSession.sql("SELECT * FROM batch LIMIT 2").collect()

        def first_of_all_written(batch):
            write(batch.limit(2))

        parts = shown, limited_by_sql, first_of_all_written

        def unread(batch):
            pass

        if tried is not None:
            whole, parts = (
                tuple(function for function in functions if function.__name__ in tried)
                for functions in (whole, parts)
            )
        for function in (*whole, *parts, unread):
            sink(topology, lines, function)
        counts = run_topology(topology)
        executed = {query: taken for (query, _), taken in counts.executed.items() if taken}
        assert {q: n["lines"] for q, n in executed.items() if q in names(whole)} == dict.fromkeys(
            names(whole), len(values)
        )
        assert executed["unread"] == {"lines": 0}
        for name in names(parts):
            assert 0 < executed[name]["lines"] < len(values)
            assert counts.partial[name, name] == counts.partial["lines", name] == 2
        assert {q for q, batches in counts.partial.items() if batches} == {
            (component, name) for name in names(parts) for component in ("lines", name)
        }

    def test_a_result_that_is_looked_at_was_calculated_of_all_rows(self, numbers, run_topology):
        folder, values = numbers
        topology, lines = lines_topology(folder)

        @topology.bolt(lines)
        def digits(lines):
            return lines.selectExpr("substring(value, -1, 1) AS digit").groupBy("digit").count()

        @topology.bolt(digits)
        def looked_at(digits):
            writer = digits.writeStream.outputMode("complete").trigger(availableNow=True)
            return writer.foreachBatch(look)

        def look(batch, _):
            batch.persist()
            batch.count()
            batch.unpersist()
            batch.show(1)

        counts = run_topology(topology)
        assert counts.executed["digits", "looked_at"] == {"lines": len(values)}
        assert counts.executed["looked_at", "looked_at"] == {"digits": 2 * 10}
        assert not any(counts.partial.values())


def names(functions):
    return [function.__name__ for function in functions]


def test_the_fullest_of_several_readings():
    assert fullest([]) == 0
    assert fullest([BatchReading((30, 30)), BatchReading((2, 0))]) == 60
    # Joined to one partition, it is the same rows.
    assert fullest([BatchReading((30, 30)), BatchReading((60,))]) == 60
    # Of a kept batch, each partition was computed by another action.
    assert fullest([BatchReading((30, 0)), BatchReading((0, 25))]) == 55


def test_last_reading_counts_without_others():
    seen = BatchRows({"a": 60, "b": 0}, frozenset("a")).with_last({"a": 2, "b": 5, "c": 7})
    assert seen == BatchRows({"a": 60, "b": 5, "c": 7}, frozenset("a"))


PRINTED = """LastAttemptMap {
25 -> LastAttemptVal(
  rddId=25,
  rddScopeId=None,
  lastSqlExecutionId=Some(6),
  partitionPartialVals=[[2],null],
  stageIds=[7,-1],
  stageAttemptIds=[0,-1],
  taskAttemptNumbers=[0,-1]
),
9 -> LastAttemptVal(
  rddId=9,
  rddScopeId=Some(11),
  lastSqlExecutionId=Some(5),
  partitionPartialVals=[[30],[30]],
  stageIds=[6,6],
  stageAttemptIds=[0,0],
  taskAttemptNumbers=[0,0]
)
}"""


def test_what_an_accumulator_prints():
    # What is older than the batch was computed for a shuffle in front of it.
    assert parsed(PRINTED, 20, 4) == [BatchReading((2, 0), 6), BatchReading((30, 30))]
    assert parsed(PRINTED, 20, 6) == [BatchReading((2, 0)), BatchReading((30, 30))]
    assert parsed("LastAttemptMap {\n\n}", 20, 4) == []


SHOWN = """== Physical Plan ==
CollectLimit (3)
+- * Project (2)
   +- * Scan ExistingRDD (1)


(1) Scan ExistingRDD [codegen id : 1]
Output [1]: [LocalLimit#6]
"""

GROUPED = """== Physical Plan ==
AdaptiveSparkPlan (12)
+- == Final Plan ==
   ResultQueryStage (8), Statistics(sizeInBytes=8.0 EiB)
   +- CollectLimit (7)
      +- * HashAggregate (6)
         +- AQEShuffleRead (5), coalesced
            +- ShuffleQueryStage (4), Statistics(sizeInBytes=1920.0 B, rowCount=60)
               +- Exchange (3)
                  +- * HashAggregate (2)
                     +- * Scan ExistingRDD (1)

"""

LIMITED = """== Physical Plan ==
AdaptiveSparkPlan (13)
+- == Initial Plan ==
   Execute InsertIntoHadoopFsRelationCommand (12)
   +- WriteFiles (11)
      +- GlobalLimit (10)
         +- Exchange (9)
            +- LocalLimit (2)
               +- Scan ExistingRDD (1)

"""

JOINED = """== Physical Plan ==
* BroadcastHashJoin Inner BuildRight (6)
:- * Scan ExistingRDD (1)
+- BroadcastExchange (5)
   +- * GlobalLimit (4)
      +- Exchange (3)
         +- * LocalTableScan (2)

"""


@pytest.mark.parametrize(
    ("plan", "early"),
    [
        (SHOWN, True),
        (SHOWN.replace("CollectLimit", "CollectTail"), True),
        (SHOWN.replace("CollectLimit", "TakeOrderedAndProject"), False),
        (LIMITED, True),
        (GROUPED, False),
        (JOINED, False),
        ("", False),
    ],
)
def test_which_plans_stop_early(plan, early):
    assert stops_early(plan) is early
