"""Names in a syntax tree: bound, mentioned, and derived from others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

_NAMED = (
    ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.ExceptHandler
    | ast.MatchAs
    | ast.MatchStar
)


def evaluated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """Yield a function's defaults and annotations, which are evaluated at its definition."""
    given = function.args
    yield from filter(None, [*given.defaults, *given.kw_defaults, function.returns])
    for part in ast.walk(given):
        if isinstance(part, ast.arg) and part.annotation is not None:
            yield part.annotation


def within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes that run where `nodes` run; of a function its decorators and defaults."""
    left = list(nodes)
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left += [*node.decorator_list, *evaluated(node)]
        else:
            left += ast.iter_child_nodes(node)


def bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that `nodes` themselves bind or delete; ``*`` for all of a module's."""
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        elif isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, _NAMED) and node.name:
            yield node.name


def mentioned(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names in `nodes`: of variables, attributes and imports."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.alias):
            names.add(node.name)
    return names


def made_of(names: Iterable[str], body: Sequence[ast.stmt]) -> set[str]:
    """Return `names`, and the names that a module's statements derive from them."""
    found = set(names)
    left = [(set(bound(within([node]))), mentioned(ast.walk(node))) for node in body]
    while reached := [made for made, of in left if of & found and not made <= found]:
        found.update(*reached)
    return found


def chain(node: ast.expr) -> tuple[str | None, list[str]]:
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
