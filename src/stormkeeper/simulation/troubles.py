"""Troubles of a simulated cluster from a seed, each kind once per round.

========================  ==========================================================================
``worker_died``           a worker beats no more; its last pulse stays
``worker_restarted``      a worker ends, and another starts in its slot some seconds later
``worker_moved``          a worker ends, and another starts in a slot of another node
``worker_flapping``       a worker restarts again and again
``node_late``             all workers of a node are silent for a while, and go on as they were
``clock_off``             the clocks of a node's workers are hours fast or slow
``topology_killed``       a topology's workers end, and its pulses are deleted
``executor_skewed``       one executor of a bolt does five times its work
``bolt_saturating``       a bolt gets slower until its capacity is above 1
``throughput_dropped``    a topology does a quarter of its work
``heartbeats_growing``    a topology's components have ever more streams
========================  ==========================================================================
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
from stormkeeper.simulation.model import Seat, Simulation, Tell, Worker, named

ROUND_SECS: Final = 600.0

_FLAPS: Final = 6

#: First port of moved workers, above all others.
_MOVED_PORT: Final = 20_000

#: Seconds from the end of a topology's workers to the deletion of its pulses, so that no pulse is
#: sent after it.
_DELETE_AFTER_SECS: Final = 2.0

#: Final capacity of a saturating bolt in the window of ten minutes, at the usual rate: above 1 at
#: a low rate, too.
_SATURATED: Final = 1.6
_CAPACITY_SECS: Final = 600.0


class Troubles:
    """Plants troubles in a simulation, round after round."""

    def __init__(
        self, simulation: Simulation, *, seed: int, begin: float, round_secs: float, tell: Tell
    ) -> None:
        self._simulation = simulation
        self._random = Random(f"troubles {seed}")
        self._round = round_secs
        self._begin = begin
        self._tell = tell
        self._moved = 0
        self._used: set[str] = set()
        #: Killed topologies, and those that will be, which have no other trouble.
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

    def _at(self, since: float, until: float | None, kind: str, **subject: Any) -> None:
        event = {"event": "trouble", "kind": kind, "since": since, "until": until, **subject}
        self._simulation.at(since, lambda now: self._tell({**event, "at": now}))

    def _seat(self) -> Seat | None:
        taken = [
            seat
            for seat in self._simulation.seats
            if seat.worker and seat.worker.topology.storm_id not in self._doomed
        ]
        free = [
            seat
            for seat in taken
            if seat.worker
            and seat.worker.topology.storm_id not in self._used
            and seat.worker.slot.node not in self._used
        ]
        if not taken:
            return None
        seat = self._random.choice(free or taken)
        assert seat.worker is not None
        self._used.add(seat.worker.topology.storm_id)
        return seat

    def _topology(
        self, *, alone: bool, fits: Callable[[SimulatedTopology], bool] = lambda _: True
    ) -> SimulatedTopology | None:
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
        on_node = [s for s in self._simulation.seats if s.worker and s.worker.slot.node == node]
        return node, on_node

    def _worker_died(self, since: float, until: float) -> None:  # noqa: ARG002
        seat = self._seat()
        if seat and seat.worker:
            self._at(since, None, "worker_died", **named(seat.worker))
            self._simulation.at(since, lambda now: self._end(seat, "died", now))

    def _worker_restarted(self, since: float, until: float) -> None:  # noqa: ARG002
        seat = self._seat()
        if seat and seat.worker:
            back = since + self._away()
            self._at(since, back, "worker_restarted", **named(seat.worker))
            self._restart(seat, seat.worker.slot, since, back, "restarted")

    def _worker_flapping(self, since: float, until: float) -> None:
        seat = self._seat()
        if seat and seat.worker:
            self._at(since, until, "worker_flapping", **named(seat.worker))
            step = (until - since) / _FLAPS
            for number in range(_FLAPS):
                at = since + number * step
                self._restart(seat, seat.worker.slot, at, at + step / 3.0, "restarted")

    def _worker_moved(self, since: float, until: float) -> None:  # noqa: ARG002
        seat = self._seat()
        others = [n for n in self._simulation.cluster.nodes if n not in self._used]
        if seat and seat.worker and others:
            to = paths.Slot(self._random.choice(others), _MOVED_PORT + self._moved)
            self._moved += 1
            back = since + self._away()
            moved = {"to_node": to.node, "to_port": to.port}
            self._at(since, back, "worker_moved", **named(seat.worker), **moved)
            self._restart(seat, to, since, back, "moved")

    def _node_late(self, since: float, until: float) -> None:
        node, seats = self._node()
        until = since + (until - since) / 2.0
        self._at(since, until, "node_late", node=node, workers=len(seats))

        def silence(_: float) -> None:
            for seat in seats:
                if seat.worker:
                    seat.worker.silent_until = until

        self._simulation.at(since, silence)

    def _clock_off(self, since: float, until: float) -> None:
        node, seats = self._node()
        fast = self._random.choice((-1, 1)) * self._random.randint(2, 10) * 3600
        self._at(since, until, "clock_off", node=node, workers=len(seats), fast_secs=fast)
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

    def _away(self) -> float:
        return self._random.uniform(0.01, 0.02) * self._round

    def _end(self, seat: Seat, why: str, now: float) -> None:
        self._simulation.stop(seat, why, now)

    def _restart(self, seat: Seat, slot: paths.Slot, at: float, back: float, why: str) -> None:
        def end(now: float) -> None:
            worker = self._simulation.stop(seat, why, now)
            if worker is not None:
                self._simulation.at(max(back, now), lambda later: start(worker, later))

        def start(before: Worker, now: float) -> None:
            if before.topology.storm_id not in self._killed:
                self._simulation.start(seat, self._simulation.another(before, slot, now), now)

        self._simulation.at(at, end)

    def _topology_killed(self, since: float, until: float) -> None:  # noqa: ARG002
        if len(self._simulation.cluster.topologies) - len(self._doomed) < 2:
            return  # other troubles need a topology
        topology = self._topology(alone=True)
        if topology is None:
            return
        storm_id = topology.storm_id
        self._doomed.add(storm_id)
        self._at(since, None, "topology_killed", storm_id=storm_id, workers=len(topology.slots))
        simulation = self._simulation

        def kill(now: float) -> None:
            self._killed.add(storm_id)
            for seat in simulation.seats:
                if seat.worker and seat.worker.topology is topology:
                    simulation.stop(seat, "killed", now)
            simulation.at(now + _DELETE_AFTER_SECS, delete)

        def delete(now: float) -> None:
            path = paths.workerbeats(storm_id)
            simulation.deletions.append(path)
            self._tell({"event": "pulses_deleted", "at": now, "storm_id": storm_id})

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
        self._at(since, until, "executor_skewed", **about, factor=5.0)

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
        self._at(since, until, "bolt_saturating", **about, **usual, latency_rise=rise)

    def _throughput_dropped(self, since: float, until: float) -> None:
        topology = self._topology(alone=True)
        if topology is not None:
            topology.activity = topology.activity.changed(Change(since, until, 0.25))
            about = {"storm_id": topology.storm_id, "factor": 0.25}
            self._at(since, until, "throughput_dropped", **about)

    def _heartbeats_growing(self, since: float, until: float) -> None:
        topology = self._topology(alone=False, fits=lambda t: t.growth is None)
        if topology is not None:
            step = (until - since) / 5.0
            topology.growth = Growth(since, until, step, streams=6)
            self._at(since, until, "heartbeats_growing", storm_id=topology.storm_id)


#: In the order of choice: kinds that need a topology of their own come first.
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
