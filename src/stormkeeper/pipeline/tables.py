"""The tables of the pipeline, by the folder that they are in; `stormkeeper.history` keeps them."""

from typing import Final

#: The queries: each has a folder of this name, with its tables and its checkpoint.
LIVENESS: Final = "liveness"
STATISTICS: Final = "statistics"

#: The folder of what the analyses find, and the first of its tables.
ALERTS: Final = "alerts"
ALERT_HISTORY: Final = "alert_history"
KILLED_TOPOLOGIES: Final = "killed_topologies"
SUPERVISORS: Final = "supervisors"

WORKER_LIVENESS: Final = "worker_liveness"
WORKER_EVENTS: Final = "worker_events"
SERVERS: Final = "servers"
WORKER_REPORTS: Final = "worker_reports"
WORKER_STATS: Final = "worker_stats"
EXECUTOR_STATS: Final = "executor_stats"
COMPONENT_STATS: Final = "component_stats"
TOPOLOGY_STATS: Final = "topology_stats"
REJECTED: Final = "rejected"
ROLLUP_1M: Final = "rollup_1m"
ROLLUP_10M: Final = "rollup_10m"
ROLLUP_60M: Final = "rollup_60m"

#: What the roll-ups are made from in the next batch.
EXECUTOR_COUNTERS: Final = "executor_counters"
ROLLUP_OPEN: Final = "rollup_open"
ROLLUP_PARTS: Final = "rollup_parts"

#: The folder of what Nimbus says of topologies, and the tables in it.
NAMING: Final = "names"
COMPONENTS: Final = "components"
TOPOLOGIES: Final = "topologies"

#: All that are for readers, by folder.
NAMES: Final = {
    LIVENESS: (WORKER_LIVENESS, WORKER_EVENTS, SERVERS),
    STATISTICS: (
        *(WORKER_REPORTS, WORKER_STATS, EXECUTOR_STATS, COMPONENT_STATS, TOPOLOGY_STATS),
        *(ROLLUP_1M, ROLLUP_10M, ROLLUP_60M, REJECTED),
    ),
    ALERTS: (ALERTS, ALERT_HISTORY, KILLED_TOPOLOGIES, SUPERVISORS),
}
