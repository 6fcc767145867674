"""Measures the Nimbus of a large cluster: its rounds, deaths of supervisors, and its successor.

    python bench/nimbus_bench.py [--shape small|large] [--supervisors 300,1000,3000] [--beat-secs 3]
                                 [--python PATH] [--quick] [--strict]

One real ZooKeeper out of PySpark's jars, which does not wait for the disk (forceSync=no), two real
Pacemakers, and real ``storm nimbus`` processes. The supervisors (24 slots each) and the pulses of
their workers come from one process, `nimbus/fleet.py`; 3,000 of them have 4,332 topologies, 72,000
workers, and 24,000 pulses a second. It stands for other machines, so it runs at a low priority.
Checkpoints are shared, so that workers may move. After each phase ZooKeeper is read: every query is
in one launch on a living supervisor, and nothing that was alive has moved.

    start           the Nimbus begins to lead, without a supervisor, and reads all topologies
    placing all     all supervisors come up while the leader is frozen until its session has ended;
                    from when it leads again to the last assignment
    at rest         only records of supervisors and ages of pulses change; the rounds are read from
                    the Nimbus's metrics, its CPU while nobody reads these
    death of one    a supervisor's node goes, and its workers fall silent; from that moment, and
                    from the end of nimbus.task.timeout.secs after their last pulse, to the last
                    assignment; another tenth has come up before, with free slots
    death of many   as many as a tenth of the supervisors at once
    failover        a second Nimbus stands by, and the leader is killed with -9
    Storm's way     each record and each heartbeat read and decoded once, as in a round of Storm's

Times of assignments are ZooKeeper's. Requests and events are those of the Nimbus's session; bytes
are both ways, by Linux's counters (``ss``). `--python` is the interpreter of another checkout,
whose Nimbus is measured in the same run. A full run (300, 1,000 and 3,000) writes
bench/results/nimbus.json and nimbus.md; any other run writes them into build/bench/.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path

from nimbus import bars, cluster, phases

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PARTIAL = ROOT / "build" / "bench" / "results"
SIZES = (300, 1_000, 3_000)
SHAPES = {"small": (30,), "large": (3_000,)}
OTHER = "other"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--supervisors", type=_numbers, help="numbers, such as 300,1000")
    parser.add_argument("--beat-secs", type=float, default=3.0)
    parser.add_argument("--python", help="the interpreter of another checkout, to compare")
    parser.add_argument("--quick", action="store_true", help="short timeouts, a short rest")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a bar fails")
    options = parser.parse_args()
    # All processes and folders go with a bench that is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sizes = options.supervisors or SHAPES.get(options.shape, SIZES)
    pace = phases.QUICK if options.quick else phases.FULL
    pythons = {bars.OURS: sys.executable}
    if options.python:
        pythons[OTHER] = options.python
    rows = []
    for size in sizes:
        for of, python in pythons.items():
            say(f"{size:,} supervisors, {of}")
            shape = cluster.Shape(size, options.beat_secs, pace.task_secs, pace.session_secs)
            rows.append({"supervisors": size, "of": of, **measured(shape, python, pace)})
    figures = bars.Figures(rows)
    held = bars.all_bars(figures)
    is_full = sizes == SIZES and not options.quick and not options.python
    text = bars.summary(figures, held, about(options, pace))
    write(RESULTS if is_full else PARTIAL, rows, text)
    print(text)
    failed = [bar for bar in held if bar.holds is False]
    say(f"{len(failed)} bars fail of {sum(bar.holds is not None for bar in held)} measured")
    sys.exit(1 if failed and options.strict else 0)


def _numbers(text):
    return tuple(int(number) for number in text.split(","))


def measured(shape, python, pace):
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        figures = phases.run(shape, folder, python, pace, say)
    return {"topologies": shape.topologies, "workers": shape.workers, **figures}


def about(options, pace):
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()};"
        f" ZooKeeper, Pacemakers, Nimbuses and the simulated supervisors share them. A pulse of"
        f" each worker every {options.beat_secs:g} s, nimbus.task.timeout.secs {pace.task_secs:g},"
        f" session timeout {pace.session_secs:g} s. What the phases are: bench/nimbus_bench.py."
    )


def write(folder, rows, text):
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    (folder / "nimbus.json").write_text(f"[\n{lines}\n]\n")
    (folder / "nimbus.md").write_text(text)
    say(f"written to {folder.relative_to(ROOT)}/: nimbus.json, nimbus.md")


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
