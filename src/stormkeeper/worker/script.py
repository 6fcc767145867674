"""Runs a user's script as Python would, and finds the topology that it defines."""

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
from stormkeeper.topology import source
from stormkeeper.topology.topology import Topology, on_declared
from stormkeeper.worker.failure import readable


def prepare(
    script: Path,
    arguments: Sequence[str] = (),
    py_files: Sequence[Path] = (),
    root: Path | None = None,
) -> None:
    """Make this process look like ``python SCRIPT ARGUMENTS`` to the script.

    Spark's Python workers find modules beside the script, too. The modules of `py_files` are found
    in this process only; Spark gets them with the session (`SparkContext.addPyFile`).

    Parameters
    ----------
    script, arguments
        What is run.
    py_files
        Modules and archives of modules that it can import.
    root
        The folder that is first in ``sys.path``; the script's own if left out.

    Raises
    ------
    WorkerError
        When there is no such file.
    TopologyError
        When the source of the script has a fault.
    """
    for file in (script, *py_files):
        if not file.is_file():
            what = "script" if file is script else "file"
            raise WorkerError(f"there is no {what} {file}")
    source.check(script, py_files if root is None else [root, *py_files])
    folder = str(script.resolve().parent if root is None else root)
    sys.argv = [str(script), *arguments]
    modules = {file.stem: str(file) for file in py_files if file.suffix == ".py"}
    sys.path[:0] = [folder, *(str(file) for file in py_files if file.suffix != ".py")]
    if modules:
        sys.meta_path.append(SingleModules(modules))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


class SingleModules:
    """Finds modules in files that may be anywhere: no other file of their folders is found.

    Parameters
    ----------
    files
        The files by the modules' names.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: object = None, _: object = None) -> ModuleSpec | None:
        """Return where the module is, as every finder in ``sys.meta_path``."""
        file = self._files.get(name) if path is None else None
        return spec_from_file_location(name, file) if file is not None else None


def run(
    script: Path, declared: Callable[[Topology], None], root: Path | None = None
) -> dict[str, Any]:
    """Run the script to its end and return its global names.

    The script stays the module ``__main__`` afterwards. So PySpark sends its functions to Python
    workers by value. The workers could not import them.

    Parameters
    ----------
    script
        A Python file.
    declared
        Called with each topology that it makes, when it makes it.
    root
        As of `prepare`. A script in a folder below is a module of that package, as ``python -m``
        has it.

    Raises
    ------
    WorkerError
        When it exits with a status other than 0.
    Exception
        Whatever it raises.
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
    """Turn what a script raises into errors that its author understands, with the line.

    Parameters
    ----------
    script
        The script.
    passed
        Exceptions that stay as they are.

    Raises
    ------
    TopologyError
        In place of one that does not name the script's line.
    WorkerError
        In place of whatever is not ours.
    """
    try:
        yield
    except TopologyError as error:
        raise TopologyError(f"{script}{line_of(error, script)}: {error}") from error
    except StormkeeperError:
        raise
    except BaseException as error:  # also SystemExit, whose exit code 0 would say that all is done
        if isinstance(error, passed):
            raise
        raise WorkerError(f"{script} failed:\n{readable(error)}") from error


def the_topology(names: Mapping[str, Any], made: list[Topology], script: Path) -> Topology | None:
    """Return the topology that a script defines, or None where it defines none.

    Parameters
    ----------
    names
        The script's global names. A topology that has one counts before one that has none.
    made
        All topologies that were made while the script ran.
    script
        For the message.

    Raises
    ------
    TopologyError
        When there are several.
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
    """Return ", line N" for where in the script an error comes from; nothing where it does not."""
    lines = [
        f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(script)
    ]
    return f", line {lines[-1]}" if lines else ""
