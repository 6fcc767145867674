"""The simulated cluster from a seed: nodes, topologies, components, and the work of a topology.

Work is in closed form: a count is a rate times the *work done* between two times. Work only grows,
so counters never fall within a worker's life, no window counts more than all time, and past counts
can be recomputed. Times are seconds since 1970.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from stormkeeper import paths
from stormkeeper.errors import ConfigError

PREFIX: Final = "simulated-"
SYSTEM: Final = "__system"

_ACKER: Final = "__acker"

#: Of every component of a topology with ackers.
_ACK_INIT, _ACK_ACK = "__ack_init", "__ack_ack"

_SPOUTS: Final = ("events", "clicks")
_BOLTS: Final = ("parse", "enrich", "filter", "join", "count", "score", "route", "dedupe", "store")
_STREAMS: Final = ("default", "late", "errors", "audit")

_FIRST_PORT: Final = 6700
_MOST_WORKERS_PER_NODE: Final = 10_000

#: Storm's windows in seconds, as heartbeats name them; the last is all time.
WINDOWS: Final = ("600", "10800", "86400", ":all-time")
_LENGTHS: Final = (600.0, 10800.0, 86400.0)

#: Storm's ``NUM_STAT_BUCKETS``: a window moves by a twentieth of its length.
_BUCKETS: Final = 20

#: Seconds per radian of a window's swing in latency: long windows are steadier.
_WAVES: Final = (60.0, 600.0, 3600.0, 86400.0)


@dataclass(frozen=True, slots=True)
class Change:
    """A factor on the rate from `since` to `until`."""

    since: float
    until: float
    factor: float


@dataclass(frozen=True, slots=True)
class Activity:
    """A rate that swings around 1, and the integral.

    `swing` is the amplitude, from 0 to below 1; `phase` is the position of time 0 in radians.
    """

    swing: float
    period_secs: float
    phase: float
    changes: tuple[Change, ...] = ()

    def done(self, at: float) -> float:
        """Return the work done by `at`, in seconds at the usual rate, since long ago."""
        done = self._usual(at)
        for change in self.changes:
            if at > change.since:
                within = self._usual(min(at, change.until)) - self._usual(change.since)
                done += (change.factor - 1.0) * within
        return done

    def changed(self, change: Change) -> Activity:
        return replace(self, changes=(*self.changes, change))

    def _usual(self, at: float) -> float:
        turn = math.tau / self.period_secs
        return at - self.swing / turn * math.cos(turn * at + self.phase)


@dataclass(frozen=True, slots=True)
class Ramp:
    """A latency that rises by `rise` times itself from `since` to `until`, then drops back."""

    since: float
    until: float
    rise: float

    def mean(self, begin: float, end: float) -> float:
        """Return the mean latency from `begin` to `end`, relative to the usual."""
        return 1.0 + (self._risen(end) - self._risen(begin)) / (end - begin)

    def _risen(self, at: float) -> float:
        length = self.until - self.since
        part = min(max((at - self.since) / length, 0.0), 1.0)
        return self.rise * length * part * part / 2.0


def begins(started: float, now: float) -> tuple[float, ...]:
    """Return the start of each window of a worker."""
    steps = [length / _BUCKETS for length in _LENGTHS]
    return (*[max(started, (now // step - _BUCKETS + 1) * step) for step in steps], started)


def spans(activity: Activity, since: Sequence[float], now: float) -> tuple[float, ...]:
    """Return the work done in each window."""
    done = activity.done(now)
    return tuple([max(0.0, done - activity.done(begin)) for begin in since])


def wavering(now: float, task: int) -> list[float]:
    """Return an executor's relative latency in each window."""
    return [1.0 + 0.03 * math.sin(now / slowly + task) for slowly in _WAVES]


@dataclass(frozen=True, slots=True)
class Input:
    """A stream that a bolt takes: tuples per second, and latency relative to the component's."""

    source: str
    stream: str
    rate: float
    slow: float = 1.0


@dataclass(frozen=True, slots=True)
class Output:
    """A stream that a component emits: tuples per second, and the number of takers."""

    stream: str
    rate: float
    takers: int


