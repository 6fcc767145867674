"""Measures a cluster: how soon a topology runs that is submitted, and how fast its Nimbus answers.

    python bench/cluster_bench.py [--rounds 5] [--topologies 400] [--seconds 10]

Real daemons on this machine, idle but for what is measured.

- Submitting: from the start of `storm submit` until the worker's first pulse is in the Pacemaker,
  with the moments in between; and in turn a bare PySpark session's start, which is a part of it.
- Restarting: a worker of two queries is killed with -9; from the end of its last process until the
  next one's start, and from there until both queries have committed a batch; and in turn the same
  of its first start.
- Answers: `getClusterInfo` of a cluster with 400 topologies of 24 workers each, and of one with
  4,332, asked by one connection, and by eight at once, after a first call; and the page of a
  topology with 24 workers, also when all have beaten before each call. The answers are counted and
  not decoded. Otherwise pulses and supervisors' records stand still meanwhile.

Writes bench/results/cluster.json, and prints it.
"""

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from pacemaker.servers import HOST, Stormkeeper

import stormkeeper
from state import filling
from stormkeeper import paths
from stormkeeper.conf import Address
from stormkeeper.local import reservations
from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.rpc.message_frames import Kind, frame, record_frame
from stormkeeper.thrift.nimbus import Nimbus
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    LaunchClaim,
    QueryActivity,
    SupervisorInfo,
    WorkerLaunch,
)
from stormkeeper.thrift.serialization import deserialize, serialize

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "cluster.json"
STORM = Path(sys.executable).with_name("storm")
EXAMPLE = ROOT / "examples" / "word_count.py"
TWO_QUERIES = ROOT / "examples" / "two_queries.py"
START_SECS = 60
#: A topology's first pulse comes when Spark has started.
PULSE_SECS = 180
CONNECTIONS = (1, 8)
#: Answers have more, errors fewer.
LEAST_BYTES = 1_000

BARE = """
from pyspark.sql import SparkSession
SparkSession.builder.master("local[2]").getOrCreate()
print("up", flush=True)
"""

PAGE = """
from stormkeeper.topology import Topology
topology = Topology("page", conf={{"topology.workers": {workers}}})
@topology.spout
def lines(spark, conf):
    return spark.readStream.format("rate").load()
{bolts}"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--topologies", type=int, nargs="*", default=[400, 4332])
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    figures = {
        "machine": machine,
        "submit": submissions(options.rounds),
        "restart": restarts(options.rounds),
        "answers": [answers(each, options.seconds) for each in options.topologies],
    }
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


def submissions(count):
    rounds = []
    with cluster(supervisor=True) as (environ, pool, client):
        for number in range(1, count + 1):
            print(f"submission {number} of {count}", file=sys.stderr)
            session = bare_session()
            rounds.append(
                {"a bare session's start, s": session, **submission(environ, pool, client, number)}
            )
    return with_medians(rounds)


def with_medians(rounds):
    medians = {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}
    return {"medians": medians, "rounds": rounds}


def bare_session():
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", BARE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        line = process.stdout.readline()
        took = time.monotonic() - began
        process.communicate(timeout=PULSE_SECS)
    if line != "up\n":
        raise SystemExit("the bare session did not start")
    return round(took, 3)


def submission(environ, pool, client, number):
    """Seconds from the start of the command to each moment of one submission."""
    name = f"counts-{number}"
    began = time.monotonic()
    command = subprocess.Popen(
        [STORM, "submit", EXAMPLE, name, "--no-wait"], env=environ, stdout=subprocess.DEVNULL
    )
    storm_id = first(
        lambda: next((one for one in names(client, paths.STORMS) if name in one), None)
    )
    taken = time.monotonic() - began
    first(lambda: storm_id in names(client, paths.ASSIGNMENTS))
    assigned = time.monotonic() - began
    first(lambda: worker_of(storm_id))
    started = time.monotonic() - began
    first(lambda: pool.children(f"/workerbeats/{storm_id}"))
    beaten = time.monotonic() - began
    if command.wait(PULSE_SECS):
        raise SystemExit(f"storm submit ended with {command.returncode}")
    storm(environ, "kill", name, "-w", "0")
    first(lambda: not worker_of(storm_id))
    moments = {
        "taken by Nimbus": taken,
        "assigned": assigned,
        "worker started": started,
        "first pulse": beaten,
    }
    return {f"{moment}, s after the command": round(at, 3) for moment, at in moments.items()}


def first(found, secs=PULSE_SECS):
    """Return the first true value of a function."""
    deadline = time.monotonic() + secs
    while not (value := found()):
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing came of it in {secs} s")
        time.sleep(0.005)
    return value


def names(client, path):
    with contextlib.suppress(NoNodeError):
        return client.get_children(filling.ROOT + path)
    return []


def worker_of(storm_id):
    """Return the process on this machine that is a worker of a topology; None without one."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            line = (folder / "cmdline").read_bytes()
            if b"stormkeeper.worker" in line and storm_id.encode() in line:
                return psutil.Process(int(folder.name))
    return None


