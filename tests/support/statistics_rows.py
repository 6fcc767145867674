"""The rows of Storm's pages as flat values, which tests compare and add up."""

from dataclasses import dataclass, replace

from stormkeeper.statistics import aggregates
from stormkeeper.thrift.nimbus import ComponentType


@dataclass(frozen=True)
class SpoutRow:
    """A spout's ``ComponentAggregateStats``."""

    num_executors: int
    num_tasks: int
    emitted: int
    transferred: int
    acked: int
    failed: int
    complete_latency_ms: float


@dataclass(frozen=True)
class BoltRow:
    """A bolt's ``ComponentAggregateStats``."""

    num_executors: int
    num_tasks: int
    emitted: int
    transferred: int
    acked: int
    failed: int
    execute_latency_ms: float
    process_latency_ms: float
    executed: int
    capacity: float


def flat(row):
    """Return a row as a `SpoutRow` or a `BoltRow`."""
    common = {
        name: value for name, value in vars(row.common_stats).items() if name != "resources_map"
    }
    if row.type == ComponentType.SPOUT:
        return SpoutRow(**common, **vars(row.specific_stats.spout))
    return BoltRow(**common, **vars(row.specific_stats.bolt))


def _flat_rows(rows):
    return rows and {key: flat(row) for key, row in rows.items()}


def topology_page(*args, **kwargs):
    """Return `aggregates.topology_page` with flat rows."""
    page = aggregates.topology_page(*args, **kwargs)
    names = ("id_to_spout_agg_stats", "id_to_bolt_agg_stats")
    return replace(page, **{name: _flat_rows(getattr(page, name)) for name in names})


def component_page(*args, **kwargs):
    """Return `aggregates.component_page` with flat rows."""
    page = aggregates.component_page(*args, **kwargs)
    names = ("window_to_stats", "gsid_to_input_stats", "sid_to_output_stats")
    rows = {name: _flat_rows(getattr(page, name)) for name in names}
    return replace(page, **rows, executors=[(report, flat(row)) for report, row in page.executors])
