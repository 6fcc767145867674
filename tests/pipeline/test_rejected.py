import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS
from stormkeeper.pipeline import rows, worker_liveness
from stormkeeper.pipeline.table_columns import REJECTED
from stormkeeper.pipeline.worker_liveness import next_rejected
from support.heartbeats import change_of, decode_batch, heartbeat, page_of, path

NOW = 1_772_366_400.0


def batch(*changes, instance="x"):
    found = rows.page_rows("a:6699", [page_of(instance, changes, NOW)])
    return pa.Table.from_batches([decode_batch(found)])


def step(recent, *changes, **more):
    return next_rejected(lambda: recent, batch(*changes, **more))


def test_the_arrow_schema_is_the_one_that_spark_expects():
    assert to_arrow_schema(from_arrow_schema(REJECTED), timezone="UTC") == REJECTED


def test_what_is_rejected_says_whose_it_is_and_why():
    good = change_of(path("good"), heartbeat("good"), 1, 0.0)
    gone = change_of(path("gone"), None, 2, 0.0)
    broken = change_of(path("t-1-17"), b"garbage", 3, 0.0)
    stray = change_of("/workerbeats/stray", heartbeat(), 4, 0.0)
    table = step(None, good, gone, broken, stray)
    one, other = table.to_pylist()
    assert one.pop("read_at").timestamp() == NOW
    assert "ClusterWorkerHeartbeat" in one.pop("reason")
    assert one == {
        "storm_id": "t-1-17",
        "node": "node",
        "port": 6700,
        "path": path("t-1-17"),
        "server": "a:6699",
        "revision": 3,
        "bytes": 7,
    }
    assert (other["path"], other["storm_id"]) == ("/workerbeats/stray", None)
    assert "not a worker's" in other["reason"]
    assert step(None, good, gone).schema == REJECTED


def test_a_pulse_that_is_read_again_is_rejected_once():
    table = step(None, change_of(path("t"), b"1", 3, 0.0))
    assert step(table, change_of(path("t"), b"1", 3, 5.0)).num_rows == 0
    twice = [change_of(path("t"), b"2", 4, 0.0)] * 2
    assert step(table, *twice)["revision"].to_pylist() == [4]
    java = change_of(path("t"), b"1")
    table = step(None, java, instance=WITHOUT_REVISIONS)
    assert step(table, java, instance=WITHOUT_REVISIONS).num_rows == 0


def test_what_is_known_is_asked_only_where_something_is_rejected():
    def fail():
        raise AssertionError

    assert next_rejected(fail, batch(change_of(path("good"), heartbeat("good"), 1))).num_rows == 0


def test_a_batch_adds_only_so_many(monkeypatch):
    monkeypatch.setattr(worker_liveness, "AT_ONCE", 3)
    table = step(None, *(change_of(path("t"), b"?", n, 0.0) for n in range(5)))
    assert table["revision"].to_pylist() == [2, 3, 4]
