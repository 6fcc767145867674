"""A user's script: run like ``python SCRIPT``, and searched for the topology or described.

``python -m stormkeeper.worker.script SCRIPT --to FILE [--session | --session-first]``, started by
`stormkeeper.topology.description`, runs the whole script and writes the description of the
topology. No query starts, and no component is called. A Spark session takes seconds, and most
topologies need none. `ExitCode` says what FILE holds.
"""

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
from typing import Any, NoReturn

import py4j
import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.conf import Conf
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.daemon.spark_callbacks import replaced
from stormkeeper.errors import StormkeeperError, TopologyError, WorkerError
from stormkeeper.topology import description, faults, script_source
from stormkeeper.topology.bolt_source import check_bolts
from stormkeeper.topology.description import Description, ExitCode
from stormkeeper.topology.topology import Topology, on_declared
from stormkeeper.worker.failure import readable
from stormkeeper.worker.job import ScriptArgumentParser, merged_conf

#: A process that describes a script starts Spark here, whatever the topology asks for.
_MASTER = {"spark.master": "local[1]"}

_SPARK_FOLDERS = tuple(str(Path(module.__file__ or "").parent) for module in (pyspark, py4j))

_SESSIONS = ((SparkSession.Builder, "getOrCreate"), (SparkContext, "__init__"))
_STARTS = ((DataStreamWriter, "start"), (DataStreamWriter, "toTable"))


def prepare(
    script: Path,
    arguments: Sequence[str] = (),
    py_files: Sequence[Path] = (),
    root: Path | None = None,
) -> None:
    """Set up this process like ``python SCRIPT ARGUMENTS``, also for Spark's Python workers.

    `root` is the first folder in ``sys.path``; None: the script's own. Raises `WorkerError` for a
    missing file, `TopologyError` for a fault in the source.
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
    """An import finder for single files, without the rest of the folders."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, path: object = None, _: object = None) -> ModuleSpec | None:
        file = self._files.get(name) if path is None else None
        return spec_from_file_location(name, file) if file is not None else None


def run(
    script: Path, declared: Callable[[Topology], None], root: Path | None = None
) -> dict[str, Any]:
    """Run the whole script and return the global names.

    The script stays the module ``__main__``, so that PySpark pickles its functions by value.
    `declared` gets each new topology. Raises `WorkerError` for an exit status other than 0, and the
    script's exceptions.
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

    A `TopologyError` gets the line, other errors of Stormkeeper pass, and any foreign exception
    becomes a `WorkerError`.
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

    Topologies among the script's global names win over others that it has `made`.
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
    """Return ", line N" of the script; empty if no frame is the script's."""
    lines = [
        f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(script)
    ]
    return f", line {lines[-1]}" if lines else ""


class NeedsSessionError(BaseException):
    """The script needs a Spark session, with `first` before the script begins.

    A `BaseException`, which scripts do not catch.
    """

    def __init__(self, *, first: bool = False) -> None:
        super().__init__()
        self.first = first


class _QueryStartedError(BaseException):
    """The script starts a query, which only a worker does."""


def main(arguments: Sequence[str]) -> int:
    parser = ScriptArgumentParser(
        prog="python -m stormkeeper.worker.script",
        description="Write the description of a script's topology.",
    )
    parser.add_argument("--to", required=True, type=Path, metavar="FILE", help="what is written")
    parser.add_argument("--root", type=Path, metavar="DIR", help="first in sys.path")
    session = parser.add_mutually_exclusive_group()
    session.add_argument("--session", action="store_true", help="give the script a Spark session")
    session.add_argument("--session-first", action="store_true", help="start one before it begins")
    options = parser.parse_args(arguments)
    configure_logging()

    def resolve_conf(topology: Topology | None) -> Conf:
        return merged_conf(
            topology, files=options.config, overrides=options.conf, strict=options.strict
        )

    needs_session = options.session or options.session_first
    if needs_session:
        # Most scripts need none. Later, modules beside the script could hide what this imports.
        importlib.import_module("stormkeeper.worker.spark_session")
    try:
        prepare(options.script, options.arguments, options.py_files, options.root)
        described = describe(
            options.script,
            resolve_conf if needs_session else None,
            options.py_files,
            options.root,
            session_first=options.session_first,
        )
        options.to.write_bytes(description.encode(described))
    except NeedsSessionError as needed:
        return ExitCode.NEEDS_SESSION_FIRST if needed.first else ExitCode.NEEDS_SESSION
    except StormkeeperError as error:
        options.to.write_text(str(error), errors="backslashreplace")
        return ExitCode.FAULT
    return ExitCode.DESCRIBED


def describe(
    script: Path,
    resolve_conf: Callable[[Topology | None], Conf] | None = None,
    py_files: Sequence[Path] = (),
    root: Path | None = None,
    *,
    session_first: bool = False,
) -> Description:
    """Run a script in this process, after `prepare`, and describe the result.

    `resolve_conf` returns the configuration of the Spark session; None: no session. Raises
    `NeedsSessionError` if the script or PySpark needs a session, `TopologyError` or `WorkerError`
    for a fault of the script.
    """
    made: list[Topology] = []
    session = None
    if resolve_conf is not None:
        from stormkeeper.worker.spark_session import WorkerSession  # noqa: PLC0415 - see `main`

        conf = resolve_conf
        session = WorkerSession(
            lambda: conf(made[0] if made else None).with_values(_MASTER), script.stem, py_files
        )

    def declared(topology: Topology) -> None:
        made.append(topology)
        if session is not None:
            session.get()  # as in a worker: later code may need one without asking

    sessions = (
        session.offered(lambda: None) if session else _ended_by(NeedsSessionError, *_SESSIONS)
    )
    try:
        with _ended_by(_QueryStartedError, *_STARTS), sessions:
            if session is not None and session_first:
                session.get()
            names = _run_to_describe(script, declared, made, root)
    except _QueryStartedError as started:
        if made:
            raise TopologyError(f"{script}: {faults.starts_beside(made[0].name)}") from started
        return description.of_script(script)
    topology = the_topology(names, made, script)
    if topology is None:
        raise TopologyError(faults.starts_nothing(script))
    with explained(script):
        described = description.of_topology(
            topology, needs_session=session is not None, session_first=session_first
        )
    check_bolts(topology)
    return described


def _run_to_describe(
    script: Path,
    declared: Callable[[Topology], None],
    made: Sequence[Topology],
    root: Path | None,
) -> dict[str, Any]:
    with explained(script, NeedsSessionError, _QueryStartedError):
        try:
            return run(script, declared, root)
        except Exception as error:
            # A column, for example, fails without a session.
            if SparkContext._active_spark_context is None and _comes_from_spark(error):
                raise NeedsSessionError(first=not made) from error
            raise


def _comes_from_spark(error: BaseException | None) -> bool:
    while error is not None:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None and trace.tb_frame.f_code.co_filename.startswith(_SPARK_FOLDERS):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def _ended_by(end: type[BaseException], *calls: tuple[type, str]) -> Iterator[None]:
    def raising(*_: Any, **__: Any) -> NoReturn:
        raise end

    with contextlib.ExitStack() as stack:
        for class_, name in calls:
            stack.enter_context(replaced(class_, **{name: raising}))
        yield


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(ValueError):  # the script may have closed it
        sys.stdout.flush()
    # The parent ends processes that the script has left.
    os._exit(code)
