"""Measures the cluster state on ZooKeeper beside kazoo's own calls, on this machine.

    python bench/state_bench.py [--quick] [--rounds 3] [--cells get] [--strict]

One real ZooKeeper out of PySpark's jars, which does not wait for the disk (forceSync=no), has 300
topologies of 24 workers: an assignment, a base and 24 heartbeats each, gzip, as Storm writes them.
Both sides use one connection each, from one process, in turn; another begins each time. Figures are
medians of the rounds, and ratios medians of the rounds' ratios.

    cell                    what
    assignments-and-bases   all of both: kazoo lists both and reads all 600 at once; ours reads
                            records (ours-bytes: without decoding them)
    records-*               the same from the view in memory: its first reading, of all records of
                            the cluster, and a later one
    heartbeats-24           a topology's; kazoo as above, ours decoded, from ZooKeeper and from a
                            Pacemaker
    get, set                500 of 1 KiB, one after the other
    get-pipelined           2,000 of 1 KiB at once
    children-pipelined      the names below 300 nodes at once
    transaction-100         20 transactions that set 100 nodes each
    watches-10000-*         10,000 watches left, all at once; then, from when another client is told
                            to set all nodes, until the last callback
    decode-*                decoding alone
    far-*                   through a network that takes 100 ms each way: requests, and how many
                            times that was waited for

A full run writes bench/results/state.json (every round) and state.md; any other run writes them
into build/bench/.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from kazoo.client import KazooClient
from pacemaker.servers import HOST, Stormkeeper
from state.bars import Figures, all_bars
from state.delaying import SlowProxy

from state import cells, filling, report_lines
from stormkeeper import conf, paths
from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.state import backends
from stormkeeper.state.storm import cluster

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PARTIAL = ROOT / "build" / "bench" / "results"
ROUNDS = 3
REPEATS = 5
PACEMAKER_STORE = "org.apache.storm.cluster.PaceMakerStateStorageFactory"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is kept")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} if it is not --quick")
    parser.add_argument("--cells", default="", help="only those with this in their name")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a bar fails")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    repeats = 1 if options.quick else REPEATS
    rows = measure(rounds, repeats, options.cells)
    figures = Figures(rows)
    held = all_bars(figures)
    text = report_lines.summary(figures, held, about(rounds))
    is_full = not options.quick and not options.cells and rounds >= ROUNDS
    write(RESULTS if is_full else PARTIAL, rows, text)
    print(text)
    failed = [bar for bar in held if bar.holds is False]
    say(f"{len(failed)} bars fail of {sum(bar.holds is not None for bar in held)} measured")
    sys.exit(1 if failed and options.strict else 0)


def measure(rounds, repeats, wanted):
    rows = []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        server = stack.enter_context(DevZooKeeper(folder))
        pacemaker = stack.enter_context(Stormkeeper())
        client = stack.enter_context(kazoo_client(server))
        say(f"{filling.fill(client):,} nodes")
        fill_pacemaker(server, pacemaker)
        for number in range(1, rounds + 1):
            found = one_round(server, pacemaker, number, repeats, wanted)
            rows += [{"round": number} | row for row in found]
            say(f"round {number} of {rounds}: {line(found)}")
    return rows


def one_round(server, pacemaker, number, repeats, wanted):
    with contextlib.ExitStack() as stack:

        def opened(port=server.port, **more):
            storm = cluster.connect(configured(port, **more))
            stack.callback(storm.disconnect)
            return storm

        def far(port):
            return stack.enter_context(SlowProxy(HOST, port, cells.DELAY_SECS))

        reads = opened()
        world = cells.World(
            kazoo=stack.enter_context(kazoo_client(server)),
            ours=reads.state,
            reads=reads,
            pacemaker=opened(pacemaker_port=pacemaker.port),
            setter=stack.enter_context(other_client(server)),
        )
        slow_zookeeper, slow_pacemaker = far(server.port), far(pacemaker.port)
        rows = []
        for cell in cells.cells(world, repeats):
            if wanted in cell.name:
                rows += cells.measure(cell, number)
        if wanted in "watches":
            # No typed reads here: they would hear of every event, too.
            ours = backends.connect(configured(server.port))
            stack.callback(ours.close)
            rows += cells.watches(dataclasses.replace(world, ours=ours), number, repeats)
        if wanted in "records":
            rows += cells.view(opened(), repeats)
        if wanted in "decode":
            rows += cells.decoding(world, repeats)
        if wanted in "far":
            rows += cells.round_trips(
                opened(slow_zookeeper.port),
                opened(pacemaker_port=slow_pacemaker.port),
                world.ids,
                lambda: slow_zookeeper.requests + slow_pacemaker.requests,
            )
        return rows


@contextlib.contextmanager
def kazoo_client(server):
    client = KazooClient(hosts=str(server.address), timeout=60)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextlib.contextmanager
def other_client(server):
    """Start a process that sets all watched nodes; yield what has it do so, and returns a wait."""
    program = Path(__file__).with_name("state") / "setter.py"
    folder = f"{filling.ROOT}/watched"
    process = subprocess.Popen(
        [sys.executable, program, str(server.address), folder, str(filling.WATCHED)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def expect(word):
        said = process.stdout.readline().strip()
        if said != word:
            raise RuntimeError(f"the other client said {said!r} instead of {word!r}")

    def set_all():
        process.stdin.write("1\n")
        process.stdin.flush()
        return lambda: expect("done")

    try:
        expect("ready")
        yield set_all
    finally:
        process.kill()
        process.communicate()


def configured(port, pacemaker_port=None):
    overrides = {
        "storm.zookeeper.servers": [HOST],
        "storm.zookeeper.port": port,
        "storm.zookeeper.root": filling.ROOT,
        "storm.zookeeper.session.timeout": 60_000,
    }
    if pacemaker_port:
        overrides |= {
            "storm.cluster.state.store": PACEMAKER_STORE,
            "pacemaker.servers": [f"{HOST}:{pacemaker_port}"],
        }
    settings = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    return conf.load(files=[], overrides=settings)


def fill_pacemaker(server, pacemaker):
    """Give a Pacemaker the heartbeats of all topologies too."""
    storm = cluster.connect(configured(server.port, pacemaker.port))
    try:
        for path, data in filling.nodes():
            if path.count("/") == 3 and path.startswith(paths.WORKERBEATS):
                storm.heartbeats.beat(path, data)
    finally:
        storm.disconnect()


def write(folder, rows, text):
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    (folder / "state.json").write_text(f"[\n{lines}\n]\n")
    (folder / "state.md").write_text(text)
    say(f"written to {folder.relative_to(ROOT)}/: state.json, state.md")


def about(rounds):
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()},"
        f" rounds: {rounds}; ZooKeeper, and both clients in turn, on any core. What the cells are:"
        " bench/state_bench.py."
    )


def line(rows):
    return ", ".join(f"{row['cell']} {row['of']} {row['secs'] * 1000:.1f} ms" for row in rows)


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
