"""Measures a cluster on one machine: how soon it counts, what each process takes, how it is killed.

    python bench/local_run.py [--rounds 3]

Runs, in turns, `storm local examples/word_count.py` and the same query over the same files in plain
PySpark; prints a table of medians, and writes them, with every round, to bench/results/local.json.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
STORM = Path(sys.executable).with_name("storm")
EXAMPLE = ROOT / "examples" / "word_count.py"
RESULTS = ROOT / "bench" / "results" / "local.json"

#: What a round takes on a quiet machine, roughly.
ROUND_SECS = 120

#: The query without us: as Spark's defaults have it, and with one of ours, which spares most tasks.
PLAIN = {
    "plain PySpark": [],
    "plain PySpark, a shuffle partition per core": [
        f"spark.sql.shuffle.partitions={os.cpu_count()}"
    ],
}
FIRST_WORDS = "first words counted"

#: What is timed: from the start of the command to the first line that matches.
MOMENTS = {
    "ZooKeeper serves": r"^zookeeper listens on",
    "both Pacemakers serve": r"^pacemaker 2 listens on",
    "first pulse stored": r"^worker \S+ beats",
    FIRST_WORDS: r"^  \| batch 0:",
    "first batch of the pipeline in the tables": r"^pipeline writes",
}
PROCESS = re.compile(r"^(?P<name>[a-z]+(?: \d)?) .*\(process (?P<pid>\d+)\)$")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--kills", action="store_true", help="only kill it, as soon as there are words"
    )
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    if options.kills:
        kills(options.rounds)
        return
    expected = options.rounds * ROUND_SECS / 60
    print(f"{options.rounds} rounds of a local cluster: about {expected:.0f} min", file=sys.stderr)
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        library = runpy.run_path(str(EXAMPLE))["library"](folder)
        for number in range(1, options.rounds + 1):
            print(f"round {number} of {options.rounds}", file=sys.stderr)
            alone = {
                f"{name}: first words, s after the start": plain(library, settings)
                for name, settings in PLAIN.items()
            }
            rounds.append(one_round() | alone)
    medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    ours = medians[f"{FIRST_WORDS}, s after the start"]
    for name in PLAIN:
        medians[f"first words, times {name}"] = round(
            ours / medians[f"{name}: first words, s after the start"], 2
        )
    record(medians=medians, rounds=rounds)
    for name, value in medians.items():
        print(f"| {name} | {value:,.2f} |")


def record(**figures):
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    RESULTS.write_text(json.dumps(before | {"machine": machine} | figures, indent=2) + "\n")


def kills(rounds):
    figures = []
    for number in range(1, rounds + 1):
        print(f"kill {number} of {rounds}", file=sys.stderr)
        with cluster() as (process, lines, folder):
            wait_for(lines, MOMENTS[FIRST_WORDS], process)
            time.sleep(5)
            figures.append(
                {
                    "until nothing is left, s": round(killed(process, folder), 3),
                    "load over the last minute": round(os.getloadavg()[0], 1),
                }
            )
    record(kills=figures)
    print(figures)


def plain(folder, settings):
    """Seconds from the start of the plain script to its first words."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, ROOT / "bench" / "plain_word_count.py", folder, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            if not process.stdout.readline().startswith("batch 0:"):
                raise SystemExit("the plain script counted nothing")
            return round(time.monotonic() - began, 3)
        finally:
            process.communicate(timeout=180)


@contextlib.contextmanager
def cluster():
    """A cluster that counts words: its process, its lines with the time of each, its folder."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        process = subprocess.Popen(
            [STORM, "local", EXAMPLE],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": folder},
        )
        lines = []

        def read():
            for line in process.stdout:
                lines.append((time.monotonic() - began, line.rstrip()))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield process, lines, Path(folder)
        finally:
            process.kill()
            process.wait()
            reader.join()


def one_round():
    with cluster() as (process, lines, folder):
        wait_for(lines, MOMENTS["first batch of the pipeline in the tables"], process)
        time.sleep(10)
        figures = processes(lines, watched_secs=20)
        figures["killed: until nothing is left, s"] = killed(process, folder)
    moments = {
        f"{name}, s after the start": next(at for at, line in lines if re.search(pattern, line))
        for name, pattern in MOMENTS.items()
    }
    return {name: round(value, 3) for name, value in (moments | figures).items()}


def killed(process, folder, secs=60):
    """Kill `storm local` itself; return after how long its children and its folder are gone."""
    family = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(alive(member) for member in family) or any(folder.iterdir()):
        if time.monotonic() - began > secs:
            raise SystemExit(f"{secs} s after the kill something is left")
        time.sleep(0.02)
    return time.monotonic() - began


def alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


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
