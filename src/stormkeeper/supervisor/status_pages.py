"""A supervisor's status, and pages of metrics and health."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import Page, health_page, metrics_page
from stormkeeper.supervisor.slots import SlotState, SlotStatus

#: Longest pause of the slots' thread, in seconds.
MAX_SILENCE: Final = 10.0

PREFIX: Final = "stormkeeper_supervisor_"

FOREIGN: Final = (
    "is not run here: a Nimbus that is not ours, such as Java's, has placed it on this supervisor;"
    " stop that Nimbus and kill the topology, or give this supervisor another storm.zookeeper.root"
)


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """The status of a supervisor's slots, with counts since the start."""

    turned_at: float
    slots: Mapping[int, SlotStatus] = field(default_factory=dict)
    memory: Mapping[int, int] = field(default_factory=dict)
    launches: int = 0
    crashes: int = 0
    problems: int = 0
    #: Topologies that another Nimbus has placed here, which do not run.
    foreign: frozenset[str] = frozenset()


def pages(
    status: Callable[[], SupervisorStatus],
    unready: Callable[[], str | None],
    clock: Callable[[], float],
) -> dict[str, Callable[[str], Page]]:
    """Return the handlers of a supervisor's pages, by path.

    ``/healthz`` is healthy while the slots' thread runs; ``/readyz`` shows whether the supervisor
    takes new work, and each slot. `unready` returns why not.
    """

    def find_fault() -> str | None:
        ago = clock() - status().turned_at
        return f"the slots were last looked after {ago:.1f} s ago" if ago > MAX_SILENCE else None

    def readyz(_: str) -> Page:
        why = unready()
        lines = [why or "ready", *slot_lines(status())]
        return Page(503 if why else 200, "".join(f"{line}\n" for line in lines).encode())

    return {
        "/metrics": metrics_page(_SupervisorMetrics(status, unready)),
        "/healthz": health_page(find_fault),
        "/readyz": readyz,
    }


def slot_lines(status: SupervisorStatus) -> Iterator[str]:
    """Yield a line for each slot, and for each topology that was placed here and cannot run."""
    for port, slot in sorted(status.slots.items()):
        texts = [f"{port} {slot.state.value}"]
        if slot.assignment is not None:
            texts.append(slot.assignment.storm_id)
        if slot.crashes:
            texts.append(f"{slot.crashes} crashes in a row")
        if slot.reason:
            texts.append(slot.reason.splitlines()[0])
        yield ", ".join(texts)
    for storm_id in sorted(status.foreign):
        yield f"{storm_id} {FOREIGN}"


class _SupervisorMetrics(Collector):
    def __init__(
        self, status: Callable[[], SupervisorStatus], unready: Callable[[], str | None]
    ) -> None:
        self._status = status
        self._unready = unready

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield GaugeMetricFamily(
            f"{PREFIX}ready", "Whether it takes new work.", float(self._unready() is None)
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