@dataclass(frozen=True, slots=True)
class SimulatedComponent:
    """A spout or a bolt; each executor has a task and a share of `shares`."""

    id: str
    kind: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    shares: tuple[float, ...]
    execute_ms: float = 0.0
    process_ms: float = 0.0
    complete_ms: float = 0.0
    failing: float = 0.0
    first_task: int = -1
    #: The groups of an executor's numbers in a heartbeat: whether latencies, and the rate (or usual
    #: latency) of each stream.
    groups: tuple[tuple[bool, tuple[float, ...]], ...] = field(init=False)

    def __post_init__(self) -> None:
        emitted = [o.rate for o in self.outputs]
        transferred = [o.rate * o.takers for o in self.outputs]
        well, ill = 1.0 - self.failing, self.failing
        groups: list[tuple[bool, list[float]]] = [(False, emitted), (False, transferred)]
        if self.kind == "spout":
            # Tuples of Storm's own streams are not acked.
            tracked = [o.rate for o in self.outputs if not o.stream.startswith("__")]
            groups += [
                (False, [well * rate for rate in tracked]),
                (False, [ill * rate for rate in tracked]),
                (True, [self.complete_ms] * len(tracked)),
            ]
        else:
            groups += [
                (False, [well * i.rate for i in self.inputs]),
                (False, [ill * i.rate for i in self.inputs]),
                (True, [i.slow * self.process_ms for i in self.inputs]),
                (False, [i.rate for i in self.inputs]),
                (True, [i.slow * self.execute_ms for i in self.inputs]),
            ]
        kept = tuple((is_latency, tuple(group)) for is_latency, group in groups if group)
        object.__setattr__(self, "groups", kept)

    @property
    def is_system(self) -> bool:
        return self.id.startswith("__")

    @property
    def tasks(self) -> range:
        return range(self.first_task, self.first_task + len(self.shares))

    @property
    def capacity(self) -> float:
        """Usual capacity of the busiest executor."""
        busy_ms = sum(i.rate * i.slow for i in self.inputs) * self.execute_ms
        return busy_ms * max(self.shares) / 1000.0

    def grown(self, streams: int) -> SimulatedComponent:
        """Return the component with further streams without tuples."""
        more = (Output(f"grown-{number:03d}", 0.0, 1) for number in range(streams))
        return replace(self, outputs=(*self.outputs, *more))


@dataclass(frozen=True, slots=True)
class SimulatedExecutor:
    """An executor: component, task, and share of the component's work."""

    component: SimulatedComponent
    task: int
    share: float


_SYSTEM: Final = SimulatedExecutor(SimulatedComponent(SYSTEM, "bolt", (), (), (1.0,)), -1, 1.0)


@dataclass(frozen=True, slots=True)
class Growth:
    """From `since` to `until`, `streams` more for each component every `step_secs`."""

    since: float
    until: float
    step_secs: float
    streams: int

    def added(self, at: float) -> int:
        steps = int((min(at, self.until) - self.since) / self.step_secs) + 1
        return self.streams * steps if at >= self.since else 0


@dataclass(slots=True)
class SimulatedTopology:
    """A topology with planted troubles."""

    storm_id: str
    components: list[SimulatedComponent]
    activity: Activity
    slots: list[paths.Slot]
    skewed: dict[int, Activity] = field(default_factory=dict)
    slowed: dict[str, Ramp] = field(default_factory=dict)
    growth: Growth | None = None

    @property
    def name(self) -> str:
        return self.storm_id.rsplit("-", 2)[0]

    def workers(self) -> Iterator[tuple[paths.Slot, tuple[SimulatedExecutor, ...]]]:
        """Yield the slot and executors of each worker: every n-th, as in Storm."""
        every = [
            SimulatedExecutor(component, task, share)
            for component in self.components
            for task, share in zip(component.tasks, component.shares, strict=True)
        ]
        for number, slot in enumerate(self.slots):
            yield slot, (_SYSTEM, *every[number :: len(self.slots)])


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """Node ids and topologies."""

    nodes: list[str]
    topologies: list[SimulatedTopology]


