import threading

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import batch, decoded_rows, rows
from stormkeeper.pipeline.batch import read_parts
from stormkeeper.pipeline.source import Options, PacemakerReader
from support.dataframes import dataframe
from support.heartbeats import change_of, decode_table, heartbeat, page_of, path, spout


@pytest.mark.slow
@pytest.mark.spark
def test_rows_are_the_same_when_they_were_packed(spark):
    changes = [change_of(path("t"), heartbeat("t", {(1, 1): spout(1)}), 5, 1.0)] * 700
    changes += [change_of(path("u"), b"garbage", 6, 1.0), change_of("/elsewhere", None, 7, 1.0)]
    raw = pa.Table.from_batches(
        [
            rows.page_rows("a:1", [page_of("x", changes, 1_772_366_400.0)]),
            rows.server_row("a:1", Coverage(1_772_366_400.0, "gone")),
        ]
    )
    df = spark.createDataFrame(raw)
    usual = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    (found,) = read_parts(batch.pack(df))
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == usual
    assert found.rows.schema == rows.TYPED
    expected = decoded_rows.typed(df).toArrow().sort_by("revision").cast(rows.OF_SPARK)
    light = expected.drop_columns(["executors"])
    assert found.rows.drop_columns(["executors"]).sort_by("revision") == light
    is_pulse = pc.not_equal(found.rows["kind"], rows.SERVER)
    for _ in range(2):
        pulses = pa.concat_tables(found.pulses(is_pulse)).sort_by("revision")
        assert pulses.cast(rows.OF_SPARK) == expected.filter(
            pc.not_equal(expected["kind"], rows.SERVER)
        )
    (nothing,) = read_parts(batch.pack(df.limit(0)))
    assert (nothing.rows.schema, nothing.rows.num_rows) == (rows.TYPED, 0)
    assert list(nothing.pulses(pa.array([], pa.bool_()))) == []


@pytest.mark.parametrize("is_aside", [False, True])
@pytest.mark.parametrize("values", ["true", "false"])
def test_packed_rows_are_those_that_decoding_gives(pacemaker, tmp_path, values, is_aside):
    names = [f"t{number}-{number}-17" for number in range(9)]
    with PacemakerClient(pacemaker.address) as client:
        for name in names:
            client.send_pulse(path(name), heartbeat(name, {(1, 1): spout(3)}))
    given = {"servers": pacemaker.address, "parts": "3", "values": values}

    def read(**options):
        reader = PacemakerReader(Options.parse(given | options))
        return [
            pa.Table.from_batches(list(reader.read(partition))) for partition in reader.partitions()
        ]

    plain = pa.concat_tables(map(decode_table, read()))
    aside = {"aside": str(tmp_path)} if is_aside else {}
    packed = pa.concat_tables(read(packed="true", **aside))
    assert len(list(tmp_path.iterdir())) == (3 if is_aside else 0)
    assert packed["rows"].null_count == (6 if is_aside else 3)
    assert packed.schema == batch.PACKED_PARTS
    is_used = threading.Event()

    def one_by_one(prefetchPartitions):  # noqa: N803
        assert prefetchPartitions
        for row in zip(*(column.to_pylist() for column in packed), strict=True):
            # The first comes as soon as it is there, and the second is read while it is used.
            assert row[0] < 2 or is_used.wait(30)
            yield row

    standing = dataframe(packed)
    standing.rdd.toLocalIterator = one_by_one
    parts, pulses = [], []
    for part in read_parts(standing, 3):
        is_used.set()
        parts.append(part.rows)
        pulses += part.pulses(pc.not_equal(part.rows["kind"], rows.SERVER))
    assert list(tmp_path.iterdir()) == []
    of_parts = [set(part["storm_id"].drop_null().to_pylist()) for part in parts]
    assert sorted(name for found in of_parts for name in found) == names
    assert [part["kind"].to_pylist().count(rows.SERVER) for part in parts] == [1, 1, 1]
    columns = ["storm_id", "node", "port", "time_secs", "executors", "bytes", "revision"]
    found = pa.concat_tables(pulses)
    expected = plain.filter(pc.equal(plain["kind"], rows.PULSE)).select(columns)
    assert found.select(columns).sort_by("revision") == expected.sort_by("revision")
    assert found["executors"].null_count == (0 if values == "true" else 9)


def test_batch_without_reads_has_all_parts_without_rows():
    nothing = dataframe(batch.PACKED_PARTS.empty_table())
    assert [part.rows.num_rows for part in read_parts(nothing, 3)] == [0, 0, 0]


@pytest.mark.spark
def test_spark_keeps_nothing_of_a_part_that_was_read(spark, pacemaker, tmp_path):
    with PacemakerClient(pacemaker.address) as client:
        for number in range(9):
            client.send_pulse(path(f"t-{number}-17"), b"x")
    jobs = spark.sparkContext._jsc.sc().dagScheduler().activeQueryToJobs()

    def kept():
        return set(jobs.keySet().toArray())

    before, found = kept(), []

    def read(batch, _):
        found.extend((part.rows.num_rows, kept()) for part in read_parts(batch, 3))

    options = {"servers": pacemaker.address, "parts": "3", "packed": "true"}
    rows_ = spark.readStream.format("pacemaker").options(**options).load()
    writer = rows_.writeStream.foreachBatch(read).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(60)
    assert sum(count for count, _ in found) == 9 + 3
    assert [held - before for _, held in found] == [set()] * 3
    assert kept() <= before
