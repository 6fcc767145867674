"""What the heartbeat pipeline of a local cluster has written so far."""

from pathlib import Path

from stormkeeper.history import manifest
from stormkeeper.history.table_reader import Tables
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline.tables import LIVENESS, NAMES, WORKER_LIVENESS


def statuses(directory: Path) -> dict[WorkerId, str]:
    """Return the status of each worker in the liveness table."""
    folder = directory / LIVENESS
    if manifest.load(folder) is None:
        return {}
    columns = ["storm_id", "node", "port", "status"]
    return {
        WorkerId(row["storm_id"], row["node"], row["port"]): row["status"]
        for row in Tables(folder).arrow(WORKER_LIVENESS, columns=columns).to_pylist()
    }


def rows(directory: Path) -> dict[str, int]:
    """Return how many rows each table has; 0 where it was never written."""
    counts = {}
    for query, names in NAMES.items():
        found = manifest.load(directory / query)
        for name in names:
            files = found.tables[name].files if found is not None else []
            counts[name] = sum(file.rows for file in files)
    return counts
