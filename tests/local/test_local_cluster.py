"""What a local cluster says of its end, and how it follows the description of its processes."""

import re
import sys
import uuid
from types import SimpleNamespace

import pytest

from stormkeeper.conf import Address, load
from stormkeeper.errors import LocalClusterError
from stormkeeper.local import local_cluster, run_plan
from stormkeeper.local.local_cluster import GRACE_SECS
from stormkeeper.local.run_plan import (
    PIPELINE,
    PlannedProcess,
    RunRequest,
    RunSite,
    ServerAddresses,
)
from stormkeeper.pipeline import process as pipeline
from stormkeeper.worker import shutdown
from support.waiting import until

HERE = Address("127.0.0.1", 1)


def site_in(folder):
    return RunSite(folder, uuid.uuid4().hex, ServerAddresses(HERE, (HERE, HERE), (HERE, HERE)))


def test_tables_that_miss_the_end_of_a_job_are_said_to_miss_it(tmp_path, monkeypatch):
    monkeypatch.setattr(local_cluster, "START_SECS", 0.0)
    monkeypatch.setattr(local_cluster.Children, "start", lambda *_: None)
    (tmp_path / "topology.py").write_text("")
    conf = load(files=(), overrides=[f"pipeline.tables.dir={tmp_path / 'kept'}"])
    said = []
    view = SimpleNamespace(note=said.append)
    signals = SimpleNamespace(wait=lambda _: False, stopped=False)
    request = RunRequest(tmp_path / "topology.py")
    one = local_cluster.LocalCluster(conf, request, view, signals, site_in(tmp_path))
    one._submission.storm_id = "topology-1-1"
    one._have_end_written_down()
    waiting, line = said
    assert waiting == f"waiting until the tables in {tmp_path / 'kept'} say so, too"
    assert f"the tables in {tmp_path / 'kept'} do not say that topology-1-1 is completed" in line


def test_whoever_ends_in_time_is_not_ended_by_force():
    cutting_off = pipeline._SPARK_DEFAULTS["spark.sql.streaming.stopTimeout"].removesuffix("s")
    end = pipeline._STOP_SECS + float(cutting_off) + pipeline._END_SECS
    assert end < GRACE_SECS
    assert shutdown.END_SECS < GRACE_SECS


@pytest.mark.parametrize(
    ("how", "has_failed"),
    [
        ("it ended with exit code 7", True),
        ("it ended with exit code 143", False),
        ("it ended by SIGKILL", False),
        ("it gave no sign of life for 30 s", False),
    ],
)
def test_only_a_worker_that_ends_of_itself_has_failed(how, has_failed):
    line = f"supervisor 1: slot 6700: the worker w of wc-1-1 crashed (2 in a row): {how}; its log"
    assert bool(local_cluster._CRASHED.search(line)) == has_failed


#: What a process of these tests runs: it says that it is ready, and stays.
STAYS = "import time; print('up', flush=True); time.sleep(600)"


def a_process(name, code=STAYS, *, stop=1):
    return PlannedProcess(
        name=name,
        command=(sys.executable, "-c", code),
        ready=re.compile("^(up)$"),
        ready_note=f"{name} is {{}}",
        stop_order=stop,
    )


class TestFollowing:
    """Of a roster of other processes, as real ones."""

    @pytest.fixture
    def following(self, tmp_path, monkeypatch):
        said = []

        def follow(*rows, overrides=()):
            monkeypatch.setattr(run_plan, "plan_processes", lambda *_, **__: rows)
            (tmp_path / "topology.py").write_text("")
            view = SimpleNamespace(note=said.append, show=lambda _: None)
            signals = SimpleNamespace(wait=lambda _: False, stopped=False)
            request = RunRequest(tmp_path / "topology.py")
            conf = load(files=(), overrides=overrides)
            return local_cluster.LocalCluster(conf, request, view, signals, site_in(tmp_path)), said

        return follow

    def test_each_is_said_once_it_is_ready(self, following):
        one, said = following(a_process("server"), a_process("other"), a_process(PIPELINE))
        one._start_processes(pipeline=False)
        until(lambda: len(said) == 2 or one._note_all_ready())
        assert [re.sub(r"\d+", "N", line) for line in sorted(said, reverse=True)] == [
            "server is up (process N)",
            "other is up (process N)",
        ]
        assert list(one._children) == ["server", "other"]
        one._finish()

    def test_processes_are_stopped_in_their_order(self, following, monkeypatch):
        one, _ = following(
            a_process("a", stop=3), a_process("b", stop=1), a_process("c", stop=3),
        )  # fmt: skip
        one._start_processes(pipeline=False)
        stopped = []
        stop = one._processes.stop
        monkeypatch.setattr(
            one._processes, "stop", lambda names, secs: (stopped.append(names), stop(names, secs))
        )
        one._finish()
        assert stopped == [["b"], ["a", "c"]]
        assert all(child.returncode is not None for child in one._children.values())

    @pytest.mark.parametrize(
        ("code", "ends"),
        [
            ("raise SystemExit('no disk')", True),
            ("import os; os.kill(os.getpid(), 9)", False),
            ("", False),
        ],
    )
    def test_an_end_with_an_error_ends_the_run(self, following, code, ends):
        one, _ = following(a_process("thing", code))
        one._start_processes(pipeline=False)
        until(lambda: one._children["thing"].returncode is not None)
        if ends:
            with pytest.raises(LocalClusterError, match=r"(?s)thing ended with .*no disk"):
                one._check()
        else:
            one._check()
        one._finish()

    def test_tables_that_nobody_writes_any_more_are_not_waited_for(self, following, tmp_path):
        killed = "import os; os.kill(os.getpid(), 9)"
        one, said = following(
            a_process(PIPELINE, killed),
            overrides=[f"pipeline.tables.dir={tmp_path / 'kept'}"],
        )
        one._have_end_written_down()
        _, end, line = said
        assert end.endswith("ended by SIGKILL")
        assert line.startswith(f"storm: without the pipeline the tables in {tmp_path / 'kept'} do")
        one._finish()
