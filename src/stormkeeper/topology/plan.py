"""The plan of a topology: queries, executors and tasks; and the claims of workers.

A query is a sink and everything that feeds it. An executor is a component in a query, with as many
tasks as the component's parallelism. Tasks are numbered from 1, by component id, then by query id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stormkeeper.errors import TopologyError
from stormkeeper.topology.topology import ComponentDescription, Topology


@dataclass(frozen=True)
class Edge:
    """Rows that flow from `source` to input number `position`, from 0, of `target`."""

    source: str
    target: str
    position: int


@dataclass(frozen=True)
class Query:
    """A streaming query: its sink's `id`, and its components, each after its inputs."""

    id: str
    components: tuple[ComponentDescription, ...]

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(
            Edge(source, component.id, position)
            for component in self.components
            for position, source in enumerate(component.inputs)
        )


@dataclass(frozen=True)
class Executor:
    """A component in a query; the tasks include `task_start` and `task_end`."""

    component: ComponentDescription
    query: str
    task_start: int
    task_end: int

    @property
    def emits(self) -> bool:
        """Whether other components read the rows; false for the query's sink."""
        return self.component.kind == "spout" or self.component.id != self.query


@dataclass(frozen=True)
class Plan:
    """The queries in the order of their sinks in the topology, and the executors by task."""

    queries: tuple[Query, ...]
    executors: tuple[Executor, ...]

    def only(self, queries: Sequence[str]) -> Plan:
        """Return the part of the plan with these queries; tasks keep their numbers.

        Raises `TopologyError` for an unknown query.
        """
        known = [query.id for query in self.queries]
        for id_ in queries:
            if id_ not in known:
                raise TopologyError(
                    f"the topology has no query {id_!r}: its queries are those of the sinks "
                    f"{', '.join(map(repr, known))}"
                )
        return Plan(
            tuple(query for query in self.queries if query.id in queries),
            tuple(executor for executor in self.executors if executor.query in queries),
        )


def plan(topology: Topology) -> Plan:
    """Return the plan of a topology; a bolt that no component reads from is a sink.

    Raises `TopologyError` without a sink, or for a spout that no component reads.
    """
    components = {id_: component.description for id_, component in topology.components.items()}
    if not components:
        raise TopologyError(
            f"the topology {topology.name!r} is empty: add a spout with @topology.spout and a "
            "bolt that reads from it with @topology.bolt(...)"
        )
    consumed = {source for component in components.values() for source in component.inputs}
    for component in components.values():
        if component.kind == "spout" and component.id not in consumed:
            raise TopologyError(
                f"no component reads from the spout {component.id!r}: add a bolt with "
                f"@topology.bolt({component.id}), or take the spout out"
            )
    sinks = [c for c in components.values() if c.kind == "bolt" and c.id not in consumed]
    queries = tuple(Query(sink.id, _with_ancestors(sink, components)) for sink in sinks)
    return Plan(queries, _numbered(queries))


def _with_ancestors(
    sink: ComponentDescription, components: Mapping[str, ComponentDescription]
) -> tuple[ComponentDescription, ...]:
    wanted: set[str] = set()
    left = [sink.id]
    while left:
        id_ = left.pop()
        if id_ not in wanted:
            wanted.add(id_)
            left.extend(components[id_].inputs)
    # Components read from earlier ones only, so each comes after its inputs.
    return tuple(c for c in components.values() if c.id in wanted)


def _numbered(queries: tuple[Query, ...]) -> tuple[Executor, ...]:
    runs = sorted(
        ((component, query.id) for query in queries for component in query.components),
        key=lambda run: (run[0].id, run[1]),
    )
    executors = []
    task = 1
    for component, query in runs:
        executors.append(Executor(component, query, task, task + component.parallelism - 1))
        task += component.parallelism
    return tuple(executors)


_FORM = re.compile(r"([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,19})")


class Claim(NamedTuple):
    """The claim of a worker to its queries; the greatest claim wins.

    A worker that was cut off may run on while another worker got its queries. So a worker writes
    its claim to the checkpoint, and starts no batch after a greater claim. The leader gives a
    launch its `epoch` and `counter`, with a `launch` of 0. At each start of the process the
    supervisor sets `launch` to the number of the start, greater than those of its earlier starts.
    """

    epoch: int
    counter: int
    launch: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}-{self.counter}-{self.launch}"

    @classmethod
    def parse(cls, text: str) -> Claim:
        """Read the text of ``str``; raises `ValueError` for anything else."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no claim: EPOCH-COUNTER-LAUNCH, such as 12-3-0")
        return cls(*map(int, found.groups()))
