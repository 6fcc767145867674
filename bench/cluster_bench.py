"""Measures a cluster: how soon a topology runs that is submitted, and how fast its Nimbus answers.

    python bench/cluster_bench.py [--rounds 5] [--topologies 400] [--seconds 10]

Real daemons on this machine, idle but for what is measured.

- Submitting: from the start of `storm submit` until the worker's first pulse is in the Pacemaker,
  with the moments in between; and in turn a bare PySpark session's start, which is a part of it.
- Answers: `getClusterInfo` of a cluster with 400 topologies of 24 workers each, asked by one
  connection, and by eight at once. The answers are counted and not decoded.

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

import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from pacemaker.servers import HOST, Stormkeeper

from state import filling
from stormkeeper import paths
from stormkeeper.conf import Address
from stormkeeper.local import ports
from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.rpc.messages import Kind, frame
from stormkeeper.thrift.serialization import serialize

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "cluster.json"
STORM = Path(sys.executable).with_name("storm")
EXAMPLE = ROOT / "examples" / "word_count.py"
START_SECS = 60
#: A topology's first pulse comes when Spark has started.
PULSE_SECS = 180
CONNECTIONS = (1, 8)

BARE = """
from pyspark.sql import SparkSession
SparkSession.builder.master("local[2]").getOrCreate()
print("up", flush=True)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--topologies", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    figures = {
        "machine": machine,
        "submit": submissions(options.rounds),
        "getClusterInfo": answers(options.topologies, options.seconds),
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
    first(lambda: has_worker(storm_id))
    started = time.monotonic() - began
    first(lambda: pool.children(f"/workerbeats/{storm_id}"))
    beaten = time.monotonic() - began
    if command.wait(PULSE_SECS):
        raise SystemExit(f"storm submit ended with {command.returncode}")
    storm(environ, "kill", name, "-w", "0")
    first(lambda: not has_worker(storm_id))
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


def has_worker(storm_id):
    """Whether a process on this machine is a worker of a topology."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if b"stormkeeper.worker" in line and storm_id.encode() in line:
                return True
    return False


def answers(topologies, seconds):
    with cluster(topologies=topologies) as (environ, _, __):
        seed = json.loads(environ["SEED"])
        found = {}
        for connections in CONNECTIONS:
            found[f"{connections} connections"] = asked(seed, connections, seconds)
    return {"topologies": topologies, **found}


def asked(seed, connections, seconds):
    """Ask over and over on so many connections at once; return calls a second, and their times."""
    call = frame(Kind.CALL, "getClusterInfo", 1, b"\x00")
    times, sizes = [], []
    until = time.monotonic() + seconds

    def ask():
        with socket.create_connection(tuple(seed), timeout=START_SECS) as connection:
            stream = connection.makefile("rb")
            while time.monotonic() < until:
                began = time.perf_counter()
                connection.sendall(call)
                (size,) = struct.unpack(">i", stream.read(4))
                stream.read(size)
                times.append(time.perf_counter() - began)
                sizes.append(size)

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "calls a second": round(len(times) / seconds, 1),
        "median, ms": round(statistics.median(times) * 1e3, 2),
        "p99, ms": round(statistics.quantiles(times, n=100)[98] * 1e3, 2),
        "bytes of an answer": statistics.median(sizes),
    }


@contextlib.contextmanager
def cluster(*, supervisor=False, topologies=0):
    """ZooKeeper, a Pacemaker and a Nimbus, with what a client needs to know of them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        zookeeper = stack.enter_context(DevZooKeeper(folder / "zookeeper"))
        pacemaker = stack.enter_context(Stormkeeper())
        port = ports.reserve()
        conf = {
            "storm.zookeeper.servers": [zookeeper.host],
            "storm.zookeeper.port": zookeeper.port,
            "storm.zookeeper.root": filling.ROOT,
            "storm.cluster.state.store": "org.apache.storm.cluster.PaceMakerStateStorageFactory",
            "pacemaker.servers": [f"{HOST}:{pacemaker.port}"],
            "nimbus.seeds": [f"{HOST}:{port}"],
            "nimbus.thrift.port": port,
            "storm.local.hostname": HOST,
            "supervisor.slots.ports": [ports.reserve()],
        }
        (folder / "storm.yaml").write_text(yaml.safe_dump(conf))
        environ = os.environ | {"STORM_CONF_DIR": str(folder), "SEED": json.dumps([HOST, port])}
        client = KazooClient(f"{zookeeper.host}:{zookeeper.port}")
        client.start()
        stack.callback(client.close)
        stack.callback(client.stop)
        pool = stack.enter_context(PacemakerPool([Address(HOST, pacemaker.port)]))
        if topologies:
            fill(client, pool, topologies)
        stack.enter_context(daemon(environ, folder, "nimbus", "--take-over"))
        if supervisor:
            stack.enter_context(daemon(environ, folder, "supervisor"))
        yield environ, pool, client


def fill(client, pool, topologies):
    """Make so many topologies, as Storm's Nimbus writes them, and their workers' pulses."""
    for top in paths.DIRECTORIES:
        client.ensure_path(filling.ROOT + top)
    for number in range(topologies):
        storm_id = filling.storm_id(number)
        client.create(
            filling.ROOT + paths.assignment(storm_id), serialize(filling.assignment(number))
        )
        client.create(filling.ROOT + paths.storm(storm_id), serialize(filling.storm_base(number)))
        for worker, (node, port) in enumerate(filling.slots(number)):
            beat = serialize(filling.heartbeat(number, worker))
            pool.send_pulse(paths.workerbeat(storm_id, node, port), beat)


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
