"""Calculates what the heartbeats of a cluster take, from what was measured on this machine.

    python bench/cluster_size.py [--nodes 300,3000,6000,30000] [--beat-secs 3] ...

Takes the measured figures from bench/results/pacemaker.json (of the compiled engine; `make bench`
writes it) and the rest from `pacemaker.sizing.Assumptions`, each of which is an option here.
"""

import argparse
import dataclasses
import json
from pathlib import Path

from pacemaker.sizing import Assumptions, size

from pacemaker import cells, report

RESULTS = Path(__file__).resolve().parent / "results" / "pacemaker.json"
SERVER = "stormkeeper"
MEASURED = ("cpu_secs_per_pulse", "memory_per_payload", "memory_empty_mib", "changes_per_sec")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", default="300,3000,6000,30000")
    for field in dataclasses.fields(Assumptions):
        parser.add_argument("--" + field.name.replace("_", "-"), type=float)
    options = vars(parser.parse_args())
    nodes = [int(count) for count in options.pop("nodes").split(",")]
    given = {name: value for name, value in options.items() if value is not None}
    if not set(MEASURED) <= given.keys():
        given = measured() | given
    assumed = Assumptions(**given)
    print(assumptions_table(assumed))
    print()
    print(sizes_table([size(count, assumed) for count in nodes]))


def measured():
    """Return the measured assumptions.

    Raises
    ------
    SystemExit
        They were not measured yet.
    """
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    found = {row["op"]: row for row in rows if row["server"] == SERVER}
    paced = f"send-{cells.RATES[-1]}/s"
    needed = (paced, "memory-empty", "memory-overwritten", "read-72000-changes")
    missing = [op for op in needed if op not in found]
    if missing:
        raise SystemExit(
            f"{RESULTS.name} has no {', '.join(missing)} of {SERVER}: run make bench, or give "
            + ", ".join("--" + name.replace("_", "-") for name in MEASURED)
        )
    payload_mib = cells.MEMORY_KEYS * 3_072 / 2**20
    empty_mib = found["memory-empty"]["rss_mib"]
    grown = found["memory-overwritten"]["rss_mib"] - empty_mib
    return {
        "cpu_secs_per_pulse": found[paced]["cpu_us"] / 1e6,
        "memory_per_payload": grown / payload_mib,
        "memory_empty_mib": empty_mib,
        "changes_per_sec": found["read-72000-changes"]["requests_per_s"],
    }


def assumptions_table(assumed):
    lines = [(name, f"{value:,.7g}") for name, value in dataclasses.asdict(assumed).items()]
    return report.table(["assumption", "value"], lines)


def sizes_table(sizes):
    lines = [
        ["workers", *(f"{s.workers:,}" for s in sizes)],
        ["pulses/s", *(f"{s.pulses_per_sec:,.0f}" for s in sizes)],
        ["network in, Gbit/s", *(f"{s.bits_in_per_sec / 1e9:,.2f}" for s in sizes)],
        ["network out, Gbit/s", *(f"{s.bits_out_per_sec / 1e9:,.2f}" for s in sizes)],
        ["cores of all Pacemakers", *(f"{s.cores:,.2f}" for s in sizes)],
        ["memory of all, MiB", *(f"{s.memory_mib:,.0f}" for s in sizes)],
        ["Pacemakers, one may die", *(f"{s.pacemakers}" for s in sizes)],
        ["... for the sake of", *(s.limited_by for s in sizes)],
        ["Nimbus reads all in, s", *(f"{s.nimbus_secs:,.1f}" for s in sizes)],
        ["... of its period", *(f"{s.nimbus_share:,.0%}" for s in sizes)],
        ["Spark reads: cores", *(f"{s.spark_read_cores:,.1f}" for s in sizes)],
        ["Spark decodes: cores", *(f"{s.spark_decode_cores:,.1f}" for s in sizes)],
    ]
    return report.table(["nodes x 24 workers", *(f"{s.nodes:,}" for s in sizes)], lines)


if __name__ == "__main__":
    main()
