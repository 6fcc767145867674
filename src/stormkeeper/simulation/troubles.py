"""Troubles of a simulated cluster from a seed, each kind once per round.

docs/simulation.md describes the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from stormkeeper import paths
from stormkeeper.simulation.cluster import (
    Change,
    Growth,
    Ramp,
    SimulatedComponent,
    SimulatedTopology,
)
from stormkeeper.simulation.model import Seat, Simulation, Worker

ROUND_SECS: Final = 600.0

_FLAPS: Final = 6

#: Above all other ports.
_MOVED_PORT: Final = 20_000

#: Seconds from the end of a topology's workers to the deletion of pulses, so that no pulse is sent
#: afterwards.
_DELETE_AFTER_SECS: Final = 2.0

#: Final capacity of a saturating bolt in ten minutes, at the usual rate: above 1 at a low rate,
#: too.
_SATURATED: Final = 1.6
_CAPACITY_SECS: Final = 600.0


class Troubles:
    """Plants troubles in a simulation, round after round."""

    def __init__(
        self, simulation: Simulation, *, seed: int, begin: float, round_secs: float
    ) -> None:
        self._simulation = simulation
        self._random = Random(f"troubles {seed}")
        self._round = round_secs
        self._begin = begin
        self._moved = 0
        #: Nodes and topologies with a trouble in this round.
        self._used: set[str] = set()
        #: Killed topologies, and topologies to kill, which have no other trouble.
        self._killed: set[str] = set()
        self._doomed: set[str] = set()
        simulation.at(begin, self._plant)

    def _plant(self, _: float) -> None:
        begin, self._begin = self._begin, self._begin + self._round
        self._used.clear()
        for plant in _KINDS:
            since = begin + self._round * self._random.uniform(0.1, 0.4)
            plant(self, since, since + self._round * self._random.uniform(0.3, 0.5))
        self._simulation.at(self._begin, self._plant)

    def _announce(self, kind: str, since: float, until: float | None, **subject: Any) -> None:
        event = {"event": "trouble", "kind": kind, "since": since, "until": until, **subject}
        self._simulation.at(since, lambda now: self._simulation.tell({**event, "at": now}))

    def _seat(self) -> tuple[Seat, Worker] | None:
        """Return a seat with worker, of an unused topology and node if possible."""
        taken = [
            (seat, seat.worker)
            for seat in self._simulation.seats
            if seat.worker and seat.worker.topology.storm_id not in self._doomed
        ]
        free = [
            (seat, worker)
            for seat, worker in taken
            if self._used.isdisjoint((worker.topology.storm_id, worker.slot.node))
        ]
        if not taken:
            return None
        seat, worker = self._random.choice(free or taken)
        self._used.add(worker.topology.storm_id)
        return seat, worker

    def _topology(
        self, *, alone: bool, fits: Callable[[SimulatedTopology], bool] = lambda _: True
    ) -> SimulatedTopology | None:
        """Return a topology, unused if `alone` or if possible."""
        living = [
            topology
            for topology in self._simulation.cluster.topologies
            if topology.storm_id not in self._doomed and fits(topology)
        ]
        free = [topology for topology in living if topology.storm_id not in self._used]
        if not free and (alone or not living):
            return None
        topology = self._random.choice(free or living)
        self._used.add(topology.storm_id)
        return topology

    def _node(self) -> tuple[str, list[Seat]]:
        nodes = self._simulation.cluster.nodes
        node = self._random.choice([n for n in nodes if n not in self._used] or nodes)
        self._used.add(node)
        return node, [s for s in self._simulation.seats if s.worker and s.worker.slot.node == node]

    def _worker_died(self, since: float, until: float) -> None:  # noqa: ARG002
        if found := self._seat():
            seat, worker = found
            self._announce("worker_died", since, None, **worker.name)
            self._simulation.at(since, lambda now: self._simulation.stop(seat, "died", now))

    def _worker_restarted(self, since: float, until: float) -> None:  # noqa: ARG002
        if found := self._seat():
            seat, worker = found
            back = since + self._away()
            self._announce("worker_restarted", since, back, **worker.name)
            self._restart(seat, worker.slot, since, back, "restarted")

    def _worker_flapping(self, since: float, until: float) -> None:
        if found := self._seat():
            seat, worker = found
            self._announce("worker_flapping", since, until, **worker.name)
            step = (until - since) / _FLAPS
            for number in range(_FLAPS):
                at = since + number * step
                self._restart(seat, worker.slot, at, at + step / 3.0, "restarted")

    def _worker_moved(self, since: float, until: float) -> None:  # noqa: ARG002
        found = self._seat()
        others = [n for n in self._simulation.cluster.nodes if n not in self._used]
        if found and others:
            seat, worker = found
            to = paths.Slot(self._random.choice(others), _MOVED_PORT + self._moved)
            self._moved += 1
            back = since + self._away()
            moved = {"to_node": to.node, "to_port": to.port}
            self._announce("worker_moved", since, back, **worker.name, **moved)
            self._restart(seat, to, since, back, "moved")

    def _away(self) -> float:
        return self._random.uniform(0.01, 0.02) * self._round

    def _restart(self, seat: Seat, slot: paths.Slot, at: float, back: float, why: str) -> None:
        def end(now: float) -> None:
            worker = self._simulation.stop(seat, why, now)
            if worker is not None:
                self._simulation.at(max(back, now), lambda later: start(worker, later))

        def start(before: Worker, now: float) -> None:
            if before.topology.storm_id not in self._killed:
                self._simulation.replace(seat, before, slot, now)

        self._simulation.at(at, end)

    def _node_late(self, since: float, until: float) -> None:
        node, seats = self._node()
        until = since + (until - since) / 2.0
        self._announce("node_late", since, until, node=node, workers=len(seats))

        def silence(_: float) -> None:
            for seat in seats:
                if seat.worker:
                    seat.worker.silent_until = until

        self._simulation.at(since, silence)

    def _clock_off(self, since: float, until: float) -> None:
        node, seats = self._node()
        fast = self._random.choice((-1, 1)) * self._random.randint(2, 10) * 3600
        self._announce("clock_off", since, until, node=node, workers=len(seats), fast_secs=fast)
        wrong: list[Worker] = []

        def turn(_: float) -> None:
            wrong.extend(seat.worker for seat in seats if seat.worker)
            for worker in wrong:
                worker.fast_secs += fast

        def turn_back(_: float) -> None:
            for worker in wrong:
                worker.fast_secs -= fast

        self._simulation.at(since, turn)
        self._simulation.at(until, turn_back)

    def _topology_killed(self, since: float, until: float) -> None:  # noqa: ARG002
        simulation = self._simulation
        is_last = len(simulation.cluster.topologies) - len(self._doomed) < 2
        topology = None if is_last else self._topology(alone=True)
        if topology is None:
            return
        storm_id = topology.storm_id
        self._doomed.add(storm_id)
        workers = len(topology.slots)
        self._announce("topology_killed", since, None, storm_id=storm_id, workers=workers)

        def kill(now: float) -> None:
            self._killed.add(storm_id)
            for seat in simulation.seats:
                if seat.worker and seat.worker.topology is topology:
                    simulation.stop(seat, "killed", now)
            simulation.at(now + _DELETE_AFTER_SECS, delete)

        def delete(now: float) -> None:
            simulation.deletions.append(paths.workerbeats(storm_id))
            simulation.tell({"event": "pulses_deleted", "at": now, "storm_id": storm_id})

        simulation.at(since, kill)

    def _executor_skewed(self, since: float, until: float) -> None:
        topology = self._topology(alone=False, fits=lambda t: _widest(t) is not None)
        component = _widest(topology) if topology else None
        if topology is None or component is None:
            return
        task = self._random.choice(component.tasks)
        usual = topology.skewed.get(task, topology.activity)
        topology.skewed[task] = usual.changed(Change(since, until, 5.0))
        about = {"storm_id": topology.storm_id, "component": component.id, "task": task}
        self._announce("executor_skewed", since, until, **about, factor=5.0)

    def _bolt_saturating(self, since: float, until: float) -> None:
        topology = self._topology(alone=False)
        if topology is None:
            return
        component = max(_bolts(topology), key=lambda bolt: bolt.capacity)
        # The mean of a ramp is half of its rise, in its part of the window.
        part = min((until - since) / _CAPACITY_SECS, 1.0) / 2.0
        rise = max(1.0, (_SATURATED / component.capacity - 1.0) / part)
        topology.slowed[component.id] = Ramp(since, until, rise)
        about = {"storm_id": topology.storm_id, "component": component.id}
        usual = {"usual_capacity": component.capacity}
        self._announce("bolt_saturating", since, until, **about, **usual, latency_rise=rise)

    def _throughput_dropped(self, since: float, until: float) -> None:
        if topology := self._topology(alone=True):
            topology.activity = topology.activity.changed(Change(since, until, 0.25))
            about = {"storm_id": topology.storm_id, "factor": 0.25}
            self._announce("throughput_dropped", since, until, **about)

    def _heartbeats_growing(self, since: float, until: float) -> None:
        if topology := self._topology(alone=False, fits=lambda t: t.growth is None):
            topology.growth = Growth(since, until, (until - since) / 5.0, streams=6)
            self._announce("heartbeats_growing", since, until, storm_id=topology.storm_id)


#: Kinds that need a topology of their own come first.
_KINDS: Final[Sequence[Callable[[Troubles, float, float], None]]] = (
    Troubles._topology_killed,
    Troubles._throughput_dropped,
    Troubles._node_late,
    Troubles._clock_off,
    Troubles._worker_died,
    Troubles._worker_restarted,
    Troubles._worker_moved,
    Troubles._worker_flapping,
    Troubles._executor_skewed,
    Troubles._bolt_saturating,
    Troubles._heartbeats_growing,
)


def _bolts(topology: SimulatedTopology) -> list[SimulatedComponent]:
    return [c for c in topology.components if c.kind == "bolt" and not c.is_system]


def _widest(topology: SimulatedTopology) -> SimulatedComponent | None:
    widest = max(_bolts(topology), key=lambda bolt: len(bolt.shares))
    return widest if len(widest.shares) >= 3 else None