def restarts(count):
    rounds = []
    with cluster(supervisor=True) as (environ, _, client):
        for number in range(1, count + 1):
            print(f"restart {number} of {count}", file=sys.stderr)
            rounds.append(restart(environ, client, number))
    return with_medians(rounds)


def restart(environ, client, number):
    """Seconds that the parts of a first start take, and of the next one after the worker's end."""
    name = f"two-queries-{number}"
    output = Path(environ["FOLDER"]) / name
    storm(environ, "submit", TWO_QUERIES, name, "-c", f"output={output}", "--no-wait")
    storm_id = first(
        lambda: next((one for one in names(client, paths.STORMS) if name in one), None)
    )
    checkpoints = Path(environ["FOLDER"]) / "checkpoints"
    worker = first(lambda: worker_of(storm_id))
    began = time.monotonic()
    first_batch = committed(checkpoints, storm_id, {}) - began
    before = first(lambda: more_than(3, commits(checkpoints, storm_id)))
    family = [worker, *worker.children(recursive=True)]
    worker.kill()
    first(lambda: not any(goes_on(one) for one in family))
    ended = time.monotonic()
    first(lambda: worker_of(storm_id))
    began = time.monotonic()
    again = committed(checkpoints, storm_id, before) - began
    storm(environ, "kill", name, "-w", "0")
    first(lambda: not worker_of(storm_id))
    return {
        "first start: both have a batch, s after the process began": round(first_batch, 3),
        "killed: the next process begins, s after the last one's end": round(began - ended, 3),
        "killed: both have a batch, s after the process began": round(again, 3),
        "times of the first start": round(again / first_batch, 3),
    }


