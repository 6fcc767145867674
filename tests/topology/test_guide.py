"""The guide in docs/topologies.md is true: its code is the example's, and it runs."""

import re
from pathlib import Path

import pytest

from stormkeeper.topology.plan import plan

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "topologies.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.fixture
def names():
    return {"save": lambda output: lambda batch, number: (output, batch, number)}


def test_the_first_topology_is_the_example():
    example = (ROOT / "examples" / "word_count.py").read_text()
    definitions = BLOCKS[0][BLOCKS[0].index("topology = Topology(") :]
    assert definitions in example


def test_tasks_are_as_it_says(names):
    exec(BLOCKS[0], names)
    tasks = {e.component.id: e.task_start for e in plan(names["topology"]).executors}
    assert tasks == {"counts": 1, "lines": 2, "totals": 3, "words": 4}


def test_all_of_it_is_one_topology(names):
    for block in BLOCKS:
        exec(block, names)
    the_plan = plan(names["topology"])
    assert [query.id for query in the_plan.queries] == ["totals", "show"]
    assert {"long_words", "long-words-and-lines"} <= set(names["topology"].components)
