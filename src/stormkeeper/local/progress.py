"""How far a run is: pending steps, completion, tables written, and the report.

Two Spark sessions that start at the same time slow each other down. So the heartbeat pipeline
starts once a worker has counted its first rows.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stormkeeper.client.topology_view import TopologyView
from stormkeeper.errors import LocalClusterError
from stormkeeper.history import manifest
from stormkeeper.history.table_reader import Tables
from stormkeeper.local.pacemaker_watch import ComponentCounts, RunSnapshot
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline.tables import LIVENESS, NAMES, WORKER_LIVENESS

#: Longest delay of the pipeline's start, in seconds: several times a first batch on a quiet
#: machine. A job whose first rows come late still gets its pipeline.
PIPELINE_AFTER_SECS = 60.0

SUBMITS = "the topology is packed, and sent to the Nimbus that leads"
WORKER_STARTS = "a supervisor starts the worker"
SPARK_STARTS = "Spark is starting in the worker"
FIRST_BATCH = "Spark runs in the worker, no heartbeat has counted a row yet"
PIPELINE_STARTS = "the heartbeat pipeline is starting: liveness comes with its first batch"

#: Nimbus's statuses of a topology that is placed as far as possible, and of a completed topology.
_PLACED = ("Fully Scheduled", "Running with fewer slots than requested")
_COMPLETED = "Completed"


def has_counted(snapshot: RunSnapshot) -> bool:
    """Return whether a worker has counted a row."""
    return any(counts != ComponentCounts() for counts in snapshot.components().values())


def is_pipeline_due(snapshot: RunSnapshot, up_secs: float) -> bool:
    """Return whether the pipeline must start, `up_secs` after the first pulse of a worker."""
    return has_counted(snapshot) or up_secs >= PIPELINE_AFTER_SECS


def _unwell(nimbus_view: TopologyView | None) -> str:
    """Return the fault of a topology that has workers; empty if healthy or starting."""
    health = None if nimbus_view is None else nimbus_view.health
    if health is None or health.state in ("running", "starting"):
        return "" if health is None or health.state == "starting" else health.text
    return str(health)


def is_completed(snapshot: RunSnapshot, nimbus_view: TopologyView | None) -> bool:
    """Return whether all queries of a topology have ended by themselves."""
    if nimbus_view is None:
        return False
    if nimbus_view.sched_status.startswith(_COMPLETED):
        return True
    # The workers' pulses say it before Nimbus does.
    done = {(w.worker.node, w.worker.port) for w in snapshot.workers if w.completed}
    return bool(nimbus_view.workers) and all(
        (w.supervisor_id, w.port) in done for w in nimbus_view.workers
    )


def waits_for(
    snapshot: RunSnapshot,
    *,
    is_submitted: bool,
    nimbus_view: TopologyView | None,
    pipeline_starts: bool,
) -> str:
    """Return the step that the run waits for; empty if all is running.

    `nimbus_view` is Nimbus's last answer; `pipeline_starts` says that the pipeline was started and
    has not written its tables yet.
    """
    if not is_submitted:
        return SUBMITS
    unwell = _unwell(nimbus_view)
    if unwell and snapshot.workers:
        return unwell
    if not snapshot.workers:
        status = "" if nimbus_view is None else nimbus_view.sched_status
        return status if status and not status.startswith(_PLACED) else WORKER_STARTS
    if not has_counted(snapshot):
        # A worker reports components once it has a Spark session.
        return FIRST_BATCH if snapshot.components() else SPARK_STARTS
    return PIPELINE_STARTS if pipeline_starts else ""


def worker_statuses(directory: Path) -> dict[WorkerId, str]:
    """Return the status of each worker in the liveness table."""
    folder = directory / LIVENESS
    if manifest.load(folder) is None:
        return {}
    columns = ["storm_id", "node", "port", "status"]
    return {
        WorkerId(row["storm_id"], row["node"], row["port"]): row["status"]
        for row in Tables(folder).arrow(WORKER_LIVENESS, columns=columns).to_pylist()
    }


def table_rows(directory: Path) -> dict[str, int]:
    """Return the row count of each table; 0 for a table that was never written."""
    counts = {}
    for query, names in NAMES.items():
        found = manifest.load(directory / query)
        for name in names:
            files = found.tables[name].files if found is not None else []
            counts[name] = sum(file.rows for file in files)
    return counts


def build_report(
    snapshot: RunSnapshot, *, now: float, tables: Mapping[str, int], processes_left: int
) -> dict[str, Any]:
    """Return the report of a run, ready for JSON.

    `now` is the end of the run, on the clock of the snapshot: a silence that lasted until then is a
    gap. `tables` has rows of each table; `processes_left` counts processes that had to be killed.
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


def write_report(file: Path, report: Mapping[str, Any]) -> None:
    """Write a report to a file; `LocalClusterError` if that fails."""
    try:
        file.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise LocalClusterError(f"the report was not written: {error}") from error
