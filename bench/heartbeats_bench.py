"""Measures how long it takes to learn who is alive, through the reader that Nimbus has.

    python bench/heartbeats_bench.py [--workers 72000] [--bytes 3072] [--readings 30]

The pulses of so many workers lie on one Pacemaker, on three, or on two of three of which the third
is down; all are read without their values, again and again. Writes bench/results/heartbeats.json:
the median, the quickest and the slowest reading, in milliseconds, and the CPU of the reader.
"""

import argparse
import contextlib
import json
import statistics
import time
from pathlib import Path

from pacemaker.servers import HOST, Stormkeeper

from pacemaker import compiling, running
from stormkeeper.conf import Address
from stormkeeper.heartbeats.stores import PacemakerHeartbeats
from stormkeeper.pacemaker.client.pool import PacemakerPool

RESULTS = Path(__file__).resolve().parent / "results" / "heartbeats.json"
#: What is read: how many Pacemakers there are, and how many of them are down.
PLACES = {"one": (1, 0), "three": (3, 0), "three, one down": (3, 1)}
WARM_UP = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=72_000)
    parser.add_argument("--bytes", type=int, default=3072)
    parser.add_argument("--readings", type=int, default=30)
    options = parser.parse_args()
    compiling.compiled("load")
    rows = []
    for place, (servers, down) in PLACES.items():
        rows.append({"pacemakers": place, **measured(options, servers, down)})
        print(json.dumps(rows[-1]), flush=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def measured(options, count, down):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Stormkeeper()) for _ in range(count)]
        left = servers[: count - down]
        share = options.workers // len(left)
        for number, server in enumerate(left):
            # Each has workers of its own, so that there is one copy of each pulse.
            running.load(
                server,
                "--no-fill",
                operation="send",
                bytes=options.bytes,
                connections=running.FILLERS,
                outstanding=16,
                first_key=number * share,
                keys_per_connection=share // running.FILLERS,
                requests=share,
            )
        for server in servers[count - down :]:
            server.stop()
        pool = PacemakerPool([Address(HOST, server.port) for server in servers])
        reader = PacemakerHeartbeats(pool)
        stack.callback(reader.close)
        return readings_of(reader, options, down)


def readings_of(reader, options, down):
    secs, cpu = [], []
    for number in range(WARM_UP + options.readings):
        began, used = time.perf_counter(), time.process_time()
        found = reader.read_all()
        if number >= WARM_UP:
            secs.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
        if (len(found.by_path), len(found.missing)) != (options.workers, down):
            raise RuntimeError(f"{len(found.by_path)} were read; missing: {found.missing}")
    figures = {"median": statistics.median(secs), "least": min(secs), "most": max(secs)}
    figures["cpu"] = statistics.median(cpu)
    return {
        "workers": options.workers,
        "bytes": options.bytes,
        **{f"{name}_ms": round(1000 * value, 1) for name, value in figures.items()},
    }


if __name__ == "__main__":
    main()
