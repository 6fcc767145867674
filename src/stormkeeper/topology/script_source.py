"""Checks the source of a script, without running it.

Spark takes seconds to start, but most faults show in the source. A user cannot override a refusal,
so only a script that the worker would certainly refuse, or that would end at once, is refused.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import importlib.util
import itertools
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from stormkeeper.errors import TopologyError
from stormkeeper.topology import faults
from stormkeeper.topology.declared_topology import (
    FaultError,
    bound,
    chain,
    check_described,
    made_of,
    mentioned,
    within,
)

#: A script imports `Topology` from these.
MODULES = ("stormkeeper.topology", "stormkeeper.topology.topology")

#: Besides Python's own, packages that neither bring modules from elsewhere nor reach into a
#: topology that was not passed to them.
_KNOWN = frozenset({"py4j", "pyspark", "stormkeeper"})


#: The writer's option, and the end of Spark's setting, in lower case.
_CHECKPOINT = "checkpointlocation"


def check(script: Path, py_files: Sequence[Path] = (), *, runs_here: bool = True) -> None:
    """Raise `TopologyError` for the first fault in a script's source, with the script and the line.

    `py_files` are modules and archives that come with the script. Without `runs_here`, no module
    counts as missing.
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
    modules = Modules([script.resolve().parent, *py_files])
    for node, name in _first_imports(tree.body):
        if runs_here and not modules.has(name):
            raise _at(script, node.lineno, faults.missing_module(name, sys.executable))
        if not modules.knows(name):
            break  # the module may bring others
    for node, fault in _unsupported(tree):
        raise _at(script, node.lineno, fault)
    called = _names_of_topology(tree)
    foreign = {node for node in ast.walk(tree) if modules.unknown(node)}
    try:
        check_described(tree, called, foreign)
    except FaultError as error:
        raise _at(script, error.line, str(error)) from error
    except RecursionError:
        return


def parsed(source: bytes) -> ast.Module:
    """Return the syntax tree, without Python's warnings."""
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source)


def script_name(script: Path) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", script.stem).strip("-") or "topology"


def imports_topology(script: Path, py_files: Sequence[Path] = ()) -> bool:
    """Return whether a script, or a module that comes with it, imports `stormkeeper.topology`.

    If not, only an installed package can make a topology for the script.
    """
    modules = Modules([script.resolve().parent, *py_files])
    return any(f"{name}.".startswith(f"{MODULES[0]}.") for name in reached(script, modules))


def names_checkpoints(script: Path, py_files: Sequence[Path] = ()) -> bool | None:
    """Return whether a script's queries name checkpoints: all (True), none (False), or some (None).

    Compares the counts of checkpoints and of ``writeStream`` in the source.
    """
    trees = _trees(script, py_files)
    if not trees:
        return None
    nodes = [node for tree in trees for node in ast.walk(tree)]
    writes = sum(isinstance(node, ast.Attribute) and node.attr == "writeStream" for node in nodes)
    named = sum(
        (isinstance(node, ast.Constant) and _is_checkpoint(str(node.value)))
        or (isinstance(node, ast.keyword) and str(node.arg).lower() == _CHECKPOINT)
        for node in nodes
    )
    if not named:
        return False
    return True if named >= writes else None


def _is_checkpoint(text: str) -> bool:
    name = text.lower()
    return name == _CHECKPOINT or (name.endswith(f".{_CHECKPOINT}") and len(name.split()) == 1)


def modules_beside(script: Path, py_files: Sequence[Path] = ()) -> list[Path]:
    """Return the modules beside a script that it may import, itself or through others."""
    folder = script.resolve().parent
    names = {name.partition(".")[0] for name in reached(script, Modules([folder, *py_files]))}
    found = set()
    for name in names:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
            if spec is not None and spec.origin is not None:
                origin = Path(spec.origin)
                found.add(origin.parent if spec.submodule_search_locations else origin)
            # A folder without __init__.py is a package only if no other module has its name.
            elif spec is not None and not Modules([*py_files]).has(name):
                found.add(folder / name)
    return sorted(found)


