"""What a bolt's function returns, as far as its source shows, for faults before any query starts.

The worker finds the same faults when it calls the function; only what it would refuse is a fault.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import symtable
import textwrap
from collections.abc import Iterable, Iterator

from stormkeeper.errors import TopologyError
from stormkeeper.topology import faults
from stormkeeper.topology.topology import SERVICES, Component, Topology

#: Return a DataFrame, or a step towards a DataFrame.
_FRAME = frozenset(
    """
    agg alias coalesce count crossJoin distinct drop dropDuplicates dropDuplicatesWithinWatermark
    dropna fillna filter groupBy groupby hint intersect join limit observe orderBy repartition
    select selectExpr sort subtract toDF union unionAll unionByName where withColumn
    withColumnRenamed withColumns withColumnsRenamed withWatermark
    """.split()  # noqa: SIM905  (a line for each fills the page)
)

#: Return a DataStreamWriter.
_WRITER = frozenset(
    """
    clusterBy foreach foreachBatch format option options outputMode partitionBy queryName trigger
    """.split()  # noqa: SIM905  (a line for each fills the page)
)

_STARTS = ("start", "toTable")

_WITHOUT_SOURCE = (OSError, TypeError, SyntaxError, ValueError, RecursionError)


def check_bolts(topology: Topology) -> None:
    """Raise `TopologyError` for the first bolt that returns the wrong thing."""
    read = {source for each in topology.components.values() for source in each.inputs}
    for bolt in topology.components.values():
        with contextlib.suppress(*_WITHOUT_SOURCE):
            if bolt.kind == "bolt":
                _check(bolt, is_read=bolt.id in read)


def _check(bolt: Component, *, is_read: bool) -> None:
    lines, first = inspect.getsourcelines(bolt.function)
    source = textwrap.dedent("".join(lines))
    function = ast.parse(source).body[0]
    # `__wrapped__`: the function that is called is not the one whose source this is.
    if not isinstance(function, ast.FunctionDef) or hasattr(bolt.function, "__wrapped__"):
        return
    if inspect.isgeneratorfunction(bolt.function):
        return
    fault = _fault(bolt, function, _frames(bolt, source), is_read=is_read)
    if fault is not None:
        node, text = fault
        where = f"{inspect.getsourcefile(bolt.function)}, line {first + node.lineno - 1}"
        raise TopologyError(f"{where}: {text}")


def _fault(
    bolt: Component, function: ast.FunctionDef, frames: set[str], *, is_read: bool
) -> tuple[ast.stmt | ast.expr, str] | None:
    returned = [
        part.value for part in _own(function.body) if isinstance(part, ast.Return) and part.value
    ]
    if not returned and not is_read and _is_idle(function.body[-1], frames):
        return function, faults.no_writer(bolt.id, faults.NOTHING)
    if len(returned) != 1:
        return None
    what = _kind(returned[0], frames)
    if is_read:
        return (returned[0], faults.writer_read(bolt.id)) if what == "writer" else None
    if what == "query":
        return returned[0], faults.starts_itself(bolt.id)
    return (returned[0], faults.frame_unread(bolt.id)) if what == "frame" else None


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions in it."""
    for node in nodes:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own(ast.iter_child_nodes(node))


def _frames(bolt: Component, source: str) -> set[str]:
    """Return the parameters that are inputs, and are never bound to anything else."""
    parameters = inspect.signature(bolt.function).parameters
    names = [name for name in parameters if name not in SERVICES]
    bound: set[str] = set()
    scopes = symtable.symtable(source, bolt.id, "exec").get_children()
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        bound.update(symbol.get_name() for symbol in scope.get_symbols() if symbol.is_assigned())
    return {*names[: len(bolt.inputs)]} - bound


def _kind(value: ast.expr, frames: set[str]) -> str | None:
    """Return "frame", "writer" or "query" for ``frame.….writeStream.…``, None if unknown."""
    root, attributes = _chain(value)
    if root not in frames:
        return None
    if isinstance(value, ast.Attribute) and attributes[-1] != "writeStream":
        return None
    if "writeStream" not in attributes:
        return "frame" if _FRAME.issuperset(attributes) else None
    at = attributes.index("writeStream")
    before, after = attributes[:at], attributes[at + 1 :]
    if not _FRAME.issuperset(before):
        return None
    if after and after[-1] in _STARTS and _WRITER.issuperset(after[:-1]):
        return "query"
    return "writer" if _WRITER.issuperset(after) else None


def _is_idle(last: ast.stmt, frames: set[str]) -> bool:
    if isinstance(last, ast.Pass):
        return True
    return isinstance(last, ast.Expr) and (
        isinstance(last.value, ast.Constant) or _kind(last.value, frames) in {"frame", "writer"}
    )


def _chain(node: ast.expr) -> tuple[str | None, list[str]]:
    """Return the name at the beginning of ``name.a().b.c()``, and the attributes after it."""
    attributes: list[str] = []
    while True:
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
            node = node.value
        else:
            return (node.id if isinstance(node, ast.Name) else None), attributes
