"""What a simulated topology consists of: components, streams, rates and latencies, from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

ACKER: Final = "__acker"
SYSTEM: Final = "__system"

#: Streams that every component of a topology with ackers has.
_ACK_INIT, _ACK_ACK = "__ack_init", "__ack_ack"

_SPOUTS: Final = ("events", "clicks")
_BOLTS: Final = ("parse", "enrich", "filter", "join", "count", "score", "route", "dedupe", "store")
_STREAMS: Final = ("default", "late", "errors", "audit")


@dataclass(frozen=True, slots=True)
class Input:
    """A stream that a bolt takes, how many tuples a second, and how slow they are.

    `slow` is 1 where they take as long as the component's tuples do.
    """

    source: str
    stream: str
    rate: float
    slow: float = 1.0


@dataclass(frozen=True, slots=True)
class Output:
    """A stream that a component emits, how many tuples a second, and how many bolts take it."""

    stream: str
    rate: float
    takers: int


@dataclass(frozen=True, slots=True)
class Component:
    """A spout or a bolt, all of its executors together.

    Parameters
    ----------
    kind
        ``spout`` or ``bolt``.
    shares
        Each executor's part of the work; their sum is 1.
    execute_ms, process_ms, complete_ms
        Usual latencies; the last is a spout's.
    failing
        Part of the tuples that fail.
    first_task
        Its first task's number; each executor has one task.
    """

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
    #: What a heartbeat says of an executor, in its order: whether it is a latency, and by stream
    #: what is to be multiplied with the work done (or with the latency's factor).
    groups: tuple[tuple[bool, tuple[float, ...]], ...] = field(init=False)

    def __post_init__(self) -> None:
        emitted = tuple(o.rate for o in self.outputs)
        transferred = tuple(o.rate * o.takers for o in self.outputs)
        # Tuples of Storm's own streams are not acked.
        tracked = tuple(o.rate for o in self.outputs if not o.stream.startswith("__"))
        taken = tuple(i.rate for i in self.inputs)
        process = tuple(i.slow * self.process_ms for i in self.inputs)
        execute = tuple(i.slow * self.execute_ms for i in self.inputs)
        well, ill = 1.0 - self.failing, self.failing
        groups: list[tuple[bool, tuple[float, ...]]] = [(False, emitted), (False, transferred)]
        if self.kind == "spout":
            groups += [
                (False, tuple(well * rate for rate in tracked)),
                (False, tuple(ill * rate for rate in tracked)),
                (True, (self.complete_ms,) * len(tracked)),
            ]
        else:
            groups += [
                (False, tuple(well * rate for rate in taken)),
                (False, tuple(ill * rate for rate in taken)),
                (True, process),
                (False, taken),
                (True, execute),
            ]
        object.__setattr__(self, "groups", tuple(group for group in groups if group[1]))

    @property
    def is_system(self) -> bool:
        """Whether it is Storm's own."""
        return self.id.startswith("__")

    @property
    def tasks(self) -> range:
        """Its tasks."""
        return range(self.first_task, self.first_task + len(self.shares))

    @property
    def capacity(self) -> float:
        """The usual capacity of its busiest executor."""
        busy_ms = sum(i.rate * i.slow for i in self.inputs) * self.execute_ms
        return busy_ms * max(self.shares) / 1000.0

    def grown(self, streams: int) -> Component:
        """Return it with that many further streams, on which it has emitted nothing yet."""
        more = (Output(f"grown-{number:03d}", 0.0, 1) for number in range(streams))
        return replace(self, outputs=(*self.outputs, *more))


#: What every worker has besides its tasks: it counts nothing.
SYSTEM_BOLT: Final = Component(SYSTEM, "bolt", (), (), (1.0,))


def topology(
    random: Random, *, workers: int, bolts: int, executors: float, streams: int
) -> list[Component]:
    """Return the components of a topology, by task: sorted by id, tasks numbered from 1.

    Parameters
    ----------
    random
        Decides everything.
    workers
        How many it has; as many ackers.
    bolts
        How many it has; one or two spouts besides.
    executors
        Executors that a worker has on average, without acker.
    streams
        Streams beyond the first that a component emits, at most.
    """
    spouts = random.choice((1, 1, 2)) if bolts > 1 else 1
    ids = [_named(_SPOUTS, number) for number in range(spouts)]
    ids += [_named(_BOLTS, number) for number in range(bolts)]
    counts = _parallelism(random, len(ids), max(len(ids), round(executors * workers)))
    flow = _Flow(random, streams)
    for number, id_ in enumerate(ids):
        flow.add(id_, counts[number], is_spout=number < spouts, is_last=number == len(ids) - 1)
    made = flow.components()
    made.append(_acker(made, workers))
    first, numbered = 1, []
    for component in sorted(made, key=lambda c: c.id):
        numbered.append(replace(component, first_task=first))
        first += len(component.shares)
    return numbered


