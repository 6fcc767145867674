"""A supervisor's metrics for Prometheus. Loaded on demand: the import takes 0.1 s and 5 MB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import Page
from stormkeeper.daemon.metrics import metrics_page
from stormkeeper.supervisor.slots import SlotState
from stormkeeper.supervisor.status_pages import SupervisorStatus

PREFIX: Final = "stormkeeper_supervisor_"


def page(status: SupervisorStatus, accept: str, *, is_ready: bool) -> Page:
    """Return a supervisor's metrics in the text format that the client accepts."""
    return metrics_page(_SupervisorMetrics(status, is_ready=is_ready))(accept)


class _SupervisorMetrics(Collector):
    def __init__(self, status: SupervisorStatus, *, is_ready: bool) -> None:
        self._status = status
        self._is_ready = is_ready

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield GaugeMetricFamily(
            f"{PREFIX}ready", "Whether it takes new work.", float(self._is_ready)
        )
        slots = GaugeMetricFamily(
            f"{PREFIX}slots", "Slots, by what they are doing.", labels=["state"]
        )
        for state in SlotState:
            is_in_it = [slot.state is state for slot in status.slots.values()]
            slots.add_metric([state.name.lower()], sum(is_in_it))
        yield slots
        memory = GaugeMetricFamily(
            f"{PREFIX}worker_memory_bytes",
            "Memory of a worker with all that it started; a page that several share counts once.",
            labels=["port"],
        )
        for port, size in sorted(status.memory.items()):
            memory.add_metric([str(port)], size)
        yield memory
        yield CounterMetricFamily(f"{PREFIX}launches", "Workers started.", status.launches)
        yield CounterMetricFamily(
            f"{PREFIX}crashes", "Workers that ended unasked, or had to be ended.", status.crashes
        )
        yield CounterMetricFamily(
            f"{PREFIX}problems", "What kept slots from their work, such as code.", status.problems
        )
