"""Runs Pacemakers under workers that come and go, and fails unless memory and descriptors are flat.

    python bench/soak.py [--seconds 600]

Two real daemons, one with each engine, with a TTL of 20 s. On each, four crews of 500 workers beat
every two seconds over 250 connections: one crew in four with 20,000 bytes, the others with 3 KiB,
more or less by up to 512 bytes. Every 7.5 s the oldest crew ends its connections without a word and
another comes, with names of its own. What half of the crews leave is deleted, as when a topology is
killed; the rest expires. Meanwhile a reader follows the changes, and every second three visitors
misbehave: one leaves at once, one sends nonsense, one breaks off in the middle of a frame.

Before the measurement as many paths are deleted as the server remembers deletions of, so that this
is at its bound from the start. Resident memory, open descriptors and stored keys are sampled every
second; after the warm-up none may grow, by its trend over the whole rest, by more than `TOLERANCES`
say. In the end all workers leave: after the TTL no key may be left, and no descriptor.

A run of ten minutes or more writes bench/results/soak.json, a shorter one below build/bench/.
"""

import argparse
import contextlib
import itertools
import json
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from pacemaker.compiling import BUILD, compiled
from pacemaker.servers import HOST, Stormkeeper, StormkeeperInterpreted, UnavailableError
from pacemaker.steadiness import Tolerance, trend

from pacemaker import report, running
from stormkeeper.errors import StormkeeperError
from stormkeeper.pacemaker.client import PacemakerClient

ROOT = Path(__file__).resolve().parents[1]
TTL_SECS = 20
CREWS = 4
CREW_SECS = 30
CREW_WORKERS = 500
CREW_CONNECTIONS = 250
BEAT_SECS = 2
#: More than the server remembers.
DELETED_FIRST = 20_000
#: From the start until the crews are all there, the first of them has expired, and the allocator
#: has what it needs for such a changing load.
WARMUP_SECS = 150
#: After the last worker has left: its pulses' TTL, and time to let them go.
END_SECS = 20
SHORTEST_SECS = 60

#: How much a figure may grow over the run, at most. Memory breathes with what the allocator keeps;
#: keys with the moment at which crews change.
TOLERANCES = {
    "rss_mib": Tolerance(amount=2.0, share=0.03),
    "descriptors": Tolerance(amount=3, share=0.01),
    "keys": Tolerance(amount=50, share=0.05),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="after the warm-up")
    secs = parser.parse_args().seconds
    if secs < SHORTEST_SECS:
        raise SystemExit(f"--seconds {secs:g}: a trend needs {SHORTEST_SECS} at least")
    compiled("load")
    whole = WARMUP_SECS + secs + TTL_SECS + END_SECS
    say(f"{secs:g} s after {WARMUP_SECS} s of warm-up: about {whole / 60:.0f} min")
    with contextlib.ExitStack() as stack:
        soaks = []
        for kind in (Stormkeeper, StormkeeperInterpreted):
            server = kind(**{"pacemaker.pulse.ttl.secs": TTL_SECS})
            try:
                stack.enter_context(server)
            except UnavailableError as error:
                say(f"without {error}")
                continue
            soaks.append(stack.enter_context(Soak(server)))
        if not soaks:
            raise SystemExit(1)
        samples = measure(soaks, secs)
        ends = [soak.leave() for soak in soaks]
    verdicts = [judge(name, found) for name, found in samples.items()]
    failures = [f for soak, end in zip(soaks, ends, strict=True) for f in [*soak.failures, *end]]
    failures += [f"{t.name} grows" for trends in verdicts for t in trends if not t.is_flat]
    keep(secs, samples, verdicts, failures)
    print(table(verdicts))
    for failure in failures:
        print(f"FAILED: {failure}")
    sys.exit(1 if failures else 0)


