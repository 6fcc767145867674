"""The real supervisor, on the real ZooKeeper, doing what a leader has written.

Its workers are stand-ins, started as real ones are. `test_it_runs_a_real_topology` has a real one.
"""

import json
import os
import re
import signal
import socket
import stat
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from stormkeeper import paths
from stormkeeper.supervisor.worker_processes import WorkerProcesses
from stormkeeper.thrift.records import Assignment, NodeInfo
from stormkeeper.topology.package.code import collect
from support.packages import contents, of_folder, packed, tree, wheel
from support.supervisors import OTHER_PORT, PORT, is_alive, runs
from support.waiting import DEADLINE_SECS, until

pytestmark = pytest.mark.zookeeper

#: Spark on a machine that has much else to do.
START_SECS = 300.0

WC, JOB = "wc-1-1700000000", "job-2-1700000000"


def record(leader, node):
    return leader.storm.supervisor_info(node)


def option(start, name):
    arguments = start["arguments"]
    return [arguments[at + 1] for at, text in enumerate(arguments) if text == name]


def errors(leader, storm_id, component="out"):
    return [error.error for error in leader.storm.errors(storm_id, component)]


def test_from_the_assignment_to_the_worker(leader, supervisor, submit):
    supervisor.configure(supervisor_worker_nice=19)
    node = supervisor.start()
    info = record(leader, node)
    assert info.meta == [PORT, OTHER_PORT]
    assert info.used_ports == []
    assert info.refuses is None
    assert info.resources_map.keys() == {"memory.mb", "cpu.pcore.percent"}
    assert all(value > 0 for value in info.resources_map.values())

    submit(WC, **{"my.own.key": ["kept"]})
    claim = leader.assign(WC, node, PORT, "out", "totals")
    start = supervisor.started(WC)
    local = supervisor.folder
    [root] = (local / "supervisor" / "packages").iterdir()
    assert (root / "manifest.json").exists()
    worker = local / "workers" / start["folder"].rpartition("/")[2]
    assert start["folder"] == str(worker)
    assert start["arguments"][0] == "code/topology.py"
    assert option(start, "--root") == [str(root)]
    assert option(start, "--storm-id") == [WC]
    assert option(start, "--node") == [node]
    assert option(start, "--port") == [str(PORT)]
    queries, claims = zip(*(one.split("=") for one in option(start, "--claim")), strict=True)
    assert queries == ("out", "totals")
    assert all(text.startswith(f"{claim.epoch}-{claim.counter}-") for text in claims)
    [overrides, own] = map(Path, option(start, "--overrides") + option(start, "--config"))
    assert json.loads(overrides.read_bytes())["my.own.key"] == ["kept"]
    assert f"storm.local.dir: {local}" in own.read_text()
    assert {stat.S_IMODE(file.stat().st_mode) for file in (overrides, own)} == {0o600}
    assert start["environment"]["PYSPARK_PYTHON"] == start["python"] == sys.executable
    assert start["environment"]["GREETING"] == "hello"
    assert start["nice"] == 19
    until(lambda: record(leader, node).used_ports == [PORT])

    leader.release(WC)
    until(lambda: (record(leader, node).stopped_workers or {}).get(PORT))
    stopped = record(leader, node).stopped_workers[PORT]
    assert (stopped.epoch, stopped.counter) == (claim.epoch, claim.counter)
    assert record(leader, node).used_ports == []
    assert not is_alive(start["pid"])
    code = local / "supervisor" / "stormdist" / WC
    assert code.exists(), "it may come back"
    leader.remove(WC)
    for place in ("workers", "supervisor/stormdist", "supervisor/packages"):
        until(lambda place=place: not [*(local / place).iterdir()])
    assert errors(leader, WC) == []

    assert supervisor.stop() == 0
    assert record(leader, node) is None


def test_a_worker_that_ends_is_started_again(leader, supervisor, submit):
    node = supervisor.start()
    order = submit(WC, **{"stand.in.child": True})
    leader.assign(WC, node, PORT, "out")
    first = supervisor.started(WC)
    os.kill(first["pid"], signal.SIGKILL)
    second = supervisor.started(WC, 2)
    # It had a session of its own, and yet had to go first.
    assert not is_alive(*first["children"])
    [text] = until(lambda: errors(leader, WC))
    assert text.startswith("the worker in slot 6700 crashed (1 in a row): it ended by SIGKILL\n")
    assert "STARTED" in text

    order.write_text("0 unsaid")  # as after os._exit(0) in code of the topology
    third = supervisor.started(WC, 3)
    assert "(2 in a row): it ended with exit code 0 before its queries" in errors(leader, WC)[0]

    order.write_text("4")
    fourth = supervisor.started(WC, 4)
    numbers = [
        int(option(each, "--claim")[0].rpartition("-")[2])
        for each in (first, second, third, fourth)
    ]
    assert numbers == sorted(set(numbers)), "each start has a greater claim"
    order.write_text("0")
    until(lambda: record(leader, node).used_ports == [])
    # All of it was said before: of an end that was asked for, nothing.
    assert len(errors(leader, WC)) == 2
    assert len(supervisor.starts(WC)) == 4


