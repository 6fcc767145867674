"""Topologies of functions that do nothing, written out or drawn."""

from hypothesis import strategies as st

from stormkeeper.topology import Topology
from stormkeeper.topology.plan import Executor
from stormkeeper.topology.topology import ComponentDescription


def make(graph, conf=None):
    """A topology from {id: (inputs, parallelism)}, in which each stands after its inputs."""
    topology = Topology("t", conf)
    for name, (inputs, parallelism) in graph.items():
        kind = topology.bolt(*inputs, parallelism=parallelism, name=name) if inputs else None
        kind = kind or topology.spout(parallelism=parallelism, name=name)
        kind(lambda *inputs: inputs)
    return topology


@st.composite
def graphs(draw):
    size = draw(st.integers(2, 9))
    names = draw(st.permutations([f"c{n}" for n in range(size)]))
    graph = {}
    for n, name in enumerate(names):
        inputs = draw(st.lists(st.sampled_from(names[:n]), max_size=3)) if n else []
        graph[name] = (tuple(inputs), draw(st.integers(1, 4)))
    consumed = {source for inputs, _ in graph.values() for source in inputs}
    return {n: v for n, v in graph.items() if v[0] or n in consumed}


def executor(component, kind, query, task_start, task_end, inputs=()):
    """An executor, by the values that it is made of."""
    parallelism = task_end - task_start + 1
    described = ComponentDescription(component, kind, inputs, parallelism)
    return Executor(described, query, task_start, task_end)
