"""The house as docs/architecture.md draws it: every room is there, and imports point downwards.

Within a room, too, no module imports itself by way of another, not even for its types.
"""

import ast
import graphlib
import re
from functools import cache
from pathlib import Path

import pytest

import stormkeeper

PACKAGE = Path(stormkeeper.__file__).parent
ARCHITECTURE = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text()

#: What every room but these may import.
GROUND = {"names", "extras", "errors"}

#: The rooms from the roof down, as the page's table has them, each with what it may import.
MAY_IMPORT = {
    room: set(re.findall(r"`(\w+)`", named)) | (set() if room in GROUND else GROUND)
    for room, named in re.findall(r"^\| `(\w+)/?` \| .+ \| (.+) \|$", ARCHITECTURE, re.MULTILINE)
}

#: The parts of a room that has parts, and what each may import of the others.
PARTS = {"pacemaker": {"wire": set(), "server": {"wire"}, "client": {"wire"}}}


def rooms():
    return {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}


@cache
def parsed(path):
    return ast.parse(path.read_text())


def imported(path):
    """Yield what a module imports, as room and part, wherever in it the import stands."""
    for node in ast.walk(parsed(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "stormkeeper":
            names = [f"stormkeeper.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [node.module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "stormkeeper" and len(parts) > 1 and parts[1] != "__version__":
                yield parts[1], parts[2] if len(parts) > 2 else None


def test_every_room_has_its_line_above_what_it_imports():
    assert rooms() - {"__init__", "__main__"} == MAY_IMPORT.keys()
    from_the_roof = list(MAY_IMPORT)
    for room, below in MAY_IMPORT.items():
        assert below <= set(from_the_roof[from_the_roof.index(room) + 1 :]), room


def test_the_picture_is_one_page():
    assert len(ARCHITECTURE.split()) < 1000, "details belong on the pages and in the modules"


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_imports_point_downwards(room):
    place = PACKAGE / room
    modules = list(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    assert modules
    for module in modules:
        for other, _ in imported(module):
            assert other == room or other in MAY_IMPORT[room], f"{module.name} imports {other}"


@pytest.mark.parametrize("room", sorted(PARTS))
def test_the_parts_of_a_room_keep_their_order(room):
    assert PARTS[room].keys() == {p.parent.name for p in (PACKAGE / room).glob("*/__init__.py")}
    for part, below in PARTS[room].items():
        for module in (PACKAGE / room / part).rglob("*.py"):
            for other, other_part in imported(module):
                assert other != room or other_part in below | {part}, f"{module.name}: {other_part}"


def name_of(module):
    parts = module.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_module_imports_itself_by_way_of_others():
    modules = {name_of(module): module for module in PACKAGE.rglob("*.py")}
    imports = {name: set() for name in modules}
    for name, module in modules.items():
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.Import):
                imports[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                imports[name] |= {node.module, *inner}
        imports[name] &= modules.keys() - {name}
    assert sum(map(len, imports.values())) > len(modules), "hardly any was found"
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError with the circle


def test_whoever_logs_has_the_name_of_a_module():
    modules = {name_of(module) for module in PACKAGE.rglob("*.py")}
    for module in PACKAGE.rglob("*.py"):
        named = re.findall(r'getLogger\("(stormkeeper\.[\w.]+)"\)', module.read_text())
        assert set(named) <= modules, module
