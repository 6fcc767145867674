"""Analyses of the pipeline's tables: ``df -> df`` functions that find a cluster's troubles.

With `now`, an analysis judges that moment: at most one row per subject, from the newest full
bucket. Without `now`, every moment in the table is judged. Rows later than `now` are ignored.
"""

from stormkeeper.pipeline.analyses.trends import growing_heartbeats, saturating_components
from stormkeeper.pipeline.analyses.worker_health import (
    flapping_workers,
    late_nodes,
    late_pacemakers,
)
from stormkeeper.pipeline.analyses.workload import skewed_components, unusual_throughput

__all__ = [
    "flapping_workers",
    "growing_heartbeats",
    "late_nodes",
    "late_pacemakers",
    "saturating_components",
    "skewed_components",
    "unusual_throughput",
]