@dataclass(frozen=True, slots=True)
class Profile:
    """The size of a simulated cluster.

    `bolts` is the range of bolts, besides one or two spouts; `executors` the mean number per
    worker, besides an acker and ``__system``.
    """

    nodes: int
    workers_per_node: int
    topologies: int
    bolts: tuple[int, int]
    executors: float
    streams: int

    @property
    def workers(self) -> int:
        return self.nodes * self.workers_per_node

    def sized(
        self, nodes: int | None, workers_per_node: int | None, topologies: int | None
    ) -> Profile:
        """Return this profile in another size; None: unchanged, topologies in proportion.

        Raises `ConfigError` if a number is out of range, or there are more topologies than workers.
        """
        sized = replace(
            self,
            nodes=nodes or self.nodes,
            workers_per_node=workers_per_node or self.workers_per_node,
        )
        if topologies is None:
            topologies = max(1, round(self.topologies * sized.workers / self.workers))
        if sized.workers_per_node > _MOST_WORKERS_PER_NODE:
            raise ConfigError(
                f"{sized.workers_per_node} workers of a node are more than it has ports for: at"
                f" most {_MOST_WORKERS_PER_NODE}"
            )
        if not 1 <= topologies <= sized.workers:
            raise ConfigError(
                f"{topologies} topologies do not go with {sized.workers} workers: each topology"
                " has one worker or more"
            )
        return replace(sized, topologies=topologies)


PROFILES: Final = {
    "small": Profile(277, 24, 400, bolts=(3, 6), executors=5.0, streams=1),
    "large": Profile(277, 24, 100, bolts=(6, 10), executors=6.0, streams=2),
    "huge": Profile(277, 24, 1, bolts=(24, 24), executors=115.0, streams=3),
}


def plan(profile: Profile, *, seed: int, now: float) -> SimulatedCluster:
    """Return a cluster, which depends only on `seed` except for the time in topologies' ids."""
    random = Random(f"cluster {seed}")
    nodes = [_node(random, number) for number in range(profile.nodes)]
    ports = range(_FIRST_PORT, _FIRST_PORT + profile.workers_per_node)
    slots = (paths.Slot(node, port) for port in ports for node in nodes)
    topologies = []
    weights = [random.lognormvariate(0.0, 0.7) for _ in range(profile.topologies)]
    sizes = _split(profile.workers, weights)
    for extra in range(profile.workers - sum(sizes)):
        sizes[extra % len(sizes)] += 1
    for number, workers in enumerate(sizes, start=1):
        components = _components(random, profile, workers)
        activity = Activity(
            swing=random.uniform(0.0, 0.3),
            period_secs=random.choice((3600.0, 86400.0)),
            phase=random.uniform(0.0, 6.28),
        )
        storm_id = f"{PREFIX}{seed}-{number:03d}-{number}-{int(now)}"
        taken = [next(slots) for _ in range(workers)]
        topologies.append(SimulatedTopology(storm_id, components, activity, taken))
    return SimulatedCluster(nodes, topologies)


def _node(random: Random, number: int) -> str:
    id_ = uuid.UUID(int=random.getrandbits(128), version=4)
    return f"{id_}-10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _split(total: int, weights: Sequence[float]) -> list[int]:
    """Return sizes of at least 1 by weights; rounding leaves a few over."""
    unit = (total - len(weights)) / sum(weights)
    return [1 + int(weight * unit) for weight in weights]


