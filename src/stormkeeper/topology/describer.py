"""Describes what a script defines, by running the script in a process of its own.

A script may print, hang, exit or start threads, so the process has limits of time and size, and
whatever it has started ends with it. The process is a worker's
(`stormkeeper.worker.describe_script`), so that the script meets the Spark session of the cluster;
starting that module by name keeps PySpark out of this process.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import uuid
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from stormkeeper import extras
from stormkeeper.daemon import spark_environment
from stormkeeper.daemon.children import RUN_MARK, Child, end_marked
from stormkeeper.daemon.lifecycle import DIE_WITH_PARENT
from stormkeeper.errors import TopologyError
from stormkeeper.topology import description, script_source
from stormkeeper.topology.description import MAX_BYTES, Description

#: Seconds that a script may run, without a Spark session and with one. Spark alone may take most of
#: a minute to start on a busy machine.
PLAIN_SECS = 60.0
SESSION_SECS = 180.0

_NEVER = re.compile(r"(?!)")


class ExitCode(IntEnum):
    """Exit codes of the process, none of which Python itself uses."""

    #: The result file holds the description.
    DESCRIBED = 20
    #: The result file holds the text of an error.
    FAULT = 21
    #: There is no file: the script needs a Spark session, in the second case before it begins.
    NEEDS_SESSION = 22
    NEEDS_SESSION_FIRST = 23


def describe(
    script: Path,
    *,
    root: Path | None = None,
    arguments: Sequence[str] = (),
    py_files: Sequence[Path] = (),
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    plain_secs: float = PLAIN_SECS,
    session_secs: float = SESSION_SECS,
) -> Description:
    """Return the description of what a script defines.

    A script that does not import `Topology` is not run. Any other one runs to its end, first
    without a Spark session; then, if needed, with one that begins when the script asks for it or
    makes a `Topology`; and if that is too late, with one from the beginning.

    `root` is the first folder in ``sys.path``, by default the script's; `files` and `overrides`
    configure the session, as in `stormkeeper.conf.load`. Raises `TopologyError` for a fault,
    `MissingExtraError` if the script must run without PySpark, and `ChildError`.
    """
    if not has_to_run(script, root=root, py_files=py_files):
        return description.of_script(script)
    command = [sys.executable, "-P", "-m", "stormkeeper.worker.describe_script", str(script)]
    command += [option for file in py_files for option in ("--py-files", str(file))]
    command += [option for file in files for option in ("--config", str(file))]
    command += [f"--conf={override}" for override in overrides]
    command += [] if root is None else ["--root", str(root)]
    described = _run(script, command, arguments, plain_secs)
    if described is ExitCode.NEEDS_SESSION:
        described = _run(script, [*command, "--session"], arguments, session_secs)
    if described is ExitCode.NEEDS_SESSION_FIRST:
        described = _run(script, [*command, "--session-first"], arguments, session_secs)
    if isinstance(described, ExitCode):
        raise TopologyError(
            f"{script} uses PySpark after it has stopped its Spark session: leave out `.stop()`"
        )
    return described


def has_to_run(script: Path, *, root: Path | None = None, py_files: Sequence[Path] = ()) -> bool:
    """Return whether a script has to run to be described; check its source as `describe` does."""
    for file in py_files:
        if not file.is_file():
            raise TopologyError(f"there is no file {file}, which {script} is to be able to import")
    importable = [*py_files] if root is None else [root, *py_files]
    is_run = script_source.imports_topology(script, importable)
    if is_run:
        extras.require("spark", f"{script}, which has to be run to see what it defines,", "pyspark")
    script_source.check(script, importable, runs_here=is_run)
    script_source.check_starts(script, importable)
    return is_run


def _run(
    script: Path,
    command: Sequence[str],
    arguments: Sequence[str],
    secs: float,
) -> Description | ExitCode:
    """Run the script; return its description, or which session it needs."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="stormkeeper-describe-") as folder:
        result = Path(folder, "result")
        child = Child(
            "script",
            [*command, "--to", str(result), "--", *arguments],
            log=Path(folder, "log"),
            env=_environment(mark, folder),
            ready=_NEVER,
        )
        try:
            in_time = child.wait_stopped(secs)
        finally:
            end_marked(mark, settle_secs=0.0)
        if not in_time:
            raise TopologyError(
                f"{script} was not over after {secs:.0f} s. It is run to its end to see what it "
                "defines, so do in the functions of its spouts and bolts what takes long or waits"
            )
        if child.returncode in (ExitCode.NEEDS_SESSION, ExitCode.NEEDS_SESSION_FIRST):
            return ExitCode(child.returncode)
        if child.returncode == ExitCode.FAULT and result.exists():
            raise TopologyError(result.read_text())
        if child.returncode == ExitCode.DESCRIBED and result.exists():
            with result.open("rb") as file:
                return description.decode(file.read(MAX_BYTES + 1))
        raise TopologyError(
            f"{script} {child.state()} before it was over, so what it defines is not known:\n"
            f"{child.log_tail()}"
        )


def _environment(mark: str, folder: str) -> dict[str, str]:
    environ = {
        **os.environ,
        RUN_MARK: mark,
        DIE_WITH_PARENT: str(os.getpid()),
        "TMPDIR": folder,
        "SPARK_LOCAL_DIRS": folder,
    }
    spark_environment.clean(environ)
    spark_environment.complete(environ, home=Path(folder))
    return environ
