"""The tables of the pipeline, by the query that publishes them; `stormkeeper.tables` keeps them."""

from typing import Final

#: The queries: each has a folder of this name, with its tables and its checkpoint.
LIVENESS: Final = "liveness"
STATISTICS: Final = "statistics"

WORKER_LIVENESS: Final = "worker_liveness"
WORKER_EVENTS: Final = "worker_events"
SERVERS: Final = "servers"
WORKER_REPORTS: Final = "worker_reports"
WORKER_STATS: Final = "worker_stats"
EXECUTOR_STATS: Final = "executor_stats"
COMPONENT_STATS: Final = "component_stats"
TOPOLOGY_STATS: Final = "topology_stats"
REJECTED: Final = "rejected"

#: The folder of what Nimbus says of topologies, and the table in it.
NAMING: Final = "names"
COMPONENTS: Final = "components"

#: All of them, by query.
NAMES: Final = {
    LIVENESS: (WORKER_LIVENESS, WORKER_EVENTS, SERVERS),
    STATISTICS: (
        *(WORKER_REPORTS, WORKER_STATS, EXECUTOR_STATS, COMPONENT_STATS, TOPOLOGY_STATS),
        REJECTED,
    ),
}
