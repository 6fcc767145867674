"""What a local run still waits for; pure.

Two Spark sessions that start at the same time slow each other down. So the heartbeat pipeline is
started once the worker has counted its first rows.
"""

from stormkeeper.local.ledger import Counts, Snapshot

#: How long the pipeline's start is put off at most, in seconds: several times what a first batch
#: takes on a quiet machine. A job whose first rows come late still gets its pipeline.
PIPELINE_AFTER_SECS = 60.0

SPARK_STARTS = "Spark is starting in the worker"
FIRST_BATCH = "Spark runs in the worker, no heartbeat tells of a row yet"
PIPELINE_STARTS = "the heartbeat pipeline is starting: liveness comes with its first batch"


def has_counted(snapshot: Snapshot) -> bool:
    """Return whether a worker has counted a row."""
    return any(counts != Counts() for counts in snapshot.components().values())


def is_pipeline_due(snapshot: Snapshot, up_secs: float) -> bool:
    """Return whether the pipeline is to start, `up_secs` after the worker's first pulse."""
    return has_counted(snapshot) or up_secs >= PIPELINE_AFTER_SECS


def waits_for(snapshot: Snapshot, *, pipeline_starts: bool) -> str:
    """Say what the run waits for; nothing once everything is there.

    Parameters
    ----------
    snapshot
        What was seen so far.
    pipeline_starts
        Whether the pipeline was started and has not written its tables yet.
    """
    if not has_counted(snapshot):
        # A worker knows its components from the moment that it has its Spark session.
        return FIRST_BATCH if snapshot.components() else SPARK_STARTS
    return PIPELINE_STARTS if pipeline_starts else ""
