"""A simulated worker: what it runs, what it says at a time, and which of it a server took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from stormkeeper import paths
from stormkeeper.simulation.activity import begins, spans, wavering
from stormkeeper.simulation.bodies import Opened, Template, head, stats, values
from stormkeeper.simulation.cluster import Executor, Topology
from stormkeeper.simulation.components import Component
from stormkeeper.thrift.compression import Compression
from stormkeeper.thrift.serialization import Release

#: Takes an event of the truth, as an object of JSON.
Tell = Callable[[dict[str, Any]], None]

_OF_SPOUTS: Final = ("acked", "failed", "complete_ms_avg")
_OF_BOLTS: Final = ("acked", "failed", "process_ms_avg", "executed", "execute_ms_avg")


@dataclass(slots=True)
class Beat:
    """One heartbeat, from when it is due until another one of its worker was acknowledged.

    `start` and `end` are its bytes: the same until its counters are new, and those with its times.
    `counted_at` is the time of its counters, `sent_at` that of its clock before that was set wrong.
    """

    worker: Worker
    start: bytes
    end: bytes
    due: float
    sent_at: float
    counted_at: float
    time_secs: int
    uptime_secs: int
    #: Which server has acknowledged it, and when; none has yet.
    server: str = ""
    acknowledged_at: float = 0.0

    @property
    def path(self) -> str:
        """Where it goes."""
        return self.worker.path

    @property
    def details(self) -> bytes:
        """All of its bytes."""
        return self.start + self.end


class Worker:
    """One incarnation of a worker, from its start to its end.

    Parameters
    ----------
    topology
        What it belongs to.
    slot
        Where it runs.
    executors
        What it runs.
    started
        When it started, in seconds since 1970: uptime and counters begin there.
    """

    __slots__ = (
        "counted_at",
        "ending",
        "executors",
        "failed",
        "fast_secs",
        "opened",
        "path",
        "silent_until",
        "slot",
        "started",
        "taken",
        "taken_beats",
        "topology",
        "under_way",
    )

    def __init__(
        self,
        topology: Topology,
        slot: paths.Slot,
        executors: tuple[Executor, ...],
        started: float,
    ) -> None:
        self.topology = topology
        self.slot = slot
        self.executors = executors
        self.started = started
        self.path = paths.workerbeat(topology.storm_id, slot.node, slot.port)
        #: How much its clock is fast.
        self.fast_secs = 0
        #: Until then it lives, and says nothing.
        self.silent_until = 0.0
        #: The body that it sends, and of which time its counters are.
        self.opened: Opened | None = None
        self.counted_at = 0.0
        #: The heartbeat that no server has answered yet.
        self.under_way: Beat | None = None
        #: The last one that a server has acknowledged.
        self.taken: Beat | None = None
        self.taken_beats = 0
        self.failed = 0
        #: Why it has ended, while its last heartbeat is still under way.
        self.ending = ""

    def numbers(self, at: float) -> Iterator[tuple[Executor, Component, list[float]]]:
        """Yield the executors, each with its component and its numbers as `values` has them."""
        topology = self.topology
        since = begins(self.started, at)
        usual = spans(topology.activity, since, at)
        added = topology.growth.added(at) if topology.growth else 0
        for executor in self.executors:
            component, task = executor.component, executor.task
            if added and not component.is_system:
                component = component.grown(added)
            skewed = topology.skewed.get(task)
            work = usual if skewed is None else spans(skewed, since, at)
            slowness = wavering(at, task)
            ramp = topology.slowed.get(component.id)
            if ramp is not None and at > self.started:
                slowness = [
                    factor * ramp.mean(begin, at)
                    for factor, begin in zip(slowness, since, strict=True)
                ]
            yield executor, component, values(component, executor.share, work, slowness)

    def counters(self, at: float) -> list[dict[str, Any]]:
        """Return what its heartbeat said at a time, per executor, as objects of JSON."""
        return [
            {
                "task_start": executor.task,
                "task_end": executor.task,
                "component": component.id,
                **_as_json(stats(component, iter(numbers), names_component=False)),
            }
            for executor, component, numbers in self.numbers(at)
        ]


class Writer:
    """Makes the bytes of heartbeats; keeps the templates.

    Parameters
    ----------
    compression, release
        How they are compressed, and which Storm is to read them.
    names_components
        Whether executors name their components, as ours do and Storm's own do not.
    """

    def __init__(
        self, compression: Compression, release: Release, *, names_components: bool
    ) -> None:
        self._compression = compression
        self._release = release
        self._names_components = names_components
        self._heads: dict[tuple[str, int], bytes] = {}
        #: By topology, and by component and how many streams it emits.
        self._templates: dict[str, dict[tuple[str, int], Template]] = {}

    def count(self, worker: Worker, at: float) -> None:
        """Give a worker a body with the counters of that time."""
        storm_id = worker.topology.storm_id
        templates = self._templates.setdefault(storm_id, {})
        begin = self._heads.get((storm_id, len(worker.executors)))
        if begin is None:
            begin = head(storm_id, len(worker.executors))
            self._heads[storm_id, len(worker.executors)] = begin
        pieces = [begin]
        for executor, component, numbers in worker.numbers(at):
            key = component.id, len(component.outputs)
            template = templates.get(key)
            if template is None:
                template = Template(component, names_component=self._names_components)
                templates[key] = template
            pieces.append(template.filled(executor.task, numbers))
        worker.opened = Opened(b"".join(pieces), self._compression, self._release)
        worker.counted_at = at


def _as_json(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"emitted": record.emitted, "transferred": record.transferred}
    spout, bolt = record.specific.spout, record.specific.bolt
    if spout is not None:
        return found | {name: getattr(spout, name) for name in _OF_SPOUTS}
    return found | {name: _by_source(getattr(bolt, name)) for name in _OF_BOLTS}


def _by_source(by_window: dict[str, dict[Any, Any]]) -> dict[str, list[list[Any]]]:
    """Return the values of inputs as lists of source, stream and value."""
    return {
        window: [[key.componentId, key.streamId, value] for key, value in by_input.items()]
        for window, by_input in by_window.items()
    }