def reached(script: Path, modules: Modules) -> Iterator[str]:
    """Yield the modules that a script may import, itself or through modules that come with it.

    Raises `OSError` if the script is unreadable.
    """
    package = modules.package(script)
    left: list[tuple[bytes | None, str]] = [(script.read_bytes(), package)]
    seen = set[str]()
    if package:  # imported before its script runs
        seen.add(package)
        yield package
        left += modules.sources(package)
    while left:
        source, package = left.pop()
        try:
            tree = parsed(source or b"")
        except (SyntaxError, ValueError, RecursionError):
            continue
        for name in _imported(tree, package):
            if name not in seen:
                seen.add(name)
                yield name
                left += modules.sources(name)


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the modules that a module of `package` may import: two for ``from a import b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):
                base = "." * node.level + (node.module or "")
                absolute = importlib.util.resolve_name(base, package)
                yield absolute
                yield from (f"{absolute}.{alias.name}" for alias in node.names)


def _names_of_topology(tree: ast.Module) -> set[str]:
    return {name for node in ast.walk(tree) for name in _names_imported(node)}


def _names_imported(node: ast.AST) -> Iterator[str]:
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


def _unsupported(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr | ast.Assign):
            continue
        if any(f"{name}.".startswith("pyspark.pipelines.") for name in _imports_of(node)):
            yield node, faults.PIPELINES
        for call in ast.walk(node):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "remote"
                and any(_is_text(argument, "sc://") for argument in call.args)
            ):
                yield node, faults.CONNECT


def _imports_of(node: ast.stmt) -> Iterator[str]:
    return _imported(ast.Module([node], []), "")


def _is_text(node: ast.AST, beginning: str) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).startswith(beginning)


def formats(script: Path, py_files: Sequence[Path] = ()) -> set[str]:
    """Return the arguments of ``format`` in a script, as far as the source shows them.

    Empty if the script names jars or packages for Spark itself.
    """
    found = set[str]()
    for tree in _trees(script, py_files):
        for node in ast.walk(tree):
            if _is_text(node, "spark.jars") or _is_text(node, "spark.driver.extraClassPath"):
                return set()
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == "format" and len(node.args) == 1:
                [given] = node.args
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    found.add(given.value)
    return found


def _trees(script: Path, py_files: Sequence[Path]) -> list[ast.Module]:
    try:
        return _parsed_code(script, Modules([script.resolve().parent, *py_files]))[1]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []


def _parsed_code(script: Path, modules: Modules) -> tuple[set[str], list[ast.Module], bool]:
    """Return a script's imports, all its syntax trees, and whether no tree is missing.

    Compiled modules have no tree.
    """
    names = {*reached(script, modules)}
    sources = {source for name in names for source, _ in modules.sources(name)}
    trees = [parsed(source) for source in {script.read_bytes(), *sources} if source is not None]
    return names, trees, None not in sources


def _at(script: Path, line: int | None, message: str) -> TopologyError:
    where = f", line {line}" if line else ""
    return TopologyError(f"{script}{where}: {message}")


def _syntax(error: SyntaxError) -> str:
    text = (error.text or "").rstrip()
    return f"{error.msg}\n    {text.strip()}" if text else error.msg


