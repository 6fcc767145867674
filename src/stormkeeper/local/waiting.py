"""What a local run still waits for; pure.

Two Spark sessions that start at the same time slow each other down. So the heartbeat pipeline is
started once the worker has counted its first rows.
"""

from stormkeeper.client.topology_view import TopologyView
from stormkeeper.local.ledger import Counts, Snapshot

#: How long the pipeline's start is put off at most, in seconds: several times what a first batch
#: takes on a quiet machine. A job whose first rows come late still gets its pipeline.
PIPELINE_AFTER_SECS = 60.0

SUBMITS = "the topology is packed, and sent to the Nimbus that leads"
WORKER_STARTS = "a supervisor starts the worker"
SPARK_STARTS = "Spark is starting in the worker"
FIRST_BATCH = "Spark runs in the worker, no heartbeat tells of a row yet"
PIPELINE_STARTS = "the heartbeat pipeline is starting: liveness comes with its first batch"

#: What Nimbus says of a topology that has all that it can get, and of one that is done.
_PLACED = ("Fully Scheduled", "Running with fewer slots than requested")
_COMPLETED = "Completed"


def has_counted(snapshot: Snapshot) -> bool:
    """Return whether a worker has counted a row."""
    return any(counts != Counts() for counts in snapshot.components().values())


def is_pipeline_due(snapshot: Snapshot, up_secs: float) -> bool:
    """Return whether the pipeline is to start, `up_secs` after the worker's first pulse."""
    return has_counted(snapshot) or up_secs >= PIPELINE_AFTER_SECS


def _unwell(told: TopologyView | None) -> str:
    """Return what is wrong with a topology that has workers; empty: nothing, or it starts."""
    health = None if told is None else told.health
    if health is None or health.state in ("running", "starting"):
        return "" if health is None or health.state == "starting" else health.text
    return str(health)


def is_completed(snapshot: Snapshot, told: TopologyView | None) -> bool:
    """Return whether all queries of a topology have ended by themselves.

    Parameters
    ----------
    snapshot
        What was seen so far.
    told
        What Nimbus has told last.
    """
    if told is None:
        return False
    if told.sched_status.startswith(_COMPLETED):
        return True
    # The workers say so sooner.
    done = {(w.worker.node, w.worker.port) for w in snapshot.workers if w.completed}
    return bool(told.workers) and all((w.supervisor_id, w.port) in done for w in told.workers)


def waits_for(
    snapshot: Snapshot, *, is_submitted: bool, told: TopologyView | None, pipeline_starts: bool
) -> str:
    """Say what the run waits for; nothing once everything is there.

    Parameters
    ----------
    snapshot, told
        As of `is_completed`.
    is_submitted
        Whether Nimbus has taken the topology.
    pipeline_starts
        Whether the pipeline was started and has not written its tables yet.
    """
    if not is_submitted:
        return SUBMITS
    unwell = _unwell(told)
    if unwell and snapshot.workers:
        return unwell
    if not snapshot.workers:
        status = "" if told is None else told.sched_status
        return status if status and not status.startswith(_PLACED) else WORKER_STARTS
    if not has_counted(snapshot):
        # A worker knows its components from the moment that it has its Spark session.
        return FIRST_BATCH if snapshot.components() else SPARK_STARTS
    return PIPELINE_STARTS if pipeline_starts else ""