@pytest.mark.slow
def test_workers_outlive_their_supervisor_and_are_adopted(leader, supervisor, submit):
    node = supervisor.start()
    submit(WC)
    order = submit(JOB)
    leader.assign(WC, node, PORT, "out")
    leader.assign(JOB, node, OTHER_PORT, "out")
    start, other = supervisor.started(WC), supervisor.started(JOB, port=OTHER_PORT)
    until(lambda: record(leader, node).used_ports == [PORT, OTHER_PORT])
    supervisor.kill()
    os.kill(other["pid"], signal.SIGKILL)
    assert supervisor.start() == node
    assert record(leader, node).meta == [PORT, OTHER_PORT]
    supervisor.started(JOB, 2, OTHER_PORT)
    assert supervisor.stop() == 0
    assert supervisor.start() == node
    until(lambda: record(leader, node).used_ports == [PORT, OTHER_PORT])
    assert is_alive(start["pid"])
    assert supervisor.starts(WC) == [start], "no other was started beside it"

    # An adopted worker writes its exit code, which only its parent would get.
    leader.storm.state.delete_node(paths.last_error(JOB, "out"))
    order.write_text("0")
    until(lambda: record(leader, node).used_ports == [PORT])
    assert leader.storm.last_error(JOB, "out") is None
    assert len(supervisor.starts(JOB, OTHER_PORT)) == 2

    # What was decided while nobody looked is done.
    supervisor.kill()
    leader.release(WC)
    assert supervisor.start() == node
    until(lambda: not is_alive(start["pid"]))
    until(lambda: PORT in (record(leader, node).stopped_workers or {}))
    assert record(leader, node).used_ports == []


def test_what_keeps_a_worker_from_its_start_is_told_its_user(leader, supervisor, submit, tmp_path):
    node = supervisor.start()
    leader.assign(WC, node, PORT, "out")
    [text] = until(lambda: errors(leader, WC))
    assert f"no Nimbus has ever had {WC}-stormjar.jar" in text
    tree(tmp_path / "java", {"topology.py": "1\n"})
    package, _ = packed(contents(collect(tmp_path / "java", tmp_path)))
    package.truncate(100)
    leader.submit(JOB, package, {})
    leader.assign(JOB, node, OTHER_PORT, "out")
    [text] = until(lambda: errors(leader, JOB))
    assert f"{JOB} is no topology that this supervisor can run" in text
    assert record(leader, node).used_ports == []
    # It tries again by itself.
    submit(WC)
    supervisor.started(WC)


def test_what_topologies_require_is_installed_once(leader, supervisor, stand_in, tmp_path):
    needs = wheel(tmp_path, "helper", "2.0", {"helper.py": "VALUE = 7\n"})
    values = {
        "stand.in.order": str(tmp_path / "order"),
        "topology.environment": {"PYTHONPATH": str(stand_in)},
    }
    node = supervisor.start()
    for storm_id, port in ((WC, PORT), (JOB, OTHER_PORT)):
        place = tree(tmp_path / storm_id, {"topology.py": f"print({storm_id!r})\n"})
        package, _ = packed(of_folder(place, requirements=("helper==2.0",), wheels=(needs,)))
        leader.submit(storm_id, package, values)
        leader.assign(storm_id, node, port, "out")
    start, other = supervisor.started(WC), supervisor.started(JOB, port=OTHER_PORT)
    environments = supervisor.folder / "supervisor" / "environments"
    [environment] = environments.iterdir()
    assert start["python"] == other["python"] == str(environment / "bin" / "python")
    assert start["environment"]["PYSPARK_PYTHON"] == start["python"]
    assert [*environment.glob("lib/*/site-packages/helper.py")]
    for storm_id in (WC, JOB):
        leader.remove(storm_id)
    until(lambda: not [*environments.iterdir()])


def test_a_worker_of_too_much_memory_is_ended(leader, supervisor, submit):
    node = supervisor.start()
    submit(WC)
    leader.assign(WC, node, PORT, "out", memory_mb=1.0)
    supervisor.started(WC, 2)
    assert any(
        "of memory with all that it started, and may take 1" in e for e in errors(leader, WC)
    )


