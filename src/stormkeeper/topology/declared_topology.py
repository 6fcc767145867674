"""The topology that a script's source declares, built without running the script.

A real `Topology` gets a copy of each decorated function, without the body, and finds the faults.
The checks go on only while the source shows all uses of the topology's name, and all code in
between.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeGuard, TypeVar, cast

from stormkeeper.errors import TopologyError
from stormkeeper.topology import faults
from stormkeeper.topology.plan import plan
from stormkeeper.topology.topology import SERVICES, Component, Topology, unheard

#: End a script early, run code from elsewhere, or bind names invisibly.
_OPEN = frozenset(
    """
    SystemExit _exit abort exit quit execl execle execlp execv execve execvp
    __import__ eval exec exec_module import_module run_module run_path
    __builtins__ __dict__ __main__ _getframe builtins currentframe globals locals modules setattr
    vars
    """.split()  # noqa: SIM905  (a line for each fills the page)
)

_BODY = "def {name}({parameters}): pass"

_Thing = TypeVar("_Thing")


class FaultError(TopologyError):
    """A fault of a topology, with the line of its script."""

    def __init__(self, node: ast.stmt | ast.expr, message: str) -> None:
        super().__init__(message)
        self.line = node.lineno


class _UndecidedError(Exception):
    """The source leaves the result open."""


def check_described(
    tree: ast.Module, called: Collection[str], foreign: Collection[ast.AST]
) -> None:
    """Raise `FaultError` for the first fault of the topology that a script declares.

    `called` are the script's names for `Topology`, `foreign` imports of modules that may do
    anything.
    """
    with contextlib.suppress(_UndecidedError):
        _Described(tree, _only(called), foreign).check()


def first_argument(call: ast.Call) -> str | None:
    """Return the name in a call of `Topology`, None if computed."""
    named = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    argument = next(iter([*call.args, *named]), None)
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    return None


class _Described:
    def __init__(self, tree: ast.Module, class_: str, foreign: Collection[ast.AST]) -> None:
        self._body = tree.body
        self._made, self._name = _the_topology(tree, class_)
        self._topology: Topology | None = None
        #: Values of the module's names, if known.
        self._names: dict[str, Any] = {}
        self._functions: dict[str, ast.FunctionDef] = {}
        self._foreign = foreign
        names = set(bound(part for node in foreign for part in ast.walk(node)))
        if "*" in names:
            raise _UndecidedError
        #: Names whose use may end the script, or change the values of other names.
        self._open = made_of(_OPEN, self._body)
        names.update(node.name for node in self._body if _adds(node, self._name))
        #: Names whose use may also change the topology or a component.
        self._reaching = made_of(_OPEN | names, self._body)
        self._globals = set(bound(n for n in ast.walk(tree) if isinstance(n, ast.Global)))

    def check(self) -> None:
        for node in self._body:
            if node is self._made:
                self._make(node)
            elif _adds(node, self._name):
                self._add(node)
            else:
                self._pass([node])
                if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                    self._names[node.name] = _empty(node)
        self._plan()

    def _pass(self, nodes: Iterable[ast.AST]) -> None:
        parts = list(within(nodes))
        running = mentioned(part for part in parts if not isinstance(part, ast.alias))
        if running & (self._open if self._topology is None else self._reaching):
            raise _UndecidedError
        if self._topology is not None and any(part in self._foreign for part in parts):
            raise _UndecidedError
        names = set(bound(parts))
        if "*" in names:
            names.update(self._names)
        self._names.update(dict.fromkeys(names, _UNKNOWN))

    def _make(self, node: ast.Assign | ast.AnnAssign) -> None:
        assert isinstance(node.value, ast.Call)
        self._pass([*node.value.args, *node.value.keywords])
        name = first_argument(node.value)
        # The worker checks a computed name.
        self._topology = _said(node, lambda: unheard(name if name is not None else "topology"))

    def _add(self, node: ast.FunctionDef) -> None:
        (decorator,) = node.decorator_list
        self._pass(evaluated(node))
        call = decorator if isinstance(decorator, ast.Call) else None
        component = self._component(node, _method(decorator).attr, call)
        self._names[node.name] = component
        self._functions[component.id] = node

    def _component(self, node: ast.FunctionDef, kind: str, call: ast.Call | None) -> Component:
        if self._topology is None or kind not in {"spout", "bolt"}:
            raise _UndecidedError
        decorate = getattr(self._topology, kind)
        function = _empty(node)
        if call is None:
            return _component(_said(node, lambda: decorate(function)))
        self._pass(call.keywords)
        given = [self._input(argument) for argument in call.args]
        settings = {k.arg: _setting(k) for k in call.keywords if k.arg is not None}
        if len(settings) < len(call.keywords):
            raise _UndecidedError
        decorated = _said(call, lambda: decorate(*given, **settings))
        return _component(_said(node, lambda: decorated(function)))

    def _input(self, argument: ast.expr) -> Any:
        if isinstance(argument, ast.Constant):
            return argument.value
        if isinstance(argument, ast.List | ast.Tuple):
            return [self._input(element) for element in argument.elts]
        if not isinstance(argument, ast.Name) or hasattr(builtins, argument.id):
            raise _UndecidedError
        name = argument.id
        if name in self._globals or self._names.get(name) is _UNKNOWN:
            raise _UndecidedError
        if name in self._names:
            return self._names[name]
        if "*" in self._names:
            raise _UndecidedError
        return name  # `Topology` reports the unknown name with the closest one

    def _plan(self) -> None:
        topology = self._topology
        assert topology is not None
        read = {source for c in topology.components.values() for source in c.inputs}
        unread = [i for i, c in topology.components.items() if c.kind == "spout" and i not in read]
        where = self._functions[unread[0]] if unread else self._made
        _said(where, lambda: plan(topology))
        of_spark = made_of(self._imported_from_pyspark(), self._body)
        for started in _starts(self._body):
            if chain(started)[0] in of_spark:
                raise FaultError(started, faults.starts_beside(topology.name))
        for id_, component in topology.components.items():
            if component.kind == "bolt":
                fault = returned_fault(component, self._functions[id_], is_read=id_ in read)
                if fault is not None:
                    raise FaultError(*fault)

    def _imported_from_pyspark(self) -> set[str]:
        return {
            name
            for node in self._body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark.")
            for name in bound(node.names)
        }


def _the_topology(tree: ast.Module, class_: str) -> tuple[ast.Assign | ast.AnnAssign, str]:
    made = _only(
        [
            node
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == class_
        ]
    )
    target = _only(made.targets) if isinstance(made, ast.Assign) else made.target
    if not isinstance(target, ast.Name):
        raise _UndecidedError
    root, name = class_.partition(".")[0], target.id
    uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    if isinstance(made, ast.AnnAssign):
        uses.subtract(mentioned(ast.walk(made.annotation)))
    bindings = Counter(bound(ast.walk(tree)))
    adding = sum(_adds(node, name) for node in tree.body)
    # Otherwise a name is bound again, passed on, or used in another way.
    if not uses[root] == bindings[root] == bindings[name] == uses[name] - adding == 1:
        raise _UndecidedError
    return made, name


def _adds(node: ast.stmt, topology: str) -> TypeGuard[ast.FunctionDef]:
    if not isinstance(node, ast.FunctionDef) or len(node.decorator_list) != 1:
        return False
    method = _method(node.decorator_list[0])
    return (
        isinstance(method, ast.Attribute)
        and isinstance(method.value, ast.Name)
        and method.value.id == topology
    )


def _method(decorator: ast.expr) -> Any:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _only(things: Collection[_Thing]) -> _Thing:
    if len(things) != 1:
        raise _UndecidedError
    return next(iter(things))


def _component(made: object) -> Component:
    if not isinstance(made, Component):  # ``@topology.bolt`` alone gives a decorator
        raise _UndecidedError
    return made


def _said(node: ast.stmt | ast.expr, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (TopologyError, TypeError) as error:
        raise FaultError(node, str(error)) from error


def _setting(keyword: ast.keyword) -> Any:
    try:
        return ast.literal_eval(keyword.value)
    except (TypeError, ValueError):
        if keyword.arg == "parallelism":
            return 1
        raise _UndecidedError from None


#: Known only at run time.
_UNKNOWN = object()


def _empty(node: ast.FunctionDef) -> Callable[..., Any]:
    """Return a function with this name and these parameters, all defaults None, and no body."""
    arguments = ast.parse(ast.unparse(node.args).join(("def f(", "): pass"))).body[0]
    assert isinstance(arguments, ast.FunctionDef)
    given = arguments.args
    for argument in ast.walk(given):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    nothing = ast.Constant(None)
    given.defaults = [nothing for _ in given.defaults]
    given.kw_defaults = [default and nothing for default in given.kw_defaults]
    names: dict[str, Any] = {}
    exec(_BODY.format(name=node.name, parameters=ast.unparse(given)), names)
    return cast("Callable[..., Any]", names[node.name])


def _starts(body: Collection[ast.stmt]) -> Iterable[ast.expr]:
    for node in body:
        value = node.value if isinstance(node, ast.Expr | ast.Assign) else None
        if isinstance(value, ast.Call):
            attributes = chain(value)[1]
            if attributes[-1:] in (["start"], ["toTable"]) and "writeStream" in attributes:
                yield value


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


def returned_fault(
    bolt: Component, function: ast.FunctionDef, *, is_read: bool
) -> tuple[ast.stmt | ast.expr, str] | None:
    """Return where a bolt returns what the worker will refuse, and why; None if unknown."""
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
    parameters = (*function.args.posonlyargs, *function.args.args)
    names = [parameter.arg for parameter in parameters if parameter.arg not in SERVICES]
    return set(names[: len(bolt.inputs)])


def _kind(value: ast.expr, frames: set[str]) -> str | None:
    """Return "frame", "writer" or "query" for ``frame.….writeStream.…``, None if unknown."""
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
    if isinstance(last, ast.Pass):
        return True
    return isinstance(last, ast.Expr) and (
        isinstance(last.value, ast.Constant) or _kind(last.value, frames) in {"frame", "writer"}
    )


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
    """Return the names of variables, attributes and imports."""
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
