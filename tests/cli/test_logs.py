"""``storm logs`` with a real ZooKeeper, and supervisors' pages over real folders."""

import json
import time
from contextlib import ExitStack

import pytest

from stormkeeper import conf, paths
from stormkeeper.state.storm.cluster import connect
from stormkeeper.thrift.nimbus import ExecutorSummary, TopologyInfo
from stormkeeper.thrift.records import (
    Assignment,
    ExecutorInfo,
    NodeInfo,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
)
from support import stand_in_worker
from support.command import Running
from support.logs import Log, serving
from support.packages import of_folder, packed
from support.small_nimbus import SmallNimbus
from support.small_nimbus import serving as serving_nimbus
from support.supervisors import PORT, Leader, SupervisorProcess

pytestmark = pytest.mark.zookeeper

ID = "wc-1-1700000000"
HOST = "127.0.0.1"


class Informed(SmallNimbus):
    """Knows which components run where."""

    def getTopologyInfoWithOpts(self, storm_id, _options):  # noqa: N802
        executors = [
            ExecutorSummary(ExecutorInfo(1, 1), "lines", HOST, 6700, 5),
            ExecutorSummary(ExecutorInfo(2, 2), "counts", HOST, 6701, 5),
        ]
        return TopologyInfo(storm_id, "wc", 5, executors, "ACTIVE", {})


@pytest.fixture
def cluster(zookeeper_settings, tmp_path):
    """Make a cluster of two supervisors with one worker each; return its logs, and options."""
    with ExitStack() as stack:
        seed = stack.enter_context(serving_nimbus(Informed()))
        settings = zookeeper_settings(**{"nimbus.seeds": [seed]})
        storm = connect(conf.defaults().with_values(settings))
        stack.callback(storm.disconnect)
        places, logs = {}, {}
        for task, (node, port) in enumerate([("one", 6700), ("two", 6701)], start=1):
            folder = tmp_path / node
            http_port = stack.enter_context(serving(folder))
            storm.supervisor_heartbeat(node, SupervisorInfo(1, HOST, http_port=http_port))
            places[task, task] = NodeInfo(node, {port})
            logs[node] = Log(folder, ID, port)
            logs[node].write(f"of {node}")
        assignment = Assignment("", {"one": HOST, "two": HOST}, places)
        base = StormBase("wc", TopologyStatus.ACTIVE, 2)
        storm.state.set_data(paths.assignment(ID), storm.codec.write(assignment))
        storm.state.set_data(paths.storm(ID), storm.codec.write(base))
        yield storm, logs, options_of(settings)


def options_of(settings):
    return [
        word for key, value in settings.items() for word in ("-c", f"{key}={json.dumps(value)}")
    ]


@pytest.fixture
def ask(storm, cluster):
    _, _, options = cluster
    return lambda *arguments: storm("logs", *arguments, *options)


BOTH = [f"{HOST}:6700 | of one", f"{HOST}:6701 | of two"]


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["wc"], BOTH),
        ([ID], BOTH),
        (["wc", "--since", "1h"], BOTH),
        (["wc", "--worker", f"{HOST}:6701"], ["of two"]),
        (["wc", "--component", "lines"], ["of one"]),
    ],
)
def test_logs_of_all_workers_and_of_some(ask, arguments, lines):
    told = ask(*arguments)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines() == lines


def test_lines_as_json(ask):
    told = ask("wc", "--json")
    assert [json.loads(line) for line in told.stdout.splitlines()] == [
        {"host": HOST, "port": 6700, "line": "of one"},
        {"host": HOST, "port": 6701, "line": "of two"},
    ]


def test_lines_of_the_last_time_alone(ask, cluster):
    _, logs, _ = cluster
    now = time.time()
    for ago, text in ((7_200, "old"), (60, "new")):
        logged = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(now - ago))
        logs["one"].write(f"{logged} INFO stormkeeper.worker {text}")
    told = ask("wc", "--since", "1h", "--worker", f"{HOST}:6700")
    (line,) = told.stdout.splitlines()
    assert line.endswith(" new")