def test_what_it_says_of_itself(leader, supervisor, tmp_path):
    checks = tmp_path / "checks"
    tree(checks, {"disk.sh": "#!/bin/sh\necho / is full\nexit 1\n"})
    (checks / "disk.sh").chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        supervisor.configure(storm_health_check_dir=str(checks), logviewer_port=taken)
        node = supervisor.start()
    assert f"port {taken} (logviewer.port) is in use" in supervisor.log
    reason = "the health check disk.sh failed: it ended with exit code 1: / is full"
    assert record(leader, node).refuses == reason

    [place] = re.findall(r"metrics on (http://\S+)/metrics", supervisor.log)
    assert place == f"http://127.0.0.1:{record(leader, node).http_port}"
    assert "authentication is off" not in supervisor.log
    # What another Nimbus places here is not run. That is said once.
    foreign = f"{WC} is not run here: a Nimbus that is not ours"
    executors = {(1, 1): NodeInfo(node, {PORT})}
    for start in (1, 2):
        times = {(1, 1): start}
        told = Assignment("/", {}, executors, executor_start_time_secs=times)
        leader.leader.set_assignment(WC, told)
        until(lambda: foreign in supervisor.log)
    leader.assign(JOB, node, OTHER_PORT, "out")
    until(lambda: errors(leader, JOB))
    assert supervisor.log.count(foreign) == 1

    with pytest.raises(urllib.error.HTTPError) as answered:
        urllib.request.urlopen(f"{place}/readyz", timeout=DEADLINE_SECS)
    with answered.value as page:
        assert page.code == 503
        first, slot, other, last = page.read().decode().splitlines()
    assert (first, slot) == (reason, "6700 empty")
    assert other.startswith(f"6701 waiting for the code, {JOB}")
    assert last.startswith(foreign)
    with urllib.request.urlopen(f"{place}/metrics", timeout=DEADLINE_SECS) as page:
        assert b'stormkeeper_supervisor_slots{state="empty"} 1.0' in page.read()
    supervisor.worker_log(WC).parent.mkdir(parents=True)
    supervisor.worker_log(WC).write_text("what a worker said\n")
    file = f"{place}/api/v1/log?file={WC}/{PORT}/worker.log"
    with urllib.request.urlopen(file, timeout=DEADLINE_SECS) as page:
        assert page.read() == b"what a worker said\n"

    leader.storm.state.delete_node(paths.supervisor(node))
    assert until(lambda: record(leader, node)).refuses == reason


@pytest.mark.slow
def test_crash_report_repeats_the_workers_own_error(leader, supervisor, tmp_path):
    tree(tmp_path / "job", {"job.py": "raise ValueError('no day')\n"})
    package, manifest = packed(contents(collect(tmp_path / "job" / "job.py", tmp_path)))
    leader.submit(JOB, package, {"spark.master": "local[1]"})
    leader.assign(JOB, supervisor.start(), PORT, manifest.name)
    begin = "ValueError: no day\nthe worker in slot 6700 crashed (1 in a row): it ended with exit"

    def crash():
        return [text for text in errors(leader, JOB, manifest.name) if text.startswith(begin)]

    [text] = until(crash, START_SECS)
    assert text.splitlines()[-1] == "ValueError: no day"
    assert "Its log ends with" not in text


@pytest.mark.slow
@pytest.mark.spark
def test_it_runs_a_real_topology(leader, supervisor, tmp_path):
    script = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "rows = spark.readStream.format('rate').load()\n"
        "rows.writeStream.format('noop').queryName('ticks').start().awaitTermination()\n"
    )
    tree(tmp_path / "job", {"job.py": script})
    package, manifest = packed(contents(collect(tmp_path / "job" / "job.py", tmp_path)))
    leader.submit(JOB, package, {"spark.master": "local[1]"})
    node = supervisor.start()
    leader.assign(JOB, node, PORT, manifest.name, memory_mb=2048.0)
    began = time.time()
    log, beating = supervisor.worker_log(JOB), f"worker beating {JOB} {node} {PORT}"
    pid = log.with_name("worker.pid")
    until(lambda: log.exists() and beating in log.read_text(), START_SECS)
    heartbeat = until(lambda: leader.storm.worker_heartbeat(JOB, node, PORT))
    assert heartbeat.time_secs >= int(began)

    # Another supervisor looks after it, and starts it again when nothing of it is left.
    supervisor.kill()
    first = WorkerProcesses(str(supervisor.folder / "supervisor"))
    for worker_id in first.strays():
        first.adopt(worker_id, None)

    def look_with_jvm():
        [look] = first.look().values()
        return look if len(look.members) > 1 else None

    look = until(look_with_jvm, START_SECS)  # heartbeats begin before the JVM
    assert supervisor.start() == node
    main = int(pid.read_text())
    os.kill(main, signal.SIGKILL)
    until(lambda: int(pid.read_text()) != main, START_SECS)
    assert not any(map(runs, look.members))
    until(lambda: log.read_text().count(beating) == 2, START_SECS)
    [text] = errors(leader, JOB, manifest.name)
    assert "it ended, and its exit code is not known" in text

    leader.release(JOB)
    until(lambda: PORT in (record(leader, node).stopped_workers or {}), START_SECS)
    assert len(errors(leader, JOB, manifest.name)) == 1
