"""Measures Pacemakers beside what else keeps values in memory, on this machine.

    python bench/pacemaker_bench.py [--quick] [--cells send-3072*,children] [--rounds 3]

Servers: ours with the compiled engine and with the interpreted one, an echo in C (the limit),
Redis, memcached, and, where STORM_HOME is set, Storm's own. Every round runs every cell on every
server in turn; figures are medians of the rounds. Server and generator have a core each where there
are two.

A full run writes bench/results/pacemaker.json (medians: a list of objects, null for what a server
has not), pacemaker-rounds.json (every round) and pacemaker.md (tables); any other run writes them
into build/bench/.

    op              what
    send, get       closed loop: each answer is followed by the next request
    send-N/s        N pulses a second in all, each at its time; latency counts from then
    children-N      children of a topology of 24 workers, among N stored keys
    memory-*        resident memory: empty, 72,000 x 3 KiB, and these after 5 overwrites each
    read-72000-*    all of 72,000 x 3 KiB read while 24,000 a second are written, with the values
                    (changes) or without (ages): p50_ms is one whole reading, p99_ms the slowest,
                    requests_per_s pulses
    read-72000-ages-quiet   the ages while nobody writes
    send-N/s-during-*   the writers meanwhile
"""

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from pathlib import Path

from pacemaker.figures import Figures

from pacemaker import bars, cells, compiling, report, running, servers

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PARTIAL = compiling.BUILD / "results"


def main():
    options = arguments()
    pace = cells.QUICK if options.quick else cells.FULL
    pace = dataclasses.replace(pace, rounds=options.rounds or pace.rounds)
    chosen = cells.chosen(cells.all_cells(pace), options.cells)
    if not chosen:
        raise SystemExit("no cell has such a label: " + ", ".join(options.cells))
    for name in compiling.PROGRAMS:
        compiling.compiled(name)
    kinds, missing = servers.available(
        [kind for kind in servers.SERVERS + servers.MORE_SERVERS if wanted(kind, options.servers)]
    )
    for line in missing:
        say(f"without {line}")
    names = [kind().name for kind in kinds]
    started = sum(1.0 + kind.burn_in_secs for kind in kinds)
    expected = cells.expected_secs(chosen, names, pace.rounds, started)
    say(
        f"{len(chosen)} cells, {len(kinds)} servers, {rounds_text(pace)}:"
        f" about {clock(expected)}; {cores_text()}"
    )
    rows = measure(chosen, kinds, pace, expected)
    is_full = not (options.quick or options.cells or options.servers) and pace.rounds >= 3
    figures = Figures(rows)
    held = bars.all_bars(figures)
    failed = [bar for bar in held if bar.holds is False]
    text = report.summary(figures, names, held, about(pace))
    write(RESULTS if is_full else PARTIAL, figures, rows, text)
    print(text)
    say(f"{len(failed)} bars fail of {sum(bar.holds is not None for bar in held)} measured")
    sys.exit(1 if failed and options.strict else 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words = {"type": lambda text: text.split(","), "default": []}
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--rounds", type=int, help="3 if it is not --quick")
    parser.add_argument("--cells", **words, help="labels, such as send-3072*,children (* is any)")
    parser.add_argument(
        "--servers", **words, help="names, such as stormkeeper,redis; echo-store only so"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a bar fails")
    return parser.parse_args()


def wanted(kind, names):
    return kind().name in names if names else kind in servers.SERVERS


def measure(chosen, kinds, pace, expected):
    """Run every round; return rows, each with its round."""
    rows, done_secs, spent_secs = [], 0.0, 0.0
    began = time.monotonic()
    for number in range(1, pace.rounds + 1):
        with running.LiveServers() as live:
            for cell in chosen:
                able = [kind for kind in kinds if cell.is_for(kind().name)]
                # Another one begins each round, so that none always comes after the same.
                able = able[number % len(able) :] + able[: number % len(able)] if able else []
                found = []
                for kind in able:
                    new, failure, _ = running.attempt(cell, kind, live, pace)
                    if failure:
                        say(f"  failed: {failure}")
                    found += new
                    done_secs += cell.expected_secs
                    spent_secs = time.monotonic() - began
                rows += [row | {"round": number} for row in found]
                left = (expected - done_secs) * max(1.0, spent_secs / max(done_secs, 1.0))
                where = f"round {number} of {pace.rounds}, {clock(max(left, 0))} left"
                say(f"{where}: {line(cell, found)}")
    return rows


def line(cell, rows):
    """One line on what a cell gave."""
    parts = []
    for row in rows:
        cpu, rss = row["cpu_us"], row["rss_mib"]
        value = f"{cpu:.2f} µs" if cpu is not None else f"{rss} MiB" if rss is not None else "none"
        name = row["server"].replace("stormkeeper-interpreted", "interpreted")
        parts.append(f"{name} {value}")
    return f"{cell.label}: {', '.join(parts)}"


def write(folder, figures, rows, text):
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "pacemaker.json": lines_of_json(figures.medians()),
        "pacemaker-rounds.json": lines_of_json(rows),
        "pacemaker.md": text,
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    say(f"written to {folder.relative_to(ROOT)}/: {', '.join(files)}")


def lines_of_json(rows):
    return "[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n"


def about(pace):
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()};"
        f" {rounds_text(pace)}; {cores_text()}. A bar on a ratio is the median of the rounds'"
        " ratios. What the cells are: bench/pacemaker_bench.py."
    )


def rounds_text(pace):
    return "one round" if pace.rounds == 1 else f"{pace.rounds} rounds"


def cores_text():
    server, generator = servers.cores()
    if server is None:
        return "server and generator share a core: only compare within a line"
    return f"the server on core {min(server)}, the generator on core {min(generator)}"


def clock(secs):
    return f"{int(secs) // 60}:{int(secs) % 60:02d} min"


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