def _components(random: Random, profile: Profile, workers: int) -> list[SimulatedComponent]:
    """Return the components of a topology, sorted by id, with tasks from 1."""
    bolts = random.randint(*profile.bolts)
    spouts = random.choice((1, 1, 2)) if bolts > 1 else 1
    ids = [_name(_SPOUTS, number) for number in range(spouts)]
    ids += [_name(_BOLTS, number) for number in range(bolts)]
    executors = max(len(ids), round(profile.executors * workers))
    counts = _split(executors, [random.uniform(0.5, 2.0) for _ in ids])
    counts[0] += executors - sum(counts)
    spout_rate = min(random.lognormvariate(5.0, 1.2), 20_000.0)
    inputs: dict[str, list[Input]] = {}
    outputs: dict[str, dict[str, float]] = {}
    for number, id_ in enumerate(ids):
        is_spout = number < spouts
        inputs[id_] = [] if is_spout else _inputs(random, outputs, inputs)
        rate = spout_rate if is_spout else sum(i.rate for i in inputs[id_])
        outputs[id_] = {}
        if id_ != ids[-1]:
            outputs[id_][_STREAMS[0]] = rate * random.uniform(0.5, 1.2 if is_spout else 1.5)
            for stream in _STREAMS[1 : 1 + random.randint(0, profile.streams)]:
                outputs[id_][stream] = rate * random.uniform(0.01, 0.1)
    taken = [(i.source, i.stream) for taken in inputs.values() for i in taken]
    made = []
    for id_, count in zip(ids, counts, strict=True):
        streams = [
            Output(name, rate, taken.count((id_, name))) for name, rate in outputs[id_].items()
        ]
        made.append(_component(random, id_, inputs[id_], streams, count))
    made.append(_acker(made, workers))
    first, numbered = 1, []
    for component in sorted(made, key=lambda c: c.id):
        numbered.append(replace(component, first_task=first))
        first += len(component.shares)
    return numbered


def _name(names: tuple[str, ...], number: int) -> str:
    again, place = divmod(number, len(names))
    return f"{names[place]}-{again + 1}" if again else names[place]


def _inputs(
    random: Random, outputs: dict[str, dict[str, float]], inputs: dict[str, list[Input]]
) -> list[Input]:
    """Return the next bolt's streams: the oldest untaken stream, and perhaps another."""
    known = [(id_, stream) for id_, made in outputs.items() for stream in made]
    taken = {(i.source, i.stream) for those in inputs.values() for i in those}
    chosen = [stream for stream in known if stream not in taken][:1]
    if not chosen or random.random() < 0.35:
        chosen = [*dict.fromkeys([*chosen, random.choice(known)])]
    return [
        Input(id_, stream, outputs[id_][stream], random.uniform(0.7, 1.3)) for id_, stream in chosen
    ]


def _component(
    random: Random, id_: str, inputs: list[Input], outputs: list[Output], executors: int
) -> SimulatedComponent:
    weights = [random.lognormvariate(0.0, 0.1) for _ in range(executors)]
    total = sum(weights)
    shares = tuple(weight / total for weight in weights)
    if not inputs:
        outputs = [*outputs, Output(_ACK_INIT, sum(o.rate for o in outputs), 1)]
        complete_ms = random.uniform(5.0, 200.0)
        return SimulatedComponent(
            id_, "spout", (), tuple(outputs), shares, complete_ms=complete_ms, failing=0.001
        )
    outputs = [*outputs, Output(_ACK_ACK, sum(i.rate for i in inputs), 1)]
    busiest = sum(i.rate * i.slow for i in inputs) * max(shares)
    execute_ms = min(random.uniform(0.05, 0.5) * 1000.0 / busiest, 200.0)
    return SimulatedComponent(
        id_,
        "bolt",
        tuple(inputs),
        tuple(outputs),
        shares,
        execute_ms=execute_ms,
        process_ms=execute_ms * random.uniform(1.0, 3.0),
        failing=random.choice((0.0, 0.0, 0.001)),
    )


def _acker(components: list[SimulatedComponent], workers: int) -> SimulatedComponent:
    inputs = [
        Input(c.id, o.stream, o.rate, 1.0 + number / 100.0)
        for number, c in enumerate(components)
        for o in c.outputs
        if o.stream.startswith("__")
    ]
    roots = sum(i.rate for i in inputs if i.stream == _ACK_INIT)
    shares = (1.0 / workers,) * workers
    outputs = (Output(_ACK_ACK, roots, 1),)
    return SimulatedComponent(
        _ACKER, "bolt", tuple(inputs), outputs, shares, execute_ms=0.01, process_ms=0.01
    )