class _Flow:
    """Puts a topology together, from its spouts down."""

    def __init__(self, random: Random, streams: int) -> None:
        self._random = random
        self._streams = streams
        #: Tuples a second of each spout.
        self._rate = min(random.lognormvariate(5.0, 1.2), 20_000.0)
        self._inputs: dict[str, list[Input]] = {}
        self._outputs: dict[str, dict[str, float]] = {}
        self._executors: dict[str, int] = {}
        self._taken: dict[tuple[str, str], int] = {}
        #: Streams that nobody takes yet.
        self._open: list[tuple[str, str]] = []

    def add(self, id_: str, executors: int, *, is_spout: bool, is_last: bool) -> None:
        random = self._random
        self._executors[id_] = executors
        self._inputs[id_] = [] if is_spout else self._take()
        rate = self._rate if is_spout else sum(i.rate for i in self._inputs[id_])
        outputs = {}
        if not is_last:
            outputs[_STREAMS[0]] = rate * random.uniform(0.5, 1.2 if is_spout else 1.5)
            for stream in _STREAMS[1 : 1 + random.randint(0, self._streams)]:
                outputs[stream] = rate * random.uniform(0.01, 0.1)
        self._outputs[id_] = outputs
        self._open += [(id_, stream) for stream in outputs]

    def _take(self) -> list[Input]:
        """Choose what a bolt takes: a stream that nobody takes yet, and perhaps another one."""
        random = self._random
        chosen = [self._open.pop(0)] if self._open else []
        known = [(id_, stream) for id_, made in self._outputs.items() for stream in made]
        if not chosen or random.random() < 0.35:
            more = random.choice(known)
            chosen += [more] if more not in chosen else []
        for taken in chosen:
            self._taken[taken] = self._taken.get(taken, 0) + 1
            self._open = [other for other in self._open if other != taken]
        return [
            Input(id_, stream, self._outputs[id_][stream], random.uniform(0.7, 1.3))
            for id_, stream in chosen
        ]

    def components(self) -> list[Component]:
        return [self._component(id_) for id_ in self._inputs]

    def _component(self, id_: str) -> Component:
        random, inputs = self._random, self._inputs[id_]
        shares = _shares(random, self._executors[id_])
        outputs = [
            Output(stream, rate, self._taken.get((id_, stream), 0))
            for stream, rate in self._outputs[id_].items()
        ]
        if not inputs:
            outputs.append(Output(_ACK_INIT, sum(o.rate for o in outputs), 1))
            complete_ms = random.uniform(5.0, 200.0)
            return Component(
                id_, "spout", (), tuple(outputs), shares, complete_ms=complete_ms, failing=0.001
            )
        executed = sum(i.rate for i in inputs)
        outputs.append(Output(_ACK_ACK, executed, 1))
        busiest = sum(i.rate * i.slow for i in inputs) * max(shares)
        execute_ms = min(random.uniform(0.05, 0.5) * 1000.0 / busiest, 200.0)
        return Component(
            id_,
            "bolt",
            tuple(inputs),
            tuple(outputs),
            shares,
            execute_ms=execute_ms,
            process_ms=execute_ms * random.uniform(1.0, 3.0),
            failing=random.choice((0.0, 0.0, 0.001)),
        )


def _acker(components: list[Component], workers: int) -> Component:
    inputs = [
        Input(c.id, o.stream, o.rate, 1.0 + number / 100.0)
        for number, c in enumerate(components)
        for o in c.outputs
        if o.stream.startswith("__")
    ]
    roots = sum(i.rate for i in inputs if i.stream == _ACK_INIT)
    shares = (1.0 / workers,) * workers
    outputs = (Output(_ACK_ACK, roots, 1),)
    return Component(
        ACKER, "bolt", tuple(inputs), outputs, shares, execute_ms=0.01, process_ms=0.01
    )


def _named(names: tuple[str, ...], number: int) -> str:
    again, place = divmod(number, len(names))
    return f"{names[place]}-{again + 1}" if again else names[place]


def _parallelism(random: Random, components: int, executors: int) -> list[int]:
    """Spread executors over components, one or more each."""
    weights = [random.uniform(0.5, 2.0) for _ in range(components)]
    left = executors - components
    counts = [1 + int(left * weight / sum(weights)) for weight in weights]
    counts[0] += executors - sum(counts)
    return counts


def _shares(random: Random, executors: int) -> tuple[float, ...]:
    """Share the work among executors: unevenly, as groupings by a key do."""
    weights = [random.lognormvariate(0.0, 0.1) for _ in range(executors)]
    total = sum(weights)
    return tuple(weight / total for weight in weights)
