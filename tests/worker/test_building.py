"""Topologies on a real Spark session: what their functions may return, and that all is counted."""

import sys

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stormkeeper.conf import defaults
from stormkeeper.errors import TopologyError, WorkerError
from stormkeeper.topology import Topology
from stormkeeper.topology.bolt_source import check_bolts
from stormkeeper.topology.plan import plan
from stormkeeper.worker import script as scripts
from stormkeeper.worker.streaming_queries import build

pytestmark = pytest.mark.spark


def read(spark, folder, files=2):
    return spark.readStream.option("maxFilesPerTrigger", files).text(str(folder))


def all_of_it(frame, mode="append"):
    """A writer that ends when it has seen all of the input."""
    return frame.writeStream.outputMode(mode).trigger(availableNow=True)


def numbers_topology(folder, **settings):
    topology = Topology("numbers")

    @topology.spout(**settings)
    def lines(spark):
        return read(spark, folder)

    return topology, lines


class TestCounts:
    """Counts of whole runs against what plain Python counts."""

    def test_diamond_of_filters_and_a_union(self, numbers, run_topology):
        folder, values = numbers
        topology, lines = numbers_topology(folder)

        @topology.bolt(lines)
        def even(lines):
            return lines.where("value % 2 = 0")

        @topology.bolt(lines)
        def fives(lines):
            return lines.where("value % 5 = 0")

        @topology.bolt(even, fives)
        def both(even, fives):
            return even.union(fives)

        @topology.bolt(both)
        def out(both):
            return all_of_it(both).format("noop")

        counts = run_topology(topology)
        n_even = sum(v % 2 == 0 for v in values)
        n_fives = sum(v % 5 == 0 for v in values)
        assert counts.emitted["lines", "out"] == len(values)
        assert counts.transferred["lines", "out"] == 2 * len(values)
        assert counts.executed["even", "out"] == {"lines": len(values)}
        assert counts.executed["fives", "out"] == {"lines": len(values)}
        assert counts.executed["both", "out"] == {"even": n_even, "fives": n_fives}
        assert counts.executed["out", "out"] == {"both": n_even + n_fives}
        assert counts.emitted["both", "out"] == n_even + n_fives

    @pytest.mark.slow
    def test_joins_of_a_stream_with_itself_and_with_a_table(self, numbers, run_topology):
        folder, values = numbers
        topology, lines = numbers_topology(folder)

        @topology.bolt(lines, lines)
        def pairs(left, right):
            joined = left.alias("l").join(right.alias("r"), F.expr("l.value = r.value + 1"))
            return joined.selectExpr("l.value")

        @topology.bolt(pairs)
        def twice(pairs):
            return (
                pairs.alias("l").join(pairs.alias("r"), F.expr("l.value = r.value")).select("l.*")
            )

        @topology.bolt(twice)
        def named(twice, spark):
            table = spark.range(30).selectExpr("CAST(id AS string) value", "id * 2 AS double")
            return twice.join(table, "value")

        @topology.bolt(named)
        def out(named):
            return all_of_it(named).format("noop")

        counts = run_topology(topology)
        followers = [v for v in values if v - 1 in values]
        assert counts.emitted["lines", "out"] == len(values)
        assert counts.executed["pairs", "out"] == {"lines": 2 * len(values)}
        assert counts.emitted["pairs", "out"] == len(followers)
        assert counts.executed["twice", "out"] == {"pairs": len(followers)}
        assert counts.executed["named", "out"] == {"twice": len(followers)}
        assert counts.executed["out", "out"] == {"named": sum(v < 30 for v in followers)}

    def test_two_queries_of_one_spout_and_a_complete_aggregation(self, numbers, run_topology):
        folder, values = numbers
        topology, lines = numbers_topology(folder)
        results = []

        @topology.bolt(lines)
        def by_digit(lines):
            return lines.groupBy(F.substring("value", -1, 1).alias("digit")).count()

        @topology.bolt(by_digit)
        def totals(by_digit):
            return all_of_it(by_digit, "complete").foreachBatch(evaluate_twice)

        def evaluate_twice(batch, number):
            if batch.isEmpty():
                return
            batch.count()
            results.append((number, {row.digit: row["count"] for row in batch.collect()}))

        @topology.bolt(lines)
        def odd(lines):
            return lines.where("value % 2 = 1")

        @topology.bolt(odd)
        def out(odd):
            return all_of_it(odd).format("noop")

        counts = run_topology(topology)
        assert counts.emitted["lines", "totals"] == counts.emitted["lines", "out"] == len(values)
        assert counts.executed["by_digit", "totals"] == {"lines": len(values)}
        assert counts.executed["totals", "totals"] == {
            "by_digit": sum(len(totals) for _, totals in results)
        }
        assert results[-1][1] == {str(d): 6 for d in range(10)}
        assert len(results) == 3
        assert counts.executed["out", "out"] == {"odd": sum(v % 2 for v in values)}

    def test_python_functions_and_parallelism(self, numbers, run_topology):
        folder, values = numbers
        topology, lines = numbers_topology(folder, parallelism=3)
        partitions = []

        @topology.bolt(lines, parallelism=4)
        def repeated(lines):
            return lines.mapInArrow(twice_each, "value string, partition int")

        def twice_each(batches):
            here = TaskContext.get().partitionId()
            for batch in batches:
                column = pa.array([here] * batch.num_rows, pa.int32())
                out = pa.RecordBatch.from_arrays([batch.column(0), column], ["value", "partition"])
                yield out
                yield out

        @topology.bolt(repeated)
        def out(repeated):
            return all_of_it(repeated).foreachBatch(save)

        def save(batch, _):
            partitions.append({row.partition for row in batch.collect()})

        counts = run_topology(topology)
        assert counts.emitted["lines", "out"] == len(values)
        assert counts.executed["repeated", "out"] == {"lines": len(values)}
        assert counts.executed["out", "out"] == {"repeated": 2 * len(values)}
        assert set().union(*partitions) == {0, 1, 2, 3}

    def test_watermark_limit_and_an_empty_branch(self, numbers, run_topology):
        folder, values = numbers
        topology, lines = numbers_topology(folder)

        @topology.bolt(lines)
        def none(lines):
            return lines.where("value > 1000")

        @topology.bolt(lines)
        def first(lines):
            return lines.limit(3)

        @topology.bolt(lines)
        def distinct(lines):
            late = lines.withColumn("at", F.expr("timestamp_seconds(1000 + int(value) % 7)"))
            return late.withWatermark("at", "1 minute").dropDuplicates(["at"]).select("value")

        @topology.bolt(none, first, distinct)
        def all_three(none, first, distinct):
            return none.union(first).union(distinct)

        @topology.bolt(all_three)
        def out(all_three):
            return all_of_it(all_three).format("noop")

        counts = run_topology(topology)
        # What one branch leaves unread is counted in the others.
        assert counts.emitted["lines", "out"] == len(values)
        assert counts.executed["distinct", "out"] == {"lines": len(values)}
        assert counts.executed["none", "out"] == {"lines": len(values)}
        assert counts.executed["first", "out"]["lines"] <= len(values)
        assert counts.executed["all_three", "out"] == {"none": 0, "first": 3, "distinct": 7}


