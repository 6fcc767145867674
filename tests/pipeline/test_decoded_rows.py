import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.pipeline import decoded_rows, rows
from stormkeeper.pipeline.decoded_rows import heartbeats, statistics
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import Compression, deserialize, serialize
from support import vectors
from support.decoding import ENGINES
from support.heartbeats import bolt, change_of, decode_batch, heartbeat, page_of, path, spout

GOLDEN = {
    vector["name"]: bytes.fromhex(vector["hex"])
    for name in ("pacemaker", "storm-2.8")
    for vector in vectors.load(name)
    if "ClusterWorkerHeartbeat" in vector["name"]
}


@pytest.fixture(params=ENGINES)
def engine(request):
    return ENGINES[request.param]


def raw(*pulses):
    """Return rows of the source for (path, details)."""
    readings = [
        change_of(where, details, number, 0.5) for number, (where, details) in enumerate(pulses)
    ]
    return rows.page_rows("a:1", [page_of("x", readings, 1000.0)])


def test_the_arrow_schema_is_the_one_that_spark_expects():
    assert to_arrow_schema(from_arrow_schema(rows.OF_SPARK), timezone="UTC") == rows.OF_SPARK


@pytest.mark.parametrize("details", GOLDEN.values(), ids=GOLDEN)
def test_what_storm_wrote_is_read(details, engine):
    (row,) = decode_batch(raw((path("wc-1-17", "a-b", 6700), details)), engine).to_pylist()
    beat = deserialize(ClusterWorkerHeartbeat, details)
    assert row["error"] is None
    assert (row["storm_id"], row["node"], row["port"]) == ("wc-1-17", "a-b", 6700)
    assert (row["time_secs"], row["uptime_secs"]) == (beat.time_secs, beat.uptime_secs)
    found = {(e["task_start"], e["task_end"]): e for e in row["executors"]}
    assert found.keys() == {(i.task_start, i.task_end) for i in beat.executor_stats}
    for info, stats in beat.executor_stats.items():
        executor = found[info.task_start, info.task_end]
        assert executor["kind"] == ("spout" if stats.specific.spout else "bolt")
        assert executor["component"] is None  # Storm's heartbeats do not carry it
        assert executor["rate"] == stats.rate
        for window, by_stream in stats.emitted.items():
            emitted = {
                c["stream"]: c["emitted"]
                for c in executor["counters"]
                if c["window"] == window and c["emitted"] is not None
            }
            assert emitted == by_stream
        if stats.specific.bolt:
            for window, by_source in stats.specific.bolt.executed.items():
                executed = {
                    (c["source"], c["stream"]): c["executed"]
                    for c in executor["counters"]
                    if c["window"] == window and c["executed"] is not None
                }
                assert executed == {(s.componentId, s.streamId): n for s, n in by_source.items()}


def test_rows_keep_their_order_and_the_sources_columns(engine):
    batch = raw(
        (path("a"), heartbeat("a", {(1, 1): spout(5)}, time_secs=7)),
        (path("b"), None),
        (path("c"), b"garbage"),
        (path("d"), heartbeat("d")),
    )
    table = decode_batch(batch, engine)
    assert table.schema == rows.TYPED
    found = table.to_pylist()
    assert [row["storm_id"] for row in found] == ["a", "b", "c", "d"]
    assert [row["time_secs"] is None for row in found] == [False, True, True, False]
    assert [row["error"] is None for row in found] == [True, True, False, True]
    assert "ClusterWorkerHeartbeat" in found[2]["error"]
    executors = [row["executors"] for row in found]
    assert [None if these is None else len(these) for these in executors] == [1, None, None, 0]
    for name in ("kind", "server", "instance", "path", "revision", "age_secs", "received_at"):
        assert table[name] == batch[name]


def test_a_server_row_goes_through(engine):
    (row,) = decode_batch(rows.server_row("a:1", Coverage(1000.0, "gone")), engine).to_pylist()
    assert (row["kind"], row["storm_id"], row["error"]) == ("server", None, None)
    assert row["health"]["error"] == "gone"


def test_an_empty_batch_has_the_schema(engine):
    assert decode_batch(raw(), engine).schema == rows.TYPED


