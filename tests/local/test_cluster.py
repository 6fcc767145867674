"""What a local cluster says of its end, and how it follows the description of its processes."""

import os
import re
import sys
import uuid
from types import SimpleNamespace

import pytest

from stormkeeper.conf import Address, load
from stormkeeper.errors import LocalClusterError
from stormkeeper.local import cluster
from stormkeeper.local.cluster import GRACE_SECS
from stormkeeper.local.roster import (
    PIPELINE,
    PlannedProcess,
    Request,
    Site,
    Stage,
    WhenEnded,
)
from stormkeeper.pipeline import process as pipeline
from stormkeeper.worker import process as worker
from support.waiting import until

HERE = Address("127.0.0.1", 1)


def site_in(folder):
    return Site(folder, uuid.uuid4().hex, os.getpid(), HERE, (HERE, HERE))


def test_tables_that_miss_the_end_of_a_job_are_said_to_miss_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "START_SECS", 0.0)
    monkeypatch.setattr(cluster.Children, "start", lambda *_: None)
    (tmp_path / "topology.py").write_text("")
    conf = load(files=(), overrides=[f"pipeline.tables.dir={tmp_path / 'kept'}"])
    said = []
    view = SimpleNamespace(note=said.append)
    signals = SimpleNamespace(wait=lambda _: False, stopped=False)
    request = Request(tmp_path / "topology.py")
    one = cluster.Cluster(conf, request, view, signals, site_in(tmp_path))
    one._have_end_written_down()
    waiting, line = said
    assert waiting == f"waiting until the tables in {tmp_path / 'kept'} say so, too"
    assert f"the tables in {tmp_path / 'kept'} do not say that topology-1-" in line


def test_whoever_ends_in_time_is_not_ended_by_force():
    cutting_off = pipeline._SPARK_DEFAULTS["spark.sql.streaming.stopTimeout"].removesuffix("s")
    end = pipeline._STOP_SECS + float(cutting_off) + pipeline._END_SECS
    assert end < GRACE_SECS
    assert worker.END_SECS < GRACE_SECS


#: What a process of these tests runs: it says that it is ready, and stays.
STAYS = "import time; print('up', flush=True); time.sleep(600)"


def a_process(name, code=STAYS, *, stage=Stage.SERVERS, stop=1, when_ended=WhenEnded.GO_ON):
    return PlannedProcess(
        name=name,
        command=(sys.executable, "-c", code),
        environment={},
        ready=re.compile("^(up)$"),
        ready_note=f"{name} is {{}}",
        stage=stage,
        stop_order=stop,
        when_ended=when_ended,
    )


class TestFollowing:
    """Of a roster of other processes, as real ones."""

    @pytest.fixture
    def following(self, tmp_path, monkeypatch):
        said = []

        def follow(*rows, overrides=()):
            monkeypatch.setattr(cluster, "roster", lambda *_: rows)
            (tmp_path / "topology.py").write_text("")
            view = SimpleNamespace(note=said.append, show=lambda _: None)
            signals = SimpleNamespace(wait=lambda _: False, stopped=False)
            request = Request(tmp_path / "topology.py")
            conf = load(files=(), overrides=overrides)
            return cluster.Cluster(conf, request, view, signals, site_in(tmp_path)), said

        return follow

    def test_a_stage_is_ready_before_it_is_said(self, following):
        one, said = following(
            a_process("server"), a_process("other"), a_process("late", stage=Stage.ANALYSES)
        )
        one._start_stage(Stage.SERVERS)
        one._wait_ready(Stage.SERVERS)
        assert [re.sub(r"\d+", "N", line) for line in said] == [
            "server is up (process N)",
            "other is up (process N)",
        ]
        assert list(one._children) == ["server", "other"]
        one._finish()

    def test_processes_are_stopped_in_their_order(self, following, monkeypatch):
        one, _ = following(
            a_process("a", stop=3), a_process("b", stop=1), a_process("c", stop=3),
        )  # fmt: skip
        one._start_stage(Stage.SERVERS)
        stopped = []
        stop = one._processes.stop
        monkeypatch.setattr(
            one._processes, "stop", lambda names, secs: (stopped.append(names), stop(names, secs))
        )
        one._finish()
        assert stopped == [["b"], ["a", "c"]]
        assert all(child.returncode is not None for child in one._children.values())

    @pytest.mark.parametrize(
        ("code", "when_ended", "ends"),
        [
            ("raise SystemExit('no disk')", WhenEnded.END_RUN, True),
            ("raise SystemExit('no disk')", WhenEnded.GO_ON, False),
            ("import os; os.kill(os.getpid(), 9)", WhenEnded.END_RUN, False),
            ("", WhenEnded.END_RUN, False),
        ],
    )
    def test_an_end_with_an_error_ends_the_run_where_it_should(
        self, following, code, when_ended, ends
    ):
        one, _ = following(a_process("thing", code, when_ended=when_ended))
        one._start_stage(Stage.SERVERS)
        until(lambda: one._children["thing"].returncode is not None)
        if ends:
            with pytest.raises(LocalClusterError, match=r"(?s)thing ended with .*no disk"):
                one._check_children()
        else:
            one._check_children()
        one._finish()

    def test_tables_that_nobody_writes_any_more_are_not_waited_for(self, following, tmp_path):
        killed = "import os; os.kill(os.getpid(), 9)"
        one, said = following(
            a_process(PIPELINE, killed, stage=Stage.ANALYSES, when_ended=WhenEnded.END_RUN),
            overrides=[f"pipeline.tables.dir={tmp_path / 'kept'}"],
        )
        one._have_end_written_down()
        _, end, line = said
        assert end.endswith("ended by SIGKILL")
        assert line.startswith(f"storm: without the pipeline the tables in {tmp_path / 'kept'} do")
        one._finish()
