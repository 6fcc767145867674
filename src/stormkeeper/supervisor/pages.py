"""How a supervisor is, as Prometheus reads it, and its health, as pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import Page
from stormkeeper.daemon.process_metrics import ProcessMetrics
from stormkeeper.supervisor.means import Seen
from stormkeeper.supervisor.slots import SlotState

#: What all names begin with.
PREFIX: Final = "stormkeeper_supervisor_"

#: Seconds for which the slots' thread may not have done its regular work.
MAX_SILENCE: Final = 10.0


def pages(
    seen: Callable[[], Seen], unready: Callable[[], str | None], clock: Callable[[], float]
) -> dict[str, Callable[[str], Page]]:
    """Return the pages of a supervisor, by path.

    ``/metrics`` are its figures, in the text format that the client accepts; ``/healthz`` says
    whether it looks after its slots; ``/readyz`` whether it takes new work, and what each slot is
    doing.

    Parameters
    ----------
    seen
        Returns how the slots are.
    unready
        Returns why no new work is taken; None: it is.
    clock
        Seconds of the monotonic clock of `seen`.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SupervisorMetrics(seen, unready))
    registry.register(ProcessMetrics())

    def metrics(accept: str) -> Page:
        encode, content_type = choose_encoder(accept)
        return Page(200, encode(registry), content_type)

    def healthz(_: str) -> Page:
        ago = clock() - seen().turned_at
        if ago > MAX_SILENCE:
            return Page(503, f"the slots were last looked after {ago:.1f} s ago\n".encode())
        return Page(200, b"ok\n")

    def readyz(_: str) -> Page:
        why = unready()
        lines = [why or "ready", *slot_lines(seen())]
        return Page(503 if why else 200, "".join(f"{line}\n" for line in lines).encode())

    return {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}


def slot_lines(seen: Seen) -> Iterator[str]:
    """Yield what each slot is doing, a line each."""
    for port, slot in sorted(seen.slots.items()):
        said = [f"{port} {slot.state.value}"]
        if slot.assignment is not None:
            said.append(slot.assignment.storm_id)
        if slot.crashes:
            said.append(f"{slot.crashes} crashes in a row")
        if slot.reason:
            said.append(slot.reason.splitlines()[0])
        yield ", ".join(said)


class _SupervisorMetrics(Collector):
    def __init__(self, seen: Callable[[], Seen], unready: Callable[[], str | None]) -> None:
        self._seen = seen
        self._unready = unready

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        seen = self._seen()  # once: all that a scrape has is of one moment
        yield GaugeMetricFamily(
            f"{PREFIX}ready", "Whether it takes new work.", float(self._unready() is None)
        )
        slots = GaugeMetricFamily(
            f"{PREFIX}slots", "Slots, by what they are doing.", labels=["state"]
        )
        for state in SlotState:
            is_in_it = [slot.state is state for slot in seen.slots.values()]
            slots.add_metric([state.name.lower()], sum(is_in_it))
        yield slots
        memory = GaugeMetricFamily(
            f"{PREFIX}worker_memory_bytes",
            "Memory of a worker with all that it started; a page that several share counts once.",
            labels=["port"],
        )
        for port, size in sorted(seen.memory.items()):
            memory.add_metric([str(port)], size)
        yield memory
        yield CounterMetricFamily(f"{PREFIX}launches", "Workers started.", seen.launches)
        yield CounterMetricFamily(
            f"{PREFIX}crashes", "Workers that ended unasked, or had to be ended.", seen.crashes
        )
        yield CounterMetricFamily(
            f"{PREFIX}problems", "What kept slots from their work, such as code.", seen.problems
        )