def test_a_large_batch_is_decoded_in_adjoining_pieces(engine):
    pulses = [(path(f"t{n}"), heartbeat(f"t{n}", time_secs=n)) for n in range(1100)]
    decoded = list(decoded_rows.decode_batches(iter([raw(*pulses[:7]), raw(*pulses[7:])]), engine))
    assert len(decoded) > 2
    found = pa.Table.from_batches(decoded).to_pylist()
    assert [(row["storm_id"], row["time_secs"]) for row in found] == [
        (f"t{n}", n) for n in range(1100)
    ]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_row(details):
    for engine in ENGINES.values():
        (row,) = decode_batch(raw((path("a"), details)), engine).to_pylist()
        assert row["storm_id"] == "a"


@given(st.data())
def test_a_damaged_heartbeat_is_a_row(data):
    whole = serialize(
        deserialize(ClusterWorkerHeartbeat, GOLDEN["thrift.ClusterWorkerHeartbeat"]),
        data.draw(st.sampled_from([Compression.PLAIN, Compression.GZIP, Compression.ZSTD])),
    )
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in data.draw(st.lists(st.integers(0, max(0, len(damaged) - 1)), max_size=4)):
        if damaged:
            damaged[place] = data.draw(st.integers(0, 255))
    for engine in ENGINES.values():
        (row,) = decode_batch(raw((path("a"), bytes(damaged))), engine).to_pylist()
        assert row["storm_id"] == "a"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/workerbeats/wc-1-17/node-6700", ("wc-1-17", "node", 6700)),
        ("/workerbeats/wc-1-17/5f-a0-6700", ("wc-1-17", "5f-a0", 6700)),
        ("/workerbeats/wc-1-17", (None, None, None)),
        ("/workerbeats/wc-1-17/node", (None, None, None)),
        ("/workerbeats/wc-1-17/node-x", (None, None, None)),
        ("/workerbeats/wc-1-17/a/node-1", (None, None, None)),
        ("/workerbeats/wc-1-17/node-99999999999999", (None, None, None)),
        (f"/workerbeats/wc-1-17/node-{'9' * 5000}", (None, None, None)),
        ("/workerbeats/wc-1-17/node-\N{ARABIC-INDIC DIGIT SIX}700", (None, None, None)),
        ("/other/wc-1-17/node-6700", (None, None, None)),
        ("", (None, None, None)),
    ],
)
def test_a_path_names_the_worker(text, expected):
    (row,) = decode_batch(raw((text, None))).to_pylist()
    assert (row["storm_id"], row["node"], row["port"]) == expected


@pytest.mark.spark
def test_heartbeats_and_statistics_are_transforms(spark):
    beat = heartbeat(
        "wc-1-17",
        {(1, 1): spout(5), (2, 3): bolt({("spout", "default"): 5, ("spout", "other"): 1}, 2)},
        time_secs=1234,
    )
    batch = raw((path("wc-1-17"), beat), (path("gone"), None), (path("bad"), b"garbage"))
    df = spark.createDataFrame(pa.Table.from_batches([batch]))
    found = {row.storm_id: row for row in df.transform(heartbeats).collect()}
    assert found.keys() == {"wc-1-17", "bad"}
    assert (found["wc-1-17"].time_secs, found["wc-1-17"].error) == (1234, None)
    assert "ClusterWorkerHeartbeat" in found["bad"].error
    counted = df.transform(heartbeats).transform(statistics)
    assert counted.columns == [
        *("storm_id", "node", "port", "server", "received_at", "time_secs"),
        *("task_start", "task_end", "component", "kind", "window", "source", "stream"),
        *("emitted", "transferred", "executed", "acked", "failed"),
        *("complete_ms_avg", "execute_ms_avg", "process_ms_avg", "partial"),
    ]
    ours = counted.where("window = ':all-time'").orderBy("task_start", "source", "stream")
    assert [(r.task_start, r.source, r.stream, r.emitted, r.executed) for r in ours.collect()] == [
        (1, None, "default", 5, None),
        (2, None, "default", 2, None),
        (2, "spout", "default", None, 5),
        (2, "spout", "other", None, 1),
    ]