def goes_on(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def commits(checkpoints, storm_id):
    """Return the number of the last batch that each of a topology's two queries has committed."""
    found = {}
    for folder in checkpoints.glob(f"{storm_id}/**/commits"):
        numbers = [int(file.name) for file in folder.glob("[0-9]*")]
        if numbers:
            found[folder] = max(numbers)
    return found if len(found) == 2 else {}


def more_than(number, found):
    return found if found and min(found.values()) > number else {}


def committed(checkpoints, storm_id, before):
    """Return when the second of two queries has committed a batch that is not in `before`."""

    def found():
        now = commits(checkpoints, storm_id)
        return now and all(number > before.get(folder, -1) for folder, number in now.items())

    first(found)
    return time.monotonic()


def answers(topologies, seconds, *, with_page=True):
    call = frame(Kind.CALL, "getClusterInfo", 1, b"\x00")
    with cluster(topologies=topologies) as (environ, pool, client):
        seed = json.loads(environ["SEED"])
        found = {
            f"getClusterInfo, {connections} connections": asked(
                environ["NIMBUS"], seed, call, connections, seconds
            )
            for connections in CONNECTIONS
        }
        if with_page:
            page, beat = page_call(environ, pool, client)
            found["getTopologyPageInfo, 1 connection"] = asked(
                environ["NIMBUS"], seed, page, 1, seconds
            )
            found["getTopologyPageInfo, new pulses before each call"] = asked_anew(
                environ["NIMBUS"], seed, page, beat
            )
    return {"topologies": topologies, **found}


def page_call(environ, pool, client):
    """Submit a topology that gets 24 workers, and return its page's call, and what sends pulses."""
    bolts = "".join(
        f"@topology.bolt(lines)\ndef count_{number}(lines):\n    return lines.writeStream\n"
        for number in range(filling.WORKERS)
    )
    file = Path(environ["FOLDER"]) / "code" / "page.py"
    file.parent.mkdir()
    file.write_text(PAGE.format(workers=filling.WORKERS, bolts=bolts))
    ports = list(range(7000, 7000 + filling.WORKERS))
    client.create(filling.ROOT + paths.supervisor("page"), serialize(supervisor("page", ports)))
    storm(environ, "submit", file, "page", "--no-wait")
    storm_id = first(lambda: next((e for e in names(client, paths.STORMS) if "page" in e), None))
    path = filling.ROOT + paths.assignment(storm_id)
    first(lambda: client.exists(path))
    found = deserialize(Assignment, client.get(path)[0])
    stats = next(iter(filling.heartbeat(0, 0).executor_stats.values()))
    if len(found.launches) != filling.WORKERS:
        raise SystemExit(f"{len(found.launches)} workers for the page")

    def beat(uptime_secs):
        for launch in found.launches:
            executors = {
                ExecutorInfo(*tasks): stats
                for tasks, place in found.executor_node_port.items()
                if launch.port in place.port
            }
            beat = ClusterWorkerHeartbeat(storm_id, executors, filling.STARTED, uptime_secs)
            beat.queries = [activity(launch.queries[0])]
            pool.send_pulse(paths.workerbeat(storm_id, launch.node, launch.port), serialize(beat))

    beat(300)
    arguments = Nimbus.methods["getTopologyPageInfo"].arguments(storm_id, ":all-time", False)
    return record_frame(Kind.CALL, "getTopologyPageInfo", 1, arguments), beat


def asked_anew(nimbus_pid, seed, call, beat):
    """Ask a hundred times, each time when all workers have beaten."""
    nimbus, times, used = psutil.Process(int(nimbus_pid)), [], 0.0
    with socket.create_connection(tuple(seed), timeout=START_SECS) as connection:
        stream = connection.makefile("rb")
        for number in range(100):
            beat(301 + number)
            before, began = sum(nimbus.cpu_times()[:2]), time.perf_counter()
            answer(connection, stream, call)
            times.append(time.perf_counter() - began)
            used += sum(nimbus.cpu_times()[:2]) - before
    return {
        "Nimbus's processor time of a call, ms": round(1e3 * used / len(times), 2),
        "median, ms": round(statistics.median(times) * 1e3, 2),
        "p90, ms": round(statistics.quantiles(times, n=10)[8] * 1e3, 2),
    }


def asked(nimbus_pid, seed, call, connections, seconds):
    """Ask over and over on so many connections at once; return calls a second, and their times."""
    times, sizes = [], []
    began = time.perf_counter()
    # Until Nimbus knows the cluster, it answers with a short error.
    first(lambda: answered(seed, call) > LEAST_BYTES)
    first_secs = time.perf_counter() - began
    nimbus = psutil.Process(int(nimbus_pid))
    used, began = sum(nimbus.cpu_times()[:2]), time.monotonic()
    until = began + seconds

    def ask():
        with socket.create_connection(tuple(seed), timeout=START_SECS) as connection:
            stream = connection.makefile("rb")
            while time.monotonic() < until:
                began = time.perf_counter()
                sizes.append(answer(connection, stream, call))
                times.append(time.perf_counter() - began)

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = sum(nimbus.cpu_times()[:2]) - used
    return {
        "first call, s": round(first_secs, 2),
        "calls a second": round(len(times) / (time.monotonic() - began), 1),
        "Nimbus's processor time of a call, ms": round(1e3 * used / len(times), 2),
        "median, ms": round(statistics.median(times) * 1e3, 2),
        "p99, ms": round(statistics.quantiles(times, n=100)[98] * 1e3, 2),
        "bytes of an answer": statistics.median(sizes),
    }


def answered(seed, call):
    with socket.create_connection(tuple(seed), timeout=START_SECS) as connection:
        return answer(connection, connection.makefile("rb"), call)


def answer(connection, stream, call):
    """Ask once; return the bytes of the answer."""
    connection.sendall(call)
    (size,) = struct.unpack(">i", stream.read(4))
    stream.read(size)
    return size


@contextlib.contextmanager
def cluster(*, supervisor=False, topologies=0):
    """ZooKeeper, a Pacemaker and a Nimbus, with what a client needs to know of them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        zookeeper = stack.enter_context(DevZooKeeper(folder / "zookeeper"))
        pacemaker = stack.enter_context(Stormkeeper())
        port = reservations.reserve()
        conf = {
            "storm.zookeeper.servers": [zookeeper.host],
            "storm.zookeeper.port": zookeeper.port,
            "storm.zookeeper.root": filling.ROOT,
            "storm.cluster.state.store": "org.apache.storm.cluster.PaceMakerStateStorageFactory",
            "pacemaker.servers": [f"{HOST}:{pacemaker.port}"],
            "nimbus.seeds": [f"{HOST}:{port}"],
            "nimbus.thrift.port": port,
            "storm.local.hostname": HOST,
            "supervisor.slots.ports": [reservations.reserve()],
            "topology.checkpoint.dir": str(folder / "checkpoints"),
        }
        (folder / "storm.yaml").write_text(yaml.safe_dump(conf))
        environ = os.environ | {
            "STORM_CONF_DIR": str(folder),
            "FOLDER": str(folder),
            "SEED": json.dumps([HOST, port]),
        }
        client = KazooClient(f"{zookeeper.host}:{zookeeper.port}")
        client.start()
        stack.callback(client.close)
        stack.callback(client.stop)
        pool = stack.enter_context(PacemakerPool([Address(HOST, pacemaker.port)]))
        if topologies:
            fill(client, pool, topologies)
        nimbus = stack.enter_context(daemon(environ, folder, "nimbus", "--take-over"))
        environ |= {"NIMBUS": str(nimbus.pid)}
        if supervisor:
            stack.enter_context(daemon(environ, folder, "supervisor"))
        yield environ, pool, client


def fill(client, pool, topologies):
    """Make topologies and supervisors, as Stormkeeper writes them, and the workers' pulses."""
    supervisors = max(filling.SUPERVISORS, topologies * 3_000 // 4_332)
    for top in paths.DIRECTORIES:
        client.ensure_path(filling.ROOT + top)
    for number in range(supervisors):
        name = filling.supervisor_id(number)
        info = supervisor(f"host-{number}", list(range(6700, 6724)), is_busy=True)
        client.create(filling.ROOT + paths.supervisor(name), serialize(info))
    beats = [filling.heartbeat(0, worker) for worker in range(filling.WORKERS)]
    for worker, beat in enumerate(beats):
        beat.queries = [activity(f"query-{worker}")]
    values = [serialize(beat) for beat in beats]
    for number in range(topologies):
        storm_id = filling.storm_id(number)
        assignment = filling.assignment(number, supervisors)
        slots = filling.slots(number, supervisors)
        assignment.launches = [
            WorkerLaunch(
                *(node, port, LaunchClaim(1, worker), [f"query-{worker}"], filling.STARTED, 256.0)
            )
            for worker, (node, port) in enumerate(slots)
        ]
        client.create(filling.ROOT + paths.assignment(storm_id), serialize(assignment))
        client.create(filling.ROOT + paths.storm(storm_id), serialize(filling.storm_base(number)))
        for value, (node, port) in zip(values, slots, strict=True):
            pool.send_pulse(paths.workerbeat(storm_id, node, port), value)


def supervisor(host, ports, *, is_busy=False):
    info = SupervisorInfo(int(time.time()), host, meta=ports, uptime_secs=300)
    info.used_ports = ports if is_busy else []
    info.version = info.stormkeeper = stormkeeper.__version__
    info.resources_map = {"supervisor.memory.capacity.mb": 65_536.0}
    info.slots = {}
    return info


def activity(query):
    return QueryActivity(query, last_batch=7, since_last_ms=100)


@contextlib.contextmanager
def daemon(environ, folder, command, *options):
    """A daemon that has said that it is ready."""
    with (folder / f"{command}.log").open("wb") as log:
        process = subprocess.Popen(
            [STORM, command, "-c", f"storm.local.dir={folder / command}", *options],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        if not process.stdout.readline():
            raise SystemExit((folder / f"{command}.log").read_text())
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=START_SECS)


def storm(environ, *arguments):
    subprocess.run(
        [STORM, *arguments], env=environ, check=True, stdout=subprocess.DEVNULL, timeout=PULSE_SECS
    )


if __name__ == "__main__":
    main()
