"""The id of a topology that runs locally.

It is needed before the topology's worker starts, and the script is run by the worker alone. So the
name is read in the script, without running it.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from stormkeeper.errors import LocalClusterError
from stormkeeper.topology.topology import TOPOLOGY_NAME

#: Where a script imports `Topology` from.
MODULES = ("stormkeeper.topology", "stormkeeper.topology.topology")


def storm_id(script: Path, now: float) -> str:
    """Return a topology's id in Storm's form, ``name-number-epoch``.

    The name is that of ``Topology("name")`` in the script; or the file's, where there is none, or
    several, or the name is not written out there.

    Raises
    ------
    LocalClusterError
        When the script cannot be read.
    """
    try:
        source = script.read_bytes()
    except OSError as error:
        raise LocalClusterError(f"{script} cannot be read: {error.strerror}") from error
    name = declared_name(source)
    if name is None:
        name = re.sub(r"[^A-Za-z0-9]+", "-", script.stem).strip("-") or "topology"
    return f"{name}-1-{int(now)}"


def declared_name(source: bytes) -> str | None:
    """Return the name that the source of a script gives to its one topology, None where unclear.

    Examples
    --------
    >>> declared_name(b"from stormkeeper.topology import Topology; t = Topology('word-count')")
    'word-count'
    """
    # Whatever is to be said of the source, the worker says, when it runs it.
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return None
    called = _names_of_topology(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {_first_argument(call) for call in calls if ast.unparse(call.func) in called}
    name = names.pop() if len(names) == 1 else None
    return name if name is not None and TOPOLOGY_NAME.fullmatch(name) else None


def _names_of_topology(tree: ast.Module) -> set[str]:
    """Return what the script calls `Topology`: ``Topology``, ``topology.Topology``, …."""
    return {name for node in ast.walk(tree) for name in _bound(node)}


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name in MODULES:
                yield f"{alias.asname or alias.name}.Topology"
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            name = alias.asname or alias.name
            if node.module in MODULES and alias.name == "Topology":
                yield name
            elif f"{node.module}.{alias.name}" in MODULES:
                yield f"{name}.Topology"


def _first_argument(call: ast.Call) -> str | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    argument = next(iter([*call.args, *named]), None)
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    return None