def _first_imports(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node, node.module
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return


class Modules:
    """The modules that a script finds: in `places`, then the installed ones."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = places

    def package(self, script: Path) -> str:
        """Return the package that a script in a subfolder belongs to; empty at the top."""
        folder = script.resolve().parent
        for place in self._places:
            if folder.is_relative_to(place.resolve()) and folder != place.resolve():
                return ".".join(folder.relative_to(place.resolve()).parts)
        return ""

    def has(self, name: str) -> bool:
        package = name.partition(".")[0]
        # Installed wherever scripts run, but perhaps not here.
        if self.brings(package) or package in _KNOWN:
            return True
        try:
            # For a name without a dot, this imports nothing.
            return importlib.util.find_spec(package) is not None
        except ImportError:
            return False
        except ValueError:  # imported already, without a spec, as ``__main__``
            return True

    def knows(self, name: str) -> bool:
        """Return whether importing a module certainly has no effect on others."""
        package = name.partition(".")[0]
        known = package in _KNOWN or package in sys.stdlib_module_names
        return known and not self.brings(package)

    def brings(self, package: str) -> bool:
        if any(place.suffix == ".py" and place.stem == package for place in self._places):
            return True
        with contextlib.suppress(ImportError, ValueError):
            places = [str(place) for place in self._places]
            return importlib.machinery.PathFinder.find_spec(package, places) is not None
        return False

    def sources(self, name: str) -> Iterator[tuple[bytes | None, str]]:
        """Yield the sources of a module that comes with the script, and of its packages.

        Each comes with its package for relative imports; a compiled module is None.
        """
        for place in self._places:
            if place.suffix == ".py" and place.stem == name:
                yield place.read_bytes(), ""
        places = [str(place) for place in self._places]
        for part in itertools.accumulate(name.split("."), "{}.{}".format):
            package, _, last = part.rpartition(".")
            with contextlib.suppress(ImportError, ValueError, OSError, SyntaxError):
                # A whole name needs the parent's import if the folder has no __init__.py.
                found = importlib.machinery.PathFinder.find_spec(last, places)
                if found is None:
                    return
                inner = found.submodule_search_locations
                places = list(inner or ())
                # All of Python's loaders have the method, though not all of their types.
                source = getattr(found.loader, "get_source", lambda _: "")(last)
                text = None if source is None else source.encode()
                yield text, package if inner is None else part

    def unknown(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return not all(self.knows(alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            return bool(node.level) or not self.knows(node.module or "")
        return False


_STARTS = ("writeStream", "DataStreamWriter")

#: Python's modules that run code from elsewhere.
_RUNNERS = frozenset(
    {"builtins", "ctypes", "importlib", "marshal", "pickle", "pkgutil", "runpy", "shelve"}
    | {"zipimport"}
)
#: Names that reach any other name; those of py4j's objects begin with ``_j``.
_DYNAMIC = frozenset(
    {"__builtins__", "__dict__", "__getattribute__", "__import__", "attrgetter", "eval", "exec"}
    | {"getattr", "globals", "locals", "methodcaller", "modules", "vars"}
)
_OF_THE_JVM = ("_j", "_gateway", "_sc")

#: Their functions call nothing of the script that is not passed to them.
_HARMLESS = frozenset(
    {"collections", "dataclasses", "datetime", "decimal", "enum", "logging", "os", "pathlib"}
    | {"pyspark", "re", "typing"}
)
_HARMLESS_CALLS = frozenset({"dict", "float", "frozenset", "int", "list", "set", "str", "tuple"})
_HARMLESS_DECORATORS = frozenset({"classmethod", "property", "staticmethod"})
#: Run only if a class or its object is used explicitly.
_HARMLESS_METHODS = frozenset(
    {"__call__", "__enter__", "__eq__", "__exit__", "__hash__", "__init__", "__post_init__"}
    | {"__repr__", "__str__"}
)
_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: May run code of the script without a visible call.
_RUNNING = (
    *(ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.AugAssign, ast.Assert),
    *(ast.Raise, ast.Match, ast.Delete, ast.comprehension),
)


def check_starts(script: Path, py_files: Sequence[Path] = ()) -> None:
    """Raise `TopologyError` for a script that certainly starts nothing; see `check`.

    Scripts with this package, with modules from elsewhere, or with computed names pass.
    """
    modules = Modules([script.resolve().parent, *py_files])
    try:
        names, trees, is_all = _parsed_code(script, modules)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    if not is_all or not all(_is_harmless(name, modules) for name in names):
        return
    if not any(map(_may_stream, trees)):
        raise TopologyError(faults.starts_nothing(script))
    harmless = {package for package in _HARMLESS if not modules.brings(package)}
    if all(_only_defines(tree, harmless) for tree in trees):
        raise TopologyError(
            f"{script} only defines functions and classes: nothing starts when it is run. Call at"
            " its end what starts the streaming query, or submit the script that does"
        )


def _is_harmless(name: str, modules: Modules) -> bool:
    package = name.partition(".")[0]
    if modules.brings(package) or package == "pyspark":
        return True
    return package in sys.stdlib_module_names and package not in _RUNNERS


def _may_stream(tree: ast.Module) -> bool:
    names = mentioned(ast.walk(tree))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return (
        not names.isdisjoint({*_STARTS, *_DYNAMIC})
        or any(name.startswith(_OF_THE_JVM) for name in names)
        or any(isinstance(text, str) and _STARTS[0] in text for text in texts)
    )


def _only_defines(tree: ast.Module, harmless: Collection[str]) -> bool:
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
