"""A user's script: run like ``python SCRIPT``, and searched for the topology."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

from stormkeeper.errors import StormkeeperError, TopologyError, WorkerError
from stormkeeper.topology import script_source
from stormkeeper.topology.topology import Topology, on_declared
from stormkeeper.worker.failure import readable


def prepare(
    script: Path,
    arguments: Sequence[str] = (),
    py_files: Sequence[Path] = (),
    root: Path | None = None,
) -> None:
    """Set up this process like ``python SCRIPT ARGUMENTS``, also for Spark's Python workers.

    `root` is the first folder in ``sys.path``; default: the script's own. Raises `WorkerError` for
    a missing file, `TopologyError` for a fault in the source.
    """
    for file in (script, *py_files):
        if not file.is_file():
            what = "script" if file is script else "file"
            raise WorkerError(f"there is no {what} {file}")
    script_source.check(script, py_files if root is None else [root, *py_files])
    folder = str(script.resolve().parent if root is None else root)
    sys.argv = [str(script), *arguments]
    modules = {file.stem: str(file) for file in py_files if file.suffix == ".py"}
    sys.path[:0] = [folder, *(str(file) for file in py_files if file.suffix != ".py")]
    if modules:
        sys.meta_path.append(SingleModules(modules))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


class SingleModules:
    """An import finder for single files, by module name, without the rest of their folders."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: object = None, _: object = None) -> ModuleSpec | None:
        """Find a module, for ``sys.meta_path``."""
        file = self._files.get(name) if path is None else None
        return spec_from_file_location(name, file) if file is not None else None


def run(
    script: Path, declared: Callable[[Topology], None], root: Path | None = None
) -> dict[str, Any]:
    """Run the whole script and return the global names.

    The script stays the module ``__main__``, so that PySpark pickles its functions by value.
    `declared` gets each topology when created. Raises `WorkerError` for an exit status other than
    0, and all exceptions of the script.
    """
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    token = on_declared.set(declared)
    try:
        package = script.parent.relative_to(root).parts if root is not None else ()
        if package:
            module.__package__ = ".".join(package)
            importlib.import_module(module.__package__)
        code = compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise WorkerError(f"{script}{line_of(end, script)}: exited with {end.code!r}") from end
    finally:
        on_declared.reset(token)
    return module.__dict__


@contextlib.contextmanager
def explained(script: Path, *passed: type[BaseException]) -> Iterator[None]:
    """Turn a script's exceptions, except `passed`, into errors that name the line.

    Raises `TopologyError` for an own one without a line, and `WorkerError` for foreign exceptions.
    """
    try:
        yield
    except TopologyError as error:
        raise TopologyError(f"{script}{line_of(error, script)}: {error}") from error
    except StormkeeperError:
        raise
    except BaseException as error:  # also SystemExit, whose exit code 0 would mean completion
        if isinstance(error, passed):
            raise
        raise WorkerError(f"{script} failed:\n{readable(error)}") from error


def the_topology(names: Mapping[str, Any], made: list[Topology], script: Path) -> Topology | None:
    """Return the topology that a script defines, if any; raises `TopologyError` for several.

    Topologies among the script's global names win over the others that it has `made`.
    """
    named = {id(value): value for value in names.values() if isinstance(value, Topology)}
    found = list(named.values()) or made
    if len(found) > 1:
        raise TopologyError(
            f"{script} defines {len(found)} topologies "
            f"({', '.join(repr(topology.name) for topology in found)}): a worker runs one; put "
            "each into a script of its own"
        )
    return found[0] if found else None


def line_of(error: BaseException, script: Path) -> str:
    """Return ", line N" of the script for an error; empty if no frame is the script's."""
    lines = [
        f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(script)
    ]
    return f", line {lines[-1]}" if lines else ""
