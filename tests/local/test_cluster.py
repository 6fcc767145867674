"""What a local cluster says of its end."""

from types import SimpleNamespace

from stormkeeper.conf import load
from stormkeeper.local import cluster
from stormkeeper.local.cluster import GRACE_SECS
from stormkeeper.pipeline import process as pipeline
from stormkeeper.worker import process as worker


def test_tables_that_miss_the_end_of_a_job_are_said_to_miss_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "START_SECS", 0.0)
    monkeypatch.setattr(cluster.Cluster, "_spawn", lambda *_: None)
    (tmp_path / "topology.py").write_text("")
    conf = load(files=(), overrides=[f"pipeline.tables.dir={tmp_path / 'kept'}"])
    said = []
    view = SimpleNamespace(note=said.append)
    signals = SimpleNamespace(wait=lambda _: False, stopped=False)
    request = cluster.Request(tmp_path / "topology.py")
    one = cluster.Cluster(conf, request, view, signals, directory=tmp_path, mark="mark")
    one._pipeline_conf = tmp_path / "cluster.yaml"
    one._have_end_written_down()
    waiting, line = said
    assert waiting == f"waiting until the tables in {tmp_path / 'kept'} say so, too"
    assert f"the tables in {tmp_path / 'kept'} do not say that topology-1-" in line


def test_whoever_ends_in_time_is_not_ended_by_force():
    cutting_off = pipeline._SPARK_DEFAULTS["spark.sql.streaming.stopTimeout"].removesuffix("s")
    end = pipeline._STOP_SECS + float(cutting_off) + pipeline._END_SECS
    assert end < GRACE_SECS
    assert worker.END_SECS < GRACE_SECS