def test_logs_of_ended_and_removed_topologies_are_printed(ask, cluster):
    storm, _, _ = cluster
    storm.state.delete_node(paths.assignment(ID))
    told = ask("wc")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines() == [f"{HOST}:6700 | of one", f"{HOST}:6701 | of two"]
    other = "other-2-1700000000"
    base = StormBase("other", TopologyStatus.ACTIVE, 1)
    storm.state.set_data(paths.storm(other), storm.codec.write(base))
    told = ask("other")
    assert (told.returncode, told.stderr) == (
        1,
        "storm: other runs nowhere now, see `storm status other`, and no registered"
        " supervisor has a log of it\n",
    )
    storm.state.delete_node(paths.storm(ID))
    told = ask("wc")
    assert (told.returncode, told.stderr) == (
        1,
        "storm: there is no topology wc; `storm list` shows all\n",
    )
    told = ask(ID, "--worker", f"{HOST}:6701")
    assert "of two\n" in told.stdout
    assert f"storm: {HOST} (one):6701 has no log of {ID}\n" in told.stderr


def test_missing_machine_is_named_and_the_others_are_read(ask, cluster):
    storm, _, _ = cluster
    storm.supervisor_heartbeat("one", SupervisorInfo(1, HOST, http_port=1))
    told = ask("wc")
    assert (told.returncode, told.stdout) == (3, f"{HOST}:6701 | of two\n")
    assert f"no logs of {HOST}:6700: {HOST}:1: connection refused" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["wc", "--component", "sums"], 1, "wc has no component sums; it has counts, lines"),
        (
            ["wc", "--worker", "host-x:6700"],
            1,
            "no supervisor is registered on host-x; these are: ",
        ),
        (["wc", "--worker", "host-x"], 2, "'host-x' is no HOST:PORT of a worker"),
        (["wc", "--since", "soon"], 2, "'soon' is no length of time such as 90s, 15m, 2h"),
        (["wc", "--worker", "a:1", "--component", "b"], 2, "exclude each other"),
    ],
)
def test_what_cannot_be_is_said(ask, arguments, code, said):
    told = ask(*arguments)
    assert (told.returncode, told.stdout) == (code, "")
    assert said in told.stderr


def test_the_log_that_a_real_supervisor_has_of_its_worker(
    storm, zookeeper_settings, tmp_path, environ
):
    settings = zookeeper_settings()
    values = {**settings, "storm.local.hostname": HOST}
    leader = Leader(tmp_path, settings)
    supervisor = SupervisorProcess(tmp_path / "local", values)
    try:
        node = supervisor.start()
        package, _ = packed(of_folder(tmp_path / "code"))
        stand_in = {"PYTHONPATH": str(stand_in_worker.folder(tmp_path / "stand-in"))}
        order = str(tmp_path / "order")
        leader.submit(ID, package, {"topology.environment": stand_in, "stand.in.order": order})
        leader.assign(ID, node, PORT, "out")
        options = options_of(settings)
        with Running(["logs", ID, "-f", *options], environ) as running:
            assert running.line().startswith("STARTED ")
        supervisor.kill()
        told = storm("logs", ID, *options)
        assert (told.returncode, told.stdout) == (3, "")
    finally:
        supervisor.close()
        leader.close()


def test_following_until_ctrl_c(cluster, environ):
    _, logs, options = cluster
    with Running(["logs", "wc", "-f", *options], environ) as running:
        assert [running.line(), running.line()] == BOTH
        logs["two"].write("more")
        assert running.line() == f"{HOST}:6701 | more"
        logs["one"].rename()
        logs["one"].write("begins anew")
        assert running.line() == f"{HOST}:6700 | begins anew"
        assert running.interrupt() == 0
