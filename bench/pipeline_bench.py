"""Measures the heartbeat pipeline with Pacemakers and a simulated cluster, all on this machine.

    python bench/pipeline_bench.py [SHAPE ...] [--minutes 1] [--pacemakers 2]

Shapes, in the order in which they are run; without one, `small`:

- small: 277 nodes with 24 workers each, 400 topologies; troubles are planted
- large: the same with 100 large topologies
- huge: the same with one, whose heartbeats are 29 KB
- fleet: 72,000 workers on 3,000 nodes, statistics every 60 s
- rates: 2,000, 4,000 and 8,000 pulses a second, each decoded; rates-2000 and so on for one
- quick: `small` with a trigger of 500 ms

A run starts Pacemakers, `storm pipeline` and `storm simulate`, lets them settle, and then counts
for the given time, on the loopback alone: processor time and memory of each with all that it
started, pulses served and missed, and the time from the receipt of a pulse until the manifest with
its row is in its place. In the end the tables are compared with the simulation's truth. All
processes are ended, also by Ctrl-C.

It adds to bench/results/pipeline.json, with less than two minutes to one below build/bench/, and
prints it as a table. A run of ten minutes and more stands there beside a shorter one of its shape,
and it is seen, too, whether lags and memory grow with time. It exits with 1 if a promise is not
kept, or a table not true.
"""

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from pacemaker.compiling import BUILD

from pacemaker import report
from pipeline import running, shapes

ROOT = Path(__file__).resolve().parents[1]
#: Runs of so many minutes are kept among the results.
LONG_MINUTES = 2.0
ALL = (*shapes.SHAPES, "rates")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join((*ALL, "all")))
    parser.add_argument("--minutes", type=float, default=1.0, help="of each run, once settled")
    parser.add_argument("--settle", type=float, default=15.0, metavar="SECONDS")
    parser.add_argument("--pacemakers", type=int, default=2)
    parser.add_argument("--period", type=float, metavar="SECONDS", help="of each worker")
    parser.add_argument("--nodes", type=int, help="in place of the shape's")
    parser.add_argument("--trigger", type=float, metavar="SECONDS", help="between looks")
    parser.add_argument("--statistics", type=float, metavar="SECONDS", help="between readings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-c", dest="conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--keep", metavar="FOLDER", help="keep tables and truth in there")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(f"ended by {signal.Signals(number).name}"))
    runs = []
    for shape in wanted(options):
        conf = dict(setting.split("=", 1) for setting in options.conf)
        found = running.run(
            shape,
            60 * options.minutes,
            pacemakers=options.pacemakers,
            settle_secs=options.settle,
            conf=conf,
            seed=options.seed,
            folder=options.keep,
        )
        runs.append({"shape": shape.name, **about(options), **found})
        keep(runs[-1:], options.minutes)
    failures = [f"{one['shape']}: {failure}" for one in runs for failure in one["failures"]]
    failures += not_linear(runs)
    print(table(runs))
    for failure in failures:
        print(f"FAILED: {failure}")
    sys.exit(1 if failures else 0)


def wanted(options):
    """Return the shapes that are asked for, as the options change them."""
    names = ALL if options.shapes == ["all"] else options.shapes or ["small"]
    known = {shape.name: [shape] for shape in (*shapes.SHAPES.values(), *shapes.of_rates())}
    known["rates"] = shapes.of_rates()
    if unknown := set(names) - known.keys():
        raise SystemExit(f"there is no shape {', '.join(unknown)}; these are: {', '.join(known)}")
    found = [shape for name in names for shape in known[name]]
    given = {
        "period_secs": options.period,
        "nodes": options.nodes,
        "trigger_secs": options.trigger,
        "statistics_secs": options.statistics,
    }
    given = {name: value for name, value in given.items() if value is not None}
    return [dataclasses.replace(shape, **given) for shape in found]


def about(options):
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.python_version()}",
        "pacemakers": options.pacemakers,
    }


def not_linear(runs):
    """Return what is to be said if the most pulses cost too much more than the fewest."""
    spent = {one["shape"]: one["CPU, %"]["pipeline"] for one in runs}
    least, most = (spent.get(f"rates-{rate}") for rate in (shapes.RATES[0], shapes.RATES[-1]))
    if least is None or most is None or most <= shapes.LINEAR * least:
        return []
    return [f"rates: {most / least:.1f} times the CPU, promised at most {shapes.LINEAR:g}"]


def keep(runs, minutes):
    """Put runs in the place of older ones of their shapes, which were long as well, or not."""
    folder = ROOT / "bench" / "results" if minutes >= LONG_MINUTES else BUILD / "results"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pipeline.json"
    older = json.loads(file.read_text()) if file.exists() else []
    kinds = set(map(kind, runs))
    found = [one for one in older if kind(one) not in kinds] + runs
    file.write_text(json.dumps(found, indent=1) + "\n")
    running.say(f"written to {file.relative_to(ROOT)}")


def kind(one):
    return one["shape"], one["seconds"] >= running.LONG_SECS


def table(runs):
    head = ["", *map(title, runs)]
    lines = [
        ("workers · topologies", lambda r: f"{r['workers']:,} · {r['topologies']:,}"),
        ("pulses/s", lambda r: f"{r['pulses/s']:,.0f}"),
        ("bytes of a pulse", lambda r: f"{r['bytes of a pulse']:,}"),
        ("not taken · not sent", lambda r: f"{r['missed']:,} · {r['left out']:,}"),
        ("trigger · statistics, s", lambda r: f"{r['trigger_secs']:g} · {r['statistics_secs']:g}"),
        ("CPU of a Pacemaker, %", lambda r: f"{busiest(r['CPU, %']):.1f}"),
        ("CPU of the simulation, %", lambda r: f"{r['CPU, %']['simulation']:.1f}"),
        ("CPU of the pipeline, %", lambda r: f"{r['CPU, %']['pipeline']:.1f}"),
        ("CPU of all else, %", lambda r: f"{r['CPU, %']['all else']:.1f}"),
        ("MiB of a Pacemaker", lambda r: f"{largest(r['PSS, MiB']):,}"),
        ("MiB of the simulation", lambda r: f"{r['PSS, MiB']['simulation']['max']:,}"),
        ("MiB of the pipeline", lambda r: f"{r['PSS, MiB']['pipeline']['max']:,}"),
        ("liveness: lag p50 · p99, s", lambda r: lags(r["liveness"])),
        ("statistics: lag p50 · p99, s", lambda r: lags(r["statistics"])),
        ("statistics: pulses/s", lambda r: f"{r['statistics']['new pulses/s']:,.0f}"),
        ("statistics: overwritten", lambda r: f"{r['statistics'].get('overwritten unread', 0):,}"),
        ("rules tried · broken", rules),
    ]
    return report.table(head, [[name, *map(of, runs)] for name, of in lines])


def title(one):
    minutes = f", {one['seconds'] / 60:g} min" if one["seconds"] >= running.LONG_SECS else ""
    return f"{one['shape']}{minutes}"


def busiest(shares):
    return max(share for name, share in shares.items() if name.startswith("pacemaker"))


def largest(memory):
    return max(of["max"] for name, of in memory.items() if name.startswith("pacemaker"))


def lags(found):
    if "lag p50, s" not in found:
        return report.NOT_MEASURED
    return f"{found['lag p50, s']:.2f} · {found['lag p99, s']:.2f}"


def rules(one):
    tried, broken = one["truth"]["tried"], one["truth"]["broken"]
    return f"{sum(tried.values()):,} · {sum(broken.values()):,}"


if __name__ == "__main__":
    main()
