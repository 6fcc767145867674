"""What the function of a bolt is certain to return, by its source: a frame, a writer, nothing."""

from __future__ import annotations

import ast

from stormkeeper.topology import faults
from stormkeeper.topology.component import SERVICES, Component
from stormkeeper.topology.syntax import bound, chain, within

#: What gives a DataFrame, or a step towards one; another method may be the script's own.
_FRAME = frozenset(
    """
    agg alias coalesce count crossJoin distinct drop dropDuplicates dropDuplicatesWithinWatermark
    dropna fillna filter groupBy groupby hint intersect join limit observe orderBy repartition
    select selectExpr sort subtract toDF union unionAll unionByName where withColumn
    withColumnRenamed withColumns withColumnsRenamed withWatermark
    """.split()  # noqa: SIM905  (a line for each fills the page)
)

#: What gives a DataStreamWriter.
_WRITER = frozenset(
    """
    clusterBy foreach foreachBatch format option options outputMode partitionBy queryName trigger
    """.split()  # noqa: SIM905  (a line for each fills the page)
)

_STARTS = ("start", "toTable")


def returned_fault(
    bolt: Component, function: ast.FunctionDef, *, is_read: bool
) -> tuple[ast.stmt | ast.expr, str] | None:
    """Return where a bolt returns what the worker will refuse, and why; None where that is open.

    A query that it starts and does not return is its own.
    """
    parts = list(within(function.body))
    if any(isinstance(part, ast.Yield | ast.YieldFrom) for part in parts):
        return None
    frames = _frames(function, bolt).difference(bound(parts))
    returned = [part.value for part in parts if isinstance(part, ast.Return) and part.value]
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


def _frames(function: ast.FunctionDef, bolt: Component) -> set[str]:
    """Return the parameters that get the inputs' DataFrames; others have defaults."""
    parameters = (*function.args.posonlyargs, *function.args.args)
    names = [parameter.arg for parameter in parameters if parameter.arg not in SERVICES]
    return set(names[: len(bolt.inputs)])


def _kind(value: ast.expr, frames: set[str]) -> str | None:
    """Return what ``frame.….writeStream.…`` is."""
    root, attributes = chain(value)
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
    """Return whether a function whose last statement this is ends there, and has done nothing."""
    if isinstance(last, ast.Pass):
        return True
    return isinstance(last, ast.Expr) and (
        isinstance(last.value, ast.Constant) or _kind(last.value, frames) in {"frame", "writer"}
    )