class TestFaults:
    """What a function may not return is said before anything runs."""

    def build(self, spark, topology):
        return build(
            plan(topology),
            topology.components,
            spark,
            defaults(),
            lambda query: f"/nonexistent/{query}",
        )

    def one_bolt(self, folder, returns):
        topology, lines = numbers_topology(folder)
        topology.bolt(lines, name="out")(returns)
        return topology

    @pytest.mark.parametrize(
        ("returns", "said"),
        [
            (
                lambda lines: lines,
                r"no component reads from the bolt 'out'.*it returned a DataFrame",
            ),
            (lambda lines: None, r"'out' returned nothing \(is a `return` missing\?\)"),  # noqa: ARG005
            (lambda lines: 5, r"'out' returned 5 \(int\), not a DataStreamWriter"),  # noqa: ARG005
        ],
    )
    def test_sinks(self, spark, numbers, returns, said):
        with pytest.raises(TopologyError, match=said):
            self.build(spark, self.one_bolt(numbers[0], returns))

    def test_where_the_function_is(self, spark, numbers):
        def out(lines):
            return lines

        with pytest.raises(TopologyError) as caught:
            self.build(spark, self.one_bolt(numbers[0], out))
        line = out.__code__.co_firstlineno
        assert str(caught.value).startswith(
            f"{__file__}, line {line}: no component reads from the bolt"
        )

    def test_sink_that_starts_its_query(self, spark, numbers, tmp_path):
        def out(lines):
            writer = lines.writeStream.format("noop")
            return writer.option("checkpointLocation", str(tmp_path / "c")).start()

        with pytest.raises(TopologyError, match=r"'out' started its query itself.*without"):
            self.build(spark, self.one_bolt(numbers[0], out))
        assert spark.streams.active == []

    @pytest.mark.parametrize(
        ("spout", "said"),
        [
            (lambda spark: spark.range(5), "the spout 's' returned a batch DataFrame"),
            (lambda spark: "text", r"the spout 's' returned 'text' \(str\)"),  # noqa: ARG005
            (lambda spark: None, "the spout 's' returned nothing"),  # noqa: ARG005
            (
                lambda spark: spark.readStream.format("rate").load().writeStream,
                "'s' returned a DataStreamWriter.*a spout returns the DataFrame",
            ),
        ],
    )
    def test_spouts(self, spark, spout, said):
        topology = Topology("t")
        source = topology.spout(name="s")(spout)
        topology.bolt(source, name="out")(lambda s: s.writeStream)
        with pytest.raises(TopologyError, match=said):
            self.build(spark, topology)

    def test_bolt_that_is_read_and_returns_a_writer(self, spark, numbers):
        topology, lines = numbers_topology(numbers[0])
        middle = topology.bolt(lines, name="middle")(lambda lines: lines.writeStream)
        topology.bolt(middle, name="out")(lambda middle: middle.writeStream)
        with pytest.raises(
            TopologyError, match=r"'middle' returned a DataStreamWriter.*another bolt"
        ):
            self.build(spark, topology)

    def test_function_that_exits(self, spark, numbers):
        def out(_):
            sys.exit(0)

        with pytest.raises(WorkerError) as caught:
            self.build(spark, self.one_bolt(numbers[0], out))
        assert str(caught.value).startswith("the bolt 'out' failed:\n")
        assert "\nSystemExit: 0 (code of the topology ends the process" in str(caught.value)

    def test_function_that_raises(self, spark, numbers):
        def out(lines):
            return lines.select("nothing")

        with pytest.raises(WorkerError) as caught:
            self.build(spark, self.one_bolt(numbers[0], out))
        message = str(caught.value)
        assert message.startswith("the bolt 'out' failed:\n")
        assert 'return lines.select("nothing")' in message
        assert "`nothing` cannot be resolved" in message
        assert "stormkeeper/worker" not in message
        assert len(message.splitlines()) < 8


