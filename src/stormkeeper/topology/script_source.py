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
from collections.abc import Iterator, Sequence
from pathlib import Path

from stormkeeper.errors import TopologyError
from stormkeeper.topology import faults

#: A script imports `Topology` from these.
MODULES = ("stormkeeper.topology", "stormkeeper.topology.topology")

#: Besides Python's own, packages that do not bring modules from elsewhere.
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


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that code of `package` may import: two for ``from a import b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):
                base = "." * node.level + (node.module or "")
                absolute = importlib.util.resolve_name(base, package)
                yield absolute
                yield from (f"{absolute}.{alias.name}" for alias in node.names)


def _unsupported(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr | ast.Assign):
            continue
        if any(f"{name}.".startswith("pyspark.pipelines.") for name in _imported(node, "")):
            yield node, faults.PIPELINES
        for call in ast.walk(node):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "remote"
                and any(_is_text(argument, "sc://") for argument in call.args)
            ):
                yield node, faults.CONNECT


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


def _is_harmless(name: str, modules: Modules) -> bool:
    package = name.partition(".")[0]
    if modules.brings(package) or package == "pyspark":
        return True
    return package in sys.stdlib_module_names and package not in _RUNNERS


def _may_stream(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                if name in _STARTS or name in _DYNAMIC or name.startswith(_OF_THE_JVM):
                    return True
            case ast.Constant(value=str(text)) if _STARTS[0] in text:
                return True
    return False