class Soak:
    """One server, its workers, its reader and its visitors."""

    def __init__(self, server):
        self.server = server
        self.name = server.name
        self.failures = []
        self._crews = []
        self._firsts = itertools.count(CREW_WORKERS, CREW_WORKERS)
        self._finished = 0
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._follow)

    def __enter__(self):
        self.client = PacemakerClient(f"{HOST}:{self.server.port}")
        self._idle_descriptors = self.sample()["descriptors"]
        running.store(self.server, DELETED_FIRST, 64)
        self.client.delete_path("/workerbeats")
        self._reader.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._reader.join()
        for _, crew, _ in self._crews:
            crew.kill()
            crew.communicate()
        self.client.close()

    def sample(self):
        """Return what the process holds now."""
        info = self.client.server_info()
        pid = self.server.pids.split(",")[0]
        kib = Path(f"/proc/{pid}/smaps_rollup").read_text().split("Rss:")[1].split()[0]
        return {
            "rss_mib": int(kib) / 1024,
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208 - names are enough
            "keys": info.keys,
        }

    def turn_over(self, now):
        """Take the crews that have ended away, and bring the next ones; called every second."""
        for crew in [crew for crew in self._crews if crew[1].poll() is not None]:
            self._crews.remove(crew)
            self._finish(crew)
        due = not self._crews or now - self._crews[-1][0] >= CREW_SECS / CREWS
        if due and len(self._crews) < CREWS:
            first = next(self._firsts)
            is_large = first // CREW_WORKERS % CREWS == 0
            process = running.start_load(
                self.server,
                operation="send",
                rate=CREW_WORKERS / BEAT_SECS,
                bytes=20_000 if is_large else 3_072,
                jitter=0 if is_large else 512,
                connections=CREW_CONNECTIONS,
                keys_per_connection=CREW_WORKERS // CREW_CONNECTIONS,
                workers_per_topology=CREW_WORKERS,
                first_key=first,
                warmup=0,
                # A little short, so that the next comes when this one has gone.
                seconds=CREW_SECS - 0.5,
            )
            self._crews.append((now, process, first))

    def misbehave(self):
        """Come as three visitors that no server wants."""
        address = (HOST, self.server.port)
        with contextlib.suppress(OSError):
            socket.create_connection(address, 5).close()
        with contextlib.suppress(OSError), socket.create_connection(address, 5) as visitor:
            visitor.sendall(b"GET / HTTP/1.1\r\n\r\n")
            visitor.recv(100)
        with contextlib.suppress(OSError), socket.create_connection(address, 5) as visitor:
            visitor.sendall(b"\0\0\4\0half of it")
            # Closing resets the connection.
            visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def leave(self):
        """Let all workers end; return what is left behind, in words."""
        deadline = time.monotonic() + CREW_SECS + 30
        for crew in self._crews:
            crew[1].wait(max(1, deadline - time.monotonic()))
            self._finish(crew)
        self._crews.clear()
        self._stop.set()
        self._reader.join()
        deadline = time.monotonic() + TTL_SECS + END_SECS
        while True:
            left = self.sample()
            if left["keys"] == 0 and left["descriptors"] <= self._idle_descriptors:
                return []
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        return [
            f"{self.name}: {left['keys']} keys and {left['descriptors']} descriptors are left,"
            f" of 0 and {self._idle_descriptors}"
        ]

    def _finish(self, crew):
        _, process, first = crew
        try:
            running.finish_load(process, 1)
        except running.MeasurementError as error:
            self.failures.append(f"{self.name}: a crew: {error}")
        self._finished += 1
        if self._finished % 2:
            topology = first // CREW_WORKERS
            self.client.delete_path(f"/workerbeats/wc-{topology}-1434561979")

    def _follow(self):
        after, instance = 0, None
        with PacemakerClient(f"{HOST}:{self.server.port}") as client:
            while not self._stop.wait(1):
                try:
                    page = client.changes("/workerbeats", after, 0, instance)
                except StormkeeperError as error:
                    self.failures.append(f"{self.name}: the reader: {error}")
                    return
                after, instance = page.next, page.instance


def measure(soaks, secs):
    """Sample every second; return the samples after the warm-up, by server."""
    began = time.monotonic()
    samples = {soak.name: [] for soak in soaks}
    said = 0
    for tick in range(int(WARMUP_SECS + secs)):
        time.sleep(max(0, began + tick - time.monotonic()))
        now = time.monotonic() - began
        for soak in soaks:
            soak.turn_over(now)
            soak.misbehave()
            sample = {"at": round(now, 2)} | soak.sample()
            if now >= WARMUP_SECS:
                samples[soak.name].append(sample)
            if now >= said:
                figures = ", ".join(f"{k} {v:,.0f}" for k, v in sample.items() if k != "at")
                say(f"{now:5.0f} s of {WARMUP_SECS + secs:.0f}: {soak.name}: {figures}")
        if now >= said:
            said = now + 15
    return samples


def judge(name, samples):
    times = [sample["at"] for sample in samples]
    return [
        trend(f"{name}: {figure}", times, [s[figure] for s in samples], tolerance)
        for figure, tolerance in TOLERANCES.items()
    ]


def table(verdicts):
    head = ["", "first", "lowest", "highest", "grows by", "may grow by", ""]
    lines = [
        [
            t.name,
            f"{t.first:,.1f}",
            f"{t.lowest:,.1f}",
            f"{t.highest:,.1f}",
            f"{t.growth:+,.2f}",
            f"{t.tolerated:,.1f}",
            "flat" if t.is_flat else "GROWS",
        ]
        for trends in verdicts
        for t in trends
    ]
    return report.table(head, lines)


def keep(secs, samples, verdicts, failures):
    folder = ROOT / "bench" / "results" if secs >= 600 else BUILD / "results"
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "seconds": secs,
        "ttl_secs": TTL_SECS,
        "failures": failures,
        "trends": [vars(t) | {"is_flat": t.is_flat} for trends in verdicts for t in trends],
        # One in ten is enough to draw them.
        "samples": {name: found[::10] for name, found in samples.items()},
    }
    (folder / "soak.json").write_text(json.dumps(found, indent=1) + "\n")
    say(f"written to {(folder / 'soak.json').relative_to(ROOT)}")


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