def test_functions_get_what_they_ask_for(spark, numbers):
    topology, lines = numbers_topology(numbers[0])
    seen = {}

    @topology.bolt(lines)
    def out(lines, conf, spark):
        seen.update(conf=conf, spark=spark)
        return lines.writeStream.format("noop")

    conf = defaults()
    built = build(
        plan(topology), topology.components, spark, conf, lambda query: f"/nonexistent/{query}"
    )
    assert [*built] == ["out"]
    assert seen == {"conf": conf, "spark": spark}


SCRIPT = """
from pyspark.sql import DataFrame
from stormkeeper.topology import Topology

topology = Topology("bodies")

def written(frame):
    return frame.writeStream.format("noop")

DataFrame.written = written

@topology.spout
def lines(spark, conf):
    return spark.readStream.text(conf["input"])

@topology.bolt(lines)
def out(lines):
"""

READ = """
@topology.bolt(out)
def end(out):
    return out.writeStream
"""

START = 'lines.writeStream.format("noop").trigger(availableNow=True).start()'


class TestTheSource:
    """What the source of a script is refused for, the worker refuses in the same words."""

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ("return lines.writeStream.start", ""),
            ("return lines", "returned a DataFrame"),
            ("return lines.where('true').groupBy('value').count()", "returned a DataFrame"),
            (f"return {START}", "started its query itself"),
            ("lines.where('true').writeStream", "returned nothing"),
            ("'''Does nothing.'''", "returned nothing"),
            ("pass", "returned nothing"),
            ("if lines:\n        return lines", "returned a DataFrame"),
            (f"try:\n        return {START}\n    finally:\n        pass", "started its query"),
            # Nothing is said where the source does not tell, or tells that it is right.
            (f"{START}\n    return lines.writeStream", ""),
            (f"more = {START}\n    more.stop()\n    return written(lines)", ""),
            ("return written(lines)", ""),
            ("return lines.written()", ""),
            ("return lines.where('true').written().option('a', 'b')", ""),
            ("lines = written(lines)\n    return lines", ""),
            ("for lines in [written(lines)]:\n        return lines", ""),
            ("match [written(lines)]:\n        case [lines]:\n            return lines", ""),
            ("return (lines := written(lines))", ""),
            ("return [lines for lines in [written(lines)]][0]", ""),
            ("try:\n        return lines.nothing()\n    except Exception:\n"
             "        return lines.writeStream", ""),
            ("def nested():\n        return lines\n    return nested().writeStream", ""),
        ],
    )  # fmt: skip
    def test_of_sinks(self, spark, numbers, tmp_path, body, said):
        self.same(spark, numbers, tmp_path, f"{SCRIPT}    {body}\n", said)

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ("return lines.writeStream", "but another bolt reads from it"),
            ("return lines.writeStream.format('noop')", "but another bolt reads from it"),
            (f"return {START}", ""),
            (f"{START}\n    return lines", ""),
            ("return written(lines)", ""),
            ("return lines", ""),
        ],
    )
    def test_of_bolts_that_are_read(self, spark, numbers, tmp_path, body, said):
        self.same(spark, numbers, tmp_path, f"{SCRIPT}    {body}\n{READ}", said)

    @pytest.fixture(autouse=True)
    def _main(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def same(self, spark, numbers, tmp_path, text, said):
        script = tmp_path / "job.py"
        script.write_text(text)
        made = []
        try:
            names = scripts.run(script, made.append)
            conf = defaults().with_values({"input": str(numbers[0])})
            at = str(tmp_path / "checkpoints")
            spark.conf.set("spark.sql.streaming.checkpointLocation", at)
            topology = names["topology"]
            build(plan(topology), topology.components, spark, conf, lambda query: f"{at}/{query}")
        except (TopologyError, WorkerError) as error:
            refused = str(error)
        else:
            refused = ""
        finally:
            spark.conf.unset("spark.sql.streaming.checkpointLocation")
            for query in spark.streams.active:
                query.stop()
            del DataFrame.written
        if not said:
            check_bolts(topology)
            return
        with pytest.raises(TopologyError, match=said) as caught:
            check_bolts(topology)
        _, _, found = str(caught.value).partition(": ")
        assert refused.endswith(found)


def test_a_bolt_may_start_a_query_that_is_its_own(spark, numbers, run_topology, tmp_path):
    folder, values = numbers
    topology, lines = numbers_topology(folder)
    own = []

    @topology.bolt(lines)
    def out(lines):
        writer = lines.writeStream.queryName("own").format("memory").trigger(availableNow=True)
        own.append(writer.option("checkpointLocation", str(tmp_path / "own")).start())
        return all_of_it(lines).format("noop")

    counts = run_topology(topology)
    own[0].awaitTermination()
    assert counts.executed["out", "out"] == {"lines": len(values)}
    assert spark.table("own").count() == len(values)
