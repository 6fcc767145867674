"""Scripts of which the source says that they start nothing when they are run.

A worker ends each time at once that runs a module of functions, or a script without streaming. Such
a script is refused before it is sent, but only where nothing is left open: a module from elsewhere
may start a query, and so may whatever is looked up by a name that is computed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from stormkeeper.errors import TopologyError
from stormkeeper.topology import faults
from stormkeeper.topology.source import Modules, parsed, reached
from stormkeeper.topology.syntax import bound, chain, made_of, mentioned, within

#: What begins a streaming query of Spark's.
_STARTS = ("writeStream", "DataStreamWriter")

#: Modules of Python's that run code which stands elsewhere.
_RUNNERS = frozenset(
    {"builtins", "ctypes", "importlib", "marshal", "pickle", "pkgutil", "runpy", "shelve"}
    | {"zipimport"}
)
#: Names with which anything can be reached; names of py4j's objects begin with ``_j``.
_DYNAMIC = frozenset(
    {"__builtins__", "__dict__", "__getattribute__", "__import__", "attrgetter", "eval", "exec"}
    | {"getattr", "globals", "locals", "methodcaller", "modules", "vars"}
)
_OF_THE_JVM = ("_j", "_gateway", "_sc")

#: Modules whose functions call nothing of the script's that is not handed to them.
_HARMLESS = frozenset(
    {"collections", "dataclasses", "datetime", "decimal", "enum", "logging", "os", "pathlib"}
    | {"pyspark", "re", "typing"}
)
_HARMLESS_CALLS = frozenset({"dict", "float", "frozenset", "int", "list", "set", "str", "tuple"})
_HARMLESS_DECORATORS = frozenset({"classmethod", "property", "staticmethod"})
#: Methods that run only when a class or one of its objects is called, or an object shown.
_HARMLESS_METHODS = frozenset(
    {"__call__", "__enter__", "__eq__", "__exit__", "__hash__", "__init__", "__post_init__"}
    | {"__repr__", "__str__"}
)
_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: What may run code of the script's without a call that is to be seen.
_RUNNING = (
    *(ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.AugAssign, ast.Assert),
    *(ast.Raise, ast.Match, ast.Delete, ast.comprehension),
)


def check(script: Path, py_files: Sequence[Path] = ()) -> None:
    """Refuse a script that certainly starts nothing; one that imports this package may.

    Parameters
    ----------
    script, py_files
        As of `stormkeeper.topology.source.check`.

    Raises
    ------
    TopologyError
        It starts nothing; the message says what to do.
    """
    fault = _fault(script, py_files)
    if fault is not None:
        raise TopologyError(fault)


def _fault(script: Path, py_files: Sequence[Path]) -> str | None:
    modules = Modules([script.resolve().parent, *py_files])
    try:
        names = {*reached(script, modules)}
        sources = {source for name in names for source, _ in modules.sources(name)}
        if None in sources or not all(_is_harmless(name, modules) for name in names):
            return None
        trees = [parsed(source) for source in {script.read_bytes(), *sources} if source is not None]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    if not any(map(_may_stream, trees)):
        return faults.starts_nothing(script)
    harmless = {package for package in _HARMLESS if not modules.brings(package)}
    if all(_only_defines(tree, harmless) for tree in trees):
        return (
            f"{script} only defines functions and classes: nothing starts when it is run. Call at"
            " its end what starts the streaming query, or submit the script that does"
        )
    return None


def _is_harmless(name: str, modules: Modules) -> bool:
    package = name.partition(".")[0]
    if modules.brings(package) or package == "pyspark":
        return True
    return package in sys.stdlib_module_names and package not in _RUNNERS


def _may_stream(tree: ast.Module) -> bool:
    """Return whether anything in a module, run or not, may begin a streaming query."""
    names = mentioned(ast.walk(tree))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return (
        not names.isdisjoint({*_STARTS, *_DYNAMIC})
        or any(name.startswith(_OF_THE_JVM) for name in names)
        or any(isinstance(text, str) and _STARTS[0] in text for text in texts)
    )


def _only_defines(tree: ast.Module, harmless: Collection[str]) -> bool:
    """Return whether a module, when it is imported or run, calls nothing of its own.

    Parameters
    ----------
    tree
        The module.
    harmless
        Packages whose functions call only what is handed to them.
    """
    parts = [*within(tree.body)]
    imported = [node for node in parts if isinstance(node, ast.Import | ast.ImportFrom)]
    theirs = {
        *bound(alias for node in imported for alias in node.names if _is_of(node, alias, harmless))
    }
    defined = [node for node in ast.walk(tree) if isinstance(node, _DEFINING)]
    brought = {*bound(alias for node in imported for alias in node.names)} - theirs
    own = made_of({node.name for node in defined} | brought, tree.body)
    if any(_is_special(node.name) for node in defined) or _STARTS[0] in mentioned(parts):
        return False
    for part in parts:
        if isinstance(part, _RUNNING):
            return False
        if isinstance(part, ast.ClassDef) and part.keywords:
            return False
        if isinstance(part, _DEFINING) and not all(
            chain(decorator)[0] in theirs | _HARMLESS_DECORATORS
            for decorator in part.decorator_list
        ):
            return False
        if isinstance(part, ast.Call) and not (
            chain(part)[0] in theirs | _HARMLESS_CALLS
            and own.isdisjoint(mentioned(_given_to(part)))
        ):
            return False
    return True


def _is_of(node: ast.Import | ast.ImportFrom, alias: ast.alias, packages: Collection[str]) -> bool:
    if isinstance(node, ast.Import):
        return alias.name.partition(".")[0] in packages
    return not node.level and (node.module or "").partition(".")[0] in packages


def _given_to(call: ast.Call) -> Iterator[ast.AST]:
    for argument in (*call.args, *call.keywords):
        yield from ast.walk(argument)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in _HARMLESS_METHODS
