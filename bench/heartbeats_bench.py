"""Measures how long it takes to learn who is alive, through the reader that Nimbus has.

    python bench/heartbeats_bench.py [--workers 72000] [--bytes 3072] [--readings 30]
                                      [--results FILE]

The pulses of so many workers lie on one Pacemaker, on three, or on two of three of which the third
is down; all are read without their values, again and again. On one they are also followed: before a
reading all of them are sent again, a third, or none. Writes bench/results/heartbeats.json: the
median, the quickest and the slowest reading, in milliseconds, and the CPU of the reader.
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
#: Which workers beat before a reading that follows them: one of so many; 0: none.
BEATING = {"all changed": 1, "a third changed": 3, "none changed": 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=72_000)
    parser.add_argument("--bytes", type=int, default=3072)
    parser.add_argument("--readings", type=int, default=30)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file to write")
    options = parser.parse_args()
    compiling.compiled("load")
    rows = []
    for place, (servers, down) in PLACES.items():
        rows.append({"pacemakers": place, **measured(options, servers, down)})
        print(json.dumps(rows[-1]), flush=True)
    for row in followed(options):
        rows.append(row)
        print(json.dumps(row), flush=True)
    options.results.write_text(json.dumps(rows, indent=1) + "\n")


def measured(options, count, down):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Stormkeeper()) for _ in range(count)]
        left = servers[: count - down]
        share = options.workers // len(left)
        for number, server in enumerate(left):
            # Each has workers of its own, so that there is one copy of each pulse.
            send(server, options, number * share, share)
        for server in servers[count - down :]:
            server.stop()
        pool = PacemakerPool([Address(HOST, server.port) for server in servers])
        reader = PacemakerHeartbeats(pool)
        stack.callback(reader.close)
        return readings_of(reader, options, down)


def send(server, options, first, count):
    running.load(
        server,
        "--no-fill",
        operation="send",
        bytes=options.bytes,
        connections=running.FILLERS,
        outstanding=16,
        first_key=first,
        keys_per_connection=count // running.FILLERS,
        requests=count // running.FILLERS,
    )


def followed(options):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Stormkeeper())
        send(server, options, 0, options.workers)
        reader = PacemakerHeartbeats(PacemakerPool([Address(HOST, server.port)]))
        stack.callback(reader.close)
        follower = reader.follower()
        follower.refresh()
        for what, one_of in BEATING.items():
            count = options.workers // one_of if one_of else 0

            def beat(count=count):
                if count:
                    send(server, options, 0, count)

            def refresh(count=count):
                changed = follower.refresh().changed
                if len(changed) != count:
                    raise RuntimeError(f"{len(changed)} of {count} changes were read")

            yield {
                "pacemakers": f"one, followed, {what}",
                **figures_of(*measured_readings(options, refresh, beat), options),
            }


def readings_of(reader, options, down):
    def read():
        found = reader.read_all()
        silent = [server for server, one in found.coverage.items() if not one.is_reachable]
        if (len(found.by_path), len(silent)) != (options.workers, down):
            raise RuntimeError(f"{len(found.by_path)} were read; without an answer: {silent}")

    return figures_of(*measured_readings(options, read), options)


def measured_readings(options, read, prepare=lambda: None):
    secs, cpu = [], []
    for number in range(WARM_UP + options.readings):
        prepare()
        began, used = time.perf_counter(), time.process_time()
        read()
        if number >= WARM_UP:
            secs.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
    return secs, cpu


def figures_of(secs, cpu, options):
    figures = {"median": statistics.median(secs), "least": min(secs), "most": max(secs)}
    figures["cpu"] = statistics.median(cpu)
    return {
        "workers": options.workers,
        "bytes": options.bytes,
        **{f"{name}_ms": round(1000 * value, 1) for name, value in figures.items()},
    }


if __name__ == "__main__":
    main()
