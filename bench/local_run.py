"""Measures a cluster on one machine: how soon it beats, what each process takes.

    python bench/local_run.py [--rounds 3] [--seconds 90]

Runs `storm local examples/word_count.py`, prints a table of medians, and writes them, with every
round, to bench/results/local.json.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
STORM = Path(sys.executable).with_name("storm")
RESULTS = ROOT / "bench" / "results" / "local.json"

#: What a cluster takes to stop, roughly.
STOP_SECS = 15

#: What is timed: from the start of the command to the first line that matches.
MOMENTS = {
    "ZooKeeper serves": r"^zookeeper listens on",
    "both Pacemakers serve": r"^pacemaker 2 listens on",
    "first pulse stored": r"^worker \S+ beats",
    "first words counted": r"^  \| batch 0:",
    "first batch of the pipeline in the tables": r"^pipeline writes",
}
PROCESS = re.compile(r"^(?P<name>[a-z]+(?: \d)?) .*\(process (?P<pid>\d+)\)$")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    expected = options.rounds * (options.seconds + STOP_SECS) / 60
    print(f"{options.rounds} rounds of a local cluster: about {expected:.0f} min", file=sys.stderr)
    rounds = []
    for number in range(1, options.rounds + 1):
        print(f"round {number} of {options.rounds}", file=sys.stderr)
        rounds.append(one_round(options.seconds))
    medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(
        json.dumps(
            {
                "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
                f"{platform.python_version()}",
                "medians": medians,
                "rounds": rounds,
            },
            indent=2,
        )
        + "\n"
    )
    for name, value in medians.items():
        print(f"| {name} | {value:,.2f} |")


def one_round(seconds):
    began = time.monotonic()
    process = subprocess.Popen(
        [STORM, "local", ROOT / "examples" / "word_count.py", "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = []

    def read():
        for line in process.stdout:
            lines.append((time.monotonic() - began, line.rstrip()))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_for(lines, MOMENTS["first pulse stored"], process)
        wait_for(lines, MOMENTS["first batch of the pipeline in the tables"], process)
        time.sleep(10)
        figures = processes(lines, watched_secs=20)
    finally:
        process.wait(timeout=seconds + 180)
        reader.join()
    moments = {
        f"{name}, s after the start": next(at for at, line in lines if re.search(pattern, line))
        for name, pattern in MOMENTS.items()
    }
    return {name: round(value, 3) for name, value in (moments | figures).items()}


def processes(lines, watched_secs):
    """Memory now, and CPU over the next seconds, of every process of the run."""
    found = {}
    for _, line in lines:
        if match := PROCESS.match(line):
            found[match["name"]] = psutil.Process(int(match["pid"]))
    beating = next(line for _, line in reversed(lines) if " s ago at " in line)
    used = re.search(r"s ago at (\S+)", beating).group(1)
    used_name = next(
        PROCESS.match(line)["name"] for _, line in lines if f"listens on {used} " in line
    )
    names = {
        name: f"{name.split()[0]} {'that is beaten to' if name == used_name else 'at rest'}"
        if name.startswith("pacemaker")
        else name
        for name in found
    }
    before = {name: cpu(process) for name, process in found.items()}
    time.sleep(watched_secs)
    figures = {}
    for name, process in found.items():
        figures[f"{names[name]}: memory, MiB"] = pss(process)
    for name, process in found.items():
        spent = cpu(process) - before[name]
        figures[f"{names[name]}: CPU, % of a core"] = 100 * spent / watched_secs
    return figures


def over_family(process, figure):
    """Sum a figure over a process and all that it started; some of those live for an instant."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += figure(member)
    return total


def pss(process):
    return over_family(process, lambda member: member.memory_full_info().pss) / 2**20


def cpu(process):
    # With the children that have ended.
    return over_family(process, lambda member: sum(member.cpu_times()[:4]))


def wait_for(lines, pattern, process, secs=180):
    deadline = time.monotonic() + secs
    while not any(re.search(pattern, line) for _, line in list(lines)):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"no {pattern!r} in:\n" + "\n".join(line for _, line in lines))
        time.sleep(0.05)


if __name__ == "__main__":
    main()
