"""What the source of a script says of its topology, without running it.

A script may do anything while it runs, so it is run once, by its worker, which takes Spark to
start. But most faults stand in the source: a module that is not there, an input that nobody
defined, a query that its bolt starts. These are found here within a tenth of a second.

The source is read, never executed: of a decorated function a copy with the same parameters and no
body is given to a real `Topology`, which says what it has always said. Where the source leaves open
what will be (components added in a loop, an input that is computed), nothing is said: what is
reported here, the worker would find as well, only later.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.machinery
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from stormkeeper.errors import TopologyError
from stormkeeper.topology import faults
from stormkeeper.topology.component import SERVICES, Component
from stormkeeper.topology.plan import plan
from stormkeeper.topology.topology import TOPOLOGY_NAME, Topology, on_declared

#: Where a script imports `Topology` from.
MODULES = ("stormkeeper.topology", "stormkeeper.topology.topology")

#: A script with one of these may find modules where nobody else does.
_OWN_WAY_TO_MODULES = re.compile(
    rb"\bsys\.(path|modules|meta_path)\b|\bsite\b|\bimportlib\b|\bpip\b"
)

_BODY = "def {name}({parameters}): pass"


def check(script: Path, py_files: Sequence[Path] = ()) -> None:
    """Look for faults in the source of a script.

    Parameters
    ----------
    script
        A topology, or any PySpark script.
    py_files
        Modules, and archives of modules, that it can import besides those beside it and the
        installed ones.

    Raises
    ------
    TopologyError
        For the first fault; the message begins with the script and the line.
    """
    try:
        source = script.read_bytes()
    except OSError as error:
        raise TopologyError(f"{script} cannot be read: {error.strerror}") from error
    try:
        tree = parsed(source)
    except SyntaxError as error:
        raise _at(script, error.lineno, _syntax(error)) from error
    except (ValueError, RecursionError):
        return
    if not _OWN_WAY_TO_MODULES.search(source):
        for node, name in _imports(tree.body):
            if not _is_there(name, [script.resolve().parent, *py_files]):
                raise _at(script, node.lineno, faults.missing_module(name))
    with contextlib.suppress(_UndecidedError):
        _Reading(script, tree).check()


def parsed(source: bytes) -> ast.Module:
    """Return the syntax tree; what there is to warn of, running it will say."""
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source)


def declared_name(source: bytes) -> str | None:
    """Return the name that the source of a script gives to its one topology, None where unclear.

    Examples
    --------
    >>> declared_name(b"from stormkeeper.topology import Topology; t = Topology('word-count')")
    'word-count'
    """
    try:
        tree = parsed(source)
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


def _at(script: Path, line: int | None, message: str) -> TopologyError:
    where = f", line {line}" if line else ""
    return TopologyError(f"{script}{where}: {message}")


def _syntax(error: SyntaxError) -> str:
    text = (error.text or "").rstrip()
    return f"{error.msg}\n    {text.strip()}" if text else error.msg


def _imports(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the modules that are imported whatever happens, with where they are."""
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node, node.module


def _is_there(name: str, places: Sequence[Path]) -> bool:
    package = name.partition(".")[0]
    if any(place.suffix == ".py" and place.stem == package for place in places):
        return True
    paths = [str(place) for place in places]
    with contextlib.suppress(ImportError, ValueError):
        if importlib.machinery.PathFinder.find_spec(package, paths) is not None:
            return True
    try:
        # Of a name without a dot it imports nothing.
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # ``__main__`` has no specification
        return package == "__main__"


class _UndecidedError(Exception):
    """Only running the script will tell."""


