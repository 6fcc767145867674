"""Writes the description of a script's topology, after running the whole script.

``python -m stormkeeper.worker.describe_script SCRIPT --to FILE [--session | --session-first]`` is
the process that `stormkeeper.topology.description` starts. It starts no query and calls no
component. A Spark session takes seconds, and most topologies need none. `ExitCode` says what FILE
holds.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import py4j
import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from stormkeeper.conf import Conf
from stormkeeper.daemon.lifecycle import die_with_parent
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.errors import StormkeeperError, TopologyError
from stormkeeper.topology import description, faults
from stormkeeper.topology.description import Description, ExitCode
from stormkeeper.topology.topology import Topology
from stormkeeper.worker import script as scripts
from stormkeeper.worker import worker_conf
from stormkeeper.worker.job import ScriptArgumentParser
from stormkeeper.worker.spark_session import WorkerSession

#: This process starts Spark on this machine, whatever the topology asks for.
_MASTER = {"spark.master": "local[1]"}

_SPARK_FOLDERS = tuple(str(Path(module.__file__ or "").parent) for module in (pyspark, py4j))


_SESSIONS = ((SparkSession.Builder, "getOrCreate"), (SparkContext, "__init__"))
_STARTS = ((DataStreamWriter, "start"), (DataStreamWriter, "toTable"))


class NeedsSessionError(BaseException):
    """The script needs a Spark session; a `BaseException`, which scripts do not catch.

    `first` says that the session has to exist before the script begins.
    """

    def __init__(self, *, first: bool = False) -> None:
        super().__init__()
        self.first = first


class _QueryStartedError(BaseException):
    """The script starts a query, which only a worker does."""


def main(arguments: Sequence[str]) -> int:
    """Describe a script by command-line arguments; return the exit code."""
    parser = ScriptArgumentParser(
        prog="python -m stormkeeper.worker.describe_script",
        description="Write the description of a script's topology.",
    )
    parser.add_argument("--to", required=True, type=Path, metavar="FILE", help="what is written")
    parser.add_argument("--root", type=Path, metavar="DIR", help="first in sys.path")
    session = parser.add_mutually_exclusive_group()
    session.add_argument("--session", action="store_true", help="give the script a Spark session")
    session.add_argument("--session-first", action="store_true", help="start one before it begins")
    options = parser.parse_args(arguments)
    configure_logging()
    die_with_parent()

    def resolve_conf(topology: Topology | None) -> Conf:
        return worker_conf.merged(
            topology, files=options.config, overrides=options.conf, strict=options.strict
        )

    try:
        scripts.prepare(options.script, options.arguments, options.py_files, options.root)
        described = describe(
            options.script,
            resolve_conf if options.session or options.session_first else None,
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
    """Run a script in this process, after `scripts.prepare`, and describe the result.

    `resolve_conf` returns the configuration of the script's Spark session; None: no session. Raises
    `NeedsSessionError` if the script or PySpark asks for a session without one, and `TopologyError`
    or `WorkerError` for a fault of the script.
    """
    made: list[Topology] = []
    session = None
    if resolve_conf is not None:
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
            names = _run(script, declared, made, root)
    except _QueryStartedError as started:
        if made:
            raise TopologyError(f"{script}: {faults.starts_beside(made[0].name)}") from started
        return description.of_script(script)
    topology = scripts.the_topology(names, made, script)
    if topology is None:
        raise TopologyError(faults.starts_nothing(script))
    with scripts.explained(script):
        return description.of_topology(
            topology, needs_session=session is not None, session_first=session_first
        )


def _run(
    script: Path,
    declared: Callable[[Topology], None],
    made: Sequence[Topology],
    root: Path | None,
) -> dict[str, Any]:
    with scripts.explained(script, NeedsSessionError, _QueryStartedError):
        try:
            return scripts.run(script, declared, root)
        except Exception as error:
            # A column, for example, fails without a session instead of asking for one.
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

    before = [(class_, name, getattr(class_, name)) for class_, name in calls]
    for class_, name in calls:
        setattr(class_, name, raising)
    try:
        yield
    finally:
        for class_, name, method in before:
            setattr(class_, name, method)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(ValueError):  # the script may have closed it
        sys.stdout.flush()
    # The parent process ends what the script has started and left.
    os._exit(code)
