"""What the heartbeat pipeline of a local cluster has written so far."""

from pathlib import Path

import pyarrow.parquet as pq

from stormkeeper.paths import WorkerId
from stormkeeper.pipeline.tables import LIVENESS, NAMES, WORKER_LIVENESS, current_path


def statuses(directory: Path) -> dict[WorkerId, str]:
    """Return the status of each worker in the liveness table."""
    path = current_path(directory / LIVENESS, WORKER_LIVENESS)
    if path is None:
        return {}
    columns = ["storm_id", "node", "port", "status"]
    return {
        WorkerId(row["storm_id"], row["node"], row["port"]): row["status"]
        for row in pq.read_table(path, columns=columns).to_pylist()
    }


def rows(directory: Path) -> dict[str, int]:
    """Return how many rows each table has; 0 where it was never written."""
    counts = {}
    for query, names in NAMES.items():
        for name in names:
            path = current_path(directory / query, name)
            counts[name] = pq.read_metadata(path).num_rows if path is not None else 0
    return counts
