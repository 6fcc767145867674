"""The report of a local run, as JSON for scripts and tests."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stormkeeper.errors import LocalClusterError
from stormkeeper.local.ledger import Snapshot


def build(
    snapshot: Snapshot, *, now: float, tables: Mapping[str, int], processes_left: int
) -> dict[str, Any]:
    """Return what was seen as a JSON-able object.

    Parameters
    ----------
    snapshot
        What the Pacemakers reported.
    now
        When watching ended, on the clock of the snapshot's times: a silence that lasted until
        then counts as a gap.
    tables
        Rows of each table that the heartbeat pipeline wrote.
    processes_left
        Processes of the run that were still there after everything was stopped.
    """
    return {
        "pacemakers": [
            {"address": p.address, "pulses_received": p.pulses_received, "keys": p.keys}
            for p in snapshot.pacemakers
        ],
        "workers": [
            {
                "topology": w.worker.storm_id,
                "node": w.worker.node,
                "port": w.worker.port,
                "pulses": w.pulses,
                "max_gap_secs": round(w.gap_at(now), 3),
                "completed": w.completed,
            }
            for w in snapshot.workers
        ],
        "components": {
            name: {
                "emitted": counts.emitted,
                "executed": counts.executed,
                "partial": counts.partial,
            }
            for name, counts in sorted(snapshot.components().items())
        },
        "tables": dict(tables),
        "processes_left": processes_left,
    }


def write(file: Path, report: Mapping[str, Any]) -> None:
    """Write a report to a file.

    Raises
    ------
    LocalClusterError
        The file could not be written.
    """
    try:
        file.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise LocalClusterError(f"the report was not written: {error}") from error