class _Reading:
    """Makes the topology that the source of a script describes, and looks at its functions."""

    def __init__(self, script: Path, tree: ast.Module) -> None:
        self._script = script
        self._tree = tree
        self._called = _names_of_topology(tree)
        self._name = ""
        self._topology: Topology | None = None
        self._made: ast.stmt | None = None
        #: What the names of the module stand for, as far as that is known.
        self._names: dict[str, Any] = {}
        self._functions: dict[str, ast.FunctionDef] = {}
        self._used = 0

    def check(self) -> None:
        for node in self._tree.body:
            self._statement(node)
        if self._topology is None:
            raise _UndecidedError
        uses = [n for n in ast.walk(self._tree) if isinstance(n, ast.Name) and n.id == self._name]
        if len(uses) != self._used:  # it is handed on, or added to in another way
            raise _UndecidedError
        self._plan()

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign | ast.AnnAssign) and self._makes_topology(node.value):
            self._make(node, cast("ast.Call", node.value))
        elif isinstance(node, ast.FunctionDef):
            self._function(node)
        else:
            for name in _names_bound(node):
                self._names[name] = _UNKNOWN

    def _makes_topology(self, value: ast.expr | None) -> bool:
        return isinstance(value, ast.Call) and ast.unparse(value.func) in self._called

    def _make(self, node: ast.Assign | ast.AnnAssign, call: ast.Call) -> None:
        target, *others = node.targets if isinstance(node, ast.Assign) else [node.target]
        if self._topology is not None or others or not isinstance(target, ast.Name):
            raise _UndecidedError
        name = _first_argument(call)
        # Whatever is computed is left to the worker.
        made = self._said(node, lambda: _unheard(name if name is not None else "topology"))
        self._name, self._topology, self._made, self._used = target.id, made, node, 1

    def _function(self, node: ast.FunctionDef) -> None:
        self._names[node.name] = _no_component
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            method = call.func if call is not None else decorator
            if not self._is_method(method):
                continue
            if len(node.decorator_list) > 1 or self._topology is None:
                raise _UndecidedError
            component = self._component(node, cast("ast.Attribute", method).attr, call)
            self._names[node.name] = component
            self._functions[component.id] = node
            self._used += 1

    def _is_method(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and bool(self._name)
            and node.value.id == self._name
        )

    def _component(self, node: ast.FunctionDef, kind: str, call: ast.Call | None) -> Component:
        if kind not in {"spout", "bolt"}:
            raise _UndecidedError
        decorate = getattr(self._topology, kind)
        function = _empty(node)
        if call is None:
            return self._checked(self._said(node, lambda: decorate(function)))
        given = [self._input(argument) for argument in call.args]
        settings = {k.arg: self._setting(k) for k in call.keywords if k.arg is not None}
        if len(settings) < len(call.keywords):
            raise _UndecidedError
        decorated = self._said(call, lambda: decorate(*given, **settings))
        return self._checked(self._said(node, lambda: decorated(function)))

    def _checked(self, made: object) -> Component:
        if not isinstance(made, Component):  # ``@topology.bolt`` alone gives a decorator
            raise _UndecidedError
        return made

    def _said(self, node: ast.stmt | ast.expr, call: Callable[[], Any]) -> Any:
        """Return what `call` returns; let what it says begin with the line."""
        try:
            return call()
        except (TopologyError, TypeError) as error:
            raise _at(self._script, node.lineno, str(error)) from error

    def _input(self, argument: ast.expr) -> Any:
        if isinstance(argument, ast.Constant):
            return argument.value
        if isinstance(argument, ast.List | ast.Tuple):
            return [self._input(element) for element in argument.elts]
        if not isinstance(argument, ast.Name) or hasattr(builtins, argument.id):
            raise _UndecidedError
        if argument.id in self._names:
            if self._names[argument.id] is _UNKNOWN:
                raise _UndecidedError
            return self._names[argument.id]
        if "*" in self._names or argument.id == self._name:
            raise _UndecidedError
        return argument.id  # which `Topology` finds to be unknown, and names the nearest

    def _setting(self, keyword: ast.keyword) -> Any:
        try:
            return ast.literal_eval(keyword.value)
        except ValueError:
            if keyword.arg == "parallelism":
                return 1
            raise _UndecidedError from None

    def _plan(self) -> None:
        assert self._topology is not None
        topology = self._topology
        read = {source for c in topology.components.values() for source in c.inputs}
        unread = [i for i, c in topology.components.items() if c.kind == "spout" and i not in read]
        where = self._functions[unread[0]] if unread else self._made
        assert where is not None
        self._said(where, lambda: plan(topology))
        for started in _starts(self._tree.body):
            self._fault(started, faults.starts_beside(topology.name))
        for id_, component in topology.components.items():
            if component.kind == "bolt":
                self._bolt(component, self._functions[id_], is_read=id_ in read)

    def _bolt(self, component: Component, function: ast.FunctionDef, *, is_read: bool) -> None:
        id_ = component.id
        for started in _starts(function.body):
            self._fault(started, faults.starts_itself(id_))
        returned = [n.value for n in _own(function) if isinstance(n, ast.Return) and n.value]
        if not returned and not is_read:
            if not any(
                isinstance(n, ast.Raise | ast.Yield | ast.YieldFrom) for n in _own(function)
            ):
                self._fault(function, faults.no_writer(id_, faults.NOTHING))
            return
        if len(returned) != 1:
            return
        frames = _frames(function, component)
        root, attributes = _chain(returned[0])
        if root not in frames or any(root in _names_bound(node) for node in function.body):
            return
        if is_read and "writeStream" in attributes:
            self._fault(returned[0], faults.writer_read(id_))
        if not is_read and "writeStream" not in attributes:
            self._fault(returned[0], faults.frame_unread(id_))

    def _fault(self, node: ast.stmt | ast.expr, message: str) -> None:
        raise _at(self._script, node.lineno, message)


#: What a name stands for that only running the script would tell.
_UNKNOWN = object()


def _no_component() -> None:
    """Stand for a function of the script that is no component."""


def _unheard(name: str) -> Topology:
    """Make a topology that no worker hears of."""
    token = on_declared.set(None)
    try:
        return Topology(name)
    finally:
        on_declared.reset(token)


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
    function = names[node.name]
    assert callable(function)
    return cast("Callable[..., Any]", function)


_NAMED = (
    ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.ExceptHandler
    | ast.MatchAs
    | ast.MatchStar
)


def _names_bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement may bind, and ``*`` for all of a module's."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.alias):
            yield part.asname or part.name.partition(".")[0]
        elif isinstance(part, _NAMED) and part.name:
            yield part.name


def _frames(function: ast.FunctionDef, component: Component) -> set[str]:
    """Return the parameters that get the inputs' DataFrames; others have defaults."""
    parameters = (*function.args.posonlyargs, *function.args.args)
    names = [parameter.arg for parameter in parameters if parameter.arg not in SERVICES]
    return set(names[: len(component.inputs)])


def _own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield what stands in a function, but for functions within it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            left.extend(ast.iter_child_nodes(node))


def _starts(body: Sequence[ast.stmt]) -> Iterator[ast.expr]:
    """Yield the calls that start a query, whatever happens: ``….writeStream….start()``."""
    for node in body:
        value = node.value if isinstance(node, ast.Expr | ast.Assign | ast.Return) else None
        if isinstance(value, ast.Call):
            attributes = _chain(value)[1]
            if attributes[:1] in (["start"], ["toTable"]) and "writeStream" in attributes:
                yield value


def _chain(node: ast.expr) -> tuple[str | None, list[str]]:
    """Return the name that ``name.a().b.c()`` begins with, and what follows, the last first."""
    attributes = []
    while True:
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        else:
            return (node.id if isinstance(node, ast.Name) else None), attributes
