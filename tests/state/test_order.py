"""The order inside the room: its modules stand on floors, and import downwards, never in a circle.

Of the storage protocol and the typed operations, each should be readable without what
is above it.
"""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from stormkeeper import state

ROOM = Path(state.__file__).parent
PREFIX = state.__name__

#: From the ground up. A name ends in ``*`` where it stands for all that begin with it.
FLOORS = (
    ("storage",),
    ("watches", "subtrees", "subscription"),
    ("zookeeper.*",),
    ("backends",),
    ("leader_lock", "fenced_writer"),
    ("storm.*",),
    ("node_values",),
    ("survey",),
)


def modules():
    """The names of all modules of the room, without the room's own."""
    for path in ROOM.rglob("*.py"):
        names = path.relative_to(ROOM).with_suffix("").parts
        if names[-1] != "__init__":
            yield ".".join(names), path


def floor(module):
    """On which floor a module stands."""
    (found,) = (
        number
        for number, names in enumerate(FLOORS)
        if any(module.startswith(n[:-1]) if n.endswith("*") else module == n for n in names)
    )
    return found


def imported(path, known):
    """Yield what a module imports of the room, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.removeprefix(f"{PREFIX}.") in known:
                yield name.removeprefix(f"{PREFIX}.")


@pytest.fixture(scope="module")
def imports():
    """What each module imports of the others."""
    found = dict(modules())
    return {module: set(imported(path, found)) for module, path in found.items()}


def test_every_module_has_its_floor(imports):
    assert len({floor(module) for module in imports}) == len(FLOORS)


def test_imports_point_downwards(imports):
    upwards = {
        f"{module} imports {other}"
        for module, others in imports.items()
        for other in others
        if floor(other) > floor(module)
    }
    assert upwards == set()


def test_imports_make_no_circle(imports):
    order = list(TopologicalSorter(imports).static_order())
    assert order.index("storage") < order.index("leader_lock") < order.index("storm.cluster")
