"""The description of a script: what the script defines, as JSON; and the describing process.

A description says which queries must be placed, with which executors and tasks. On the submitter's
machine the script runs to its end, without a call of a component's function, in a process with
limits of time and size. The process is a worker's (`stormkeeper.worker.script`), with the Spark
session of the cluster; PySpark stays out of this process.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from stormkeeper import extras
from stormkeeper.daemon import spark_environment
from stormkeeper.daemon.children import RUN_MARK, Child, end_marked
from stormkeeper.errors import SerializationError, TopologyError
from stormkeeper.topology import script_source
from stormkeeper.topology.plan import Plan, plan
from stormkeeper.topology.script_source import script_name
from stormkeeper.topology.topology import ComponentDescription, Topology, spread, unheard

#: Rises if older readers would misread the new form.
VERSION: Final = 1

#: The limit of one call of Storm's Nimbus (``nimbus.thrift.max_buffer_size``), room for five
#: thousand components.
MAX_BYTES: Final = 1024 * 1024

#: Of lists and mappings in a conf.
MAX_DEPTH: Final = 32

#: The range of Java's 64-bit integers, the end excluded.
_LEAST: Final = -(2**63)
_END: Final = 2**63


class QueryDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query: the sink's id, and the components' ids, each after its inputs."""

    id: str
    components: tuple[str, ...]


class ExecutorDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A component in a query; the tasks include `task_start` and `task_end`."""

    component: str
    query: str
    task_start: int
    task_end: int


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A topology, or a plain script (`kind` "script"), whose queries are unknown before it runs.

    `needs_session`: the script ran to its end only with a Spark session; `session_first`: with a
    session before its beginning, as for ``@udf("string")`` above the first Topology. Queries and
    executors follow from the components.
    """

    version: int
    kind: Literal["topology", "script"]
    name: str
    conf: dict[str, Any]
    needs_session: bool
    session_first: bool = False
    components: tuple[ComponentDescription, ...]
    queries: tuple[QueryDescription, ...]
    executors: tuple[ExecutorDescription, ...]

    @property
    def query_ids(self) -> tuple[str, ...]:
        """The queries that a cluster places; a script is placed as a whole."""
        return (self.name,) if self.kind == "script" else tuple(query.id for query in self.queries)

    def plan(self) -> Plan:
        """Return the plan, empty for a script; raises `TopologyError` for bad components."""
        return Plan((), ()) if self.kind == "script" else plan(_rebuilt(self))


def of_topology(
    topology: Topology, *, needs_session: bool = False, session_first: bool = False
) -> Description:
    """Describe a topology; raises `TopologyError` without a plan, or if the conf is not JSON."""
    the_plan = plan(topology)
    return Description(
        version=VERSION,
        kind="topology",
        name=topology.name,
        conf=_as_json(topology.conf, f"the conf of the topology {topology.name!r}"),
        needs_session=needs_session,
        session_first=session_first,
        components=tuple(component.description for component in topology.components.values()),
        queries=tuple(
            QueryDescription(query.id, tuple(component.id for component in query.components))
            for query in the_plan.queries
        ),
        executors=tuple(
            ExecutorDescription(run.component.id, run.query, run.task_start, run.task_end)
            for run in the_plan.executors
        ),
    )


def with_parallelism(description: Description, hints: Mapping[str, int]) -> Description:
    """Return a description with other parallelism of components, by id, as after a rebalance."""
    if all(hints.get(one.id, one.parallelism) == one.parallelism for one in description.components):
        return description
    topology = _rebuilt(description)
    spread(topology, hints)
    return of_topology(
        topology,
        needs_session=description.needs_session,
        session_first=description.session_first,
    )


def of_script(script: Path) -> Description:
    return Description(
        version=VERSION,
        kind="script",
        name=script_name(script),
        conf={},
        needs_session=False,
        components=(),
        queries=(),
        executors=(),
    )


def encode(description: Description) -> bytes:
    """Return a description as JSON; raises `TopologyError` above `MAX_BYTES`."""
    data = msgspec.json.encode(description)
    if len(data) > MAX_BYTES:
        raise TopologyError(
            f"the description of the topology {description.name!r} has {len(data):,} bytes, and "
            f"may have {MAX_BYTES:,}: bring large values in a file of --py-files, not in the conf"
        )
    return data


def decode(data: bytes) -> Description:
    """Read and check a description; raises `SerializationError`."""
    if len(data) > MAX_BYTES:
        raise SerializationError(
            f"a topology's description may have {MAX_BYTES:,} bytes, not {len(data):,}"
        )
    try:
        check_version(data, VERSION, "a topology's description")
        description = msgspec.json.decode(data, type=Description)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SerializationError(f"this is no description of a topology: {error}") from error
    made_again = _checked(description)
    # Equal, with each name once in memory.
    return msgspec.structs.replace(
        description, queries=made_again.queries, executors=made_again.executors
    )


class _Versioned(msgspec.Struct):
    version: int


def check_version(data: bytes, version: int, what: str) -> None:
    """Raise `SerializationError` for another version of a JSON object."""
    found = msgspec.json.decode(data, type=_Versioned).version
    if found != version:
        raise SerializationError(
            f"{what} has the version {found}, and this release of Stormkeeper reads version"
            f" {version}: submit the topology again with this release"
        )


def _checked(description: Description) -> Description:
    """Return the description made again from its components; raise `SerializationError`."""
    what = f"the description of the topology {description.name!r}"
    try:
        unheard(description.name)  # checks the name
        _as_json(description.conf, "its conf")
        made_again = (
            of_topology(_rebuilt(description))
            if description.kind == "topology"
            else of_script(Path(description.name))
        )
    except TopologyError as error:
        raise SerializationError(f"{what} does not hold together: {error}") from error
    for field in ("components", "queries", "executors"):
        if getattr(made_again, field) != getattr(description, field):
            raise SerializationError(f"{what} does not hold together: its {field} are others")
    return made_again


def _rebuilt(description: Description) -> Topology:
    topology = unheard(description.name, description.conf)
    for component in description.components:
        settings: Any = {"parallelism": component.parallelism, "name": sys.intern(component.id)}
        if component.kind == "spout":
            topology.spout(**settings)(_without_function)
        else:
            topology.bolt(*component.inputs, **settings)(_without_function)
    return topology


def _without_function(*inputs: Any) -> Any:
    raise NotImplementedError(f"a description has no functions (called with {inputs!r})")


# Else it is found out anew for each component.
_without_function.__signature__ = inspect.signature(_without_function)  # type: ignore[attr-defined]


def _as_json(value: Any, where: str, depth: int = 0) -> Any:
    """Return `value` as JSON represents it, so that it is read back unchanged."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not any(0xD800 <= ord(character) < 0xE000 for character in value):
            return str.__str__(value)  # the text of an enum, whose `str` is its name
    elif isinstance(value, int):
        if _LEAST <= value < _END:
            return int(value)
    elif isinstance(value, float):
        if math.isfinite(value):
            return float(value)
    elif depth == MAX_DEPTH:
        raise TopologyError(f"{where} is nested more than {MAX_DEPTH} deep")
    elif isinstance(value, list | tuple):
        return [_as_json(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]
    elif isinstance(value, Mapping):
        return {
            _key(key, where): _as_json(item, f"{where}[{key!r}]", depth + 1)
            for key, item in value.items()
        }
    raise TopologyError(
        f"{where} is {value!r} ({type(value).__name__}), which JSON does not have: use text, "
        "a number of 64 bits, True, False, None, or lists and dicts of these"
    )


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise TopologyError(f"{where} has the key {key!r}: keys are text")
    text: str = _as_json(key, f"a key of {where}")
    return text


#: Limits of a script's run, without and with a Spark session, whose start may take most of a minute
#: on a busy machine.
PLAIN_SECS = 60.0
SESSION_SECS = 180.0


class ExitCode(IntEnum):
    """Exit codes of the process, none of which Python itself uses."""

    #: The result file holds the description.
    DESCRIBED = 20
    #: The result file holds the text of an error.
    FAULT = 21
    #: No file: the script needs a Spark session, in the second case before its beginning.
    NEEDS_SESSION = 22
    NEEDS_SESSION_FIRST = 23


@contextmanager
def describing(
    script: Path,
    *,
    root: Path | None = None,
    arguments: Sequence[str] = (),
    py_files: Sequence[Path] = (),
    files: Sequence[Path] = (),
    overrides: Sequence[str] = (),
    plain_secs: float = PLAIN_SECS,
) -> Iterator[Callable[[], Description]]:
    """Start to describe what a script defines; yields a function that waits for the description.

    Call the function once; it raises `TopologyError` for a fault. The end of the block kills the
    script's processes. Before the block, raises `TopologyError` for a fault in the source,
    `MissingExtraError` without PySpark, and `ChildError`.

    A script without `Topology` is not run. Another script runs without a Spark session; then, if
    needed, with a session from the first use or `Topology` on; then with a session from the
    beginning. `root` is the first folder in ``sys.path``, `files` and `overrides` configure the
    session.
    """
    if not has_to_run(script, root=root, py_files=py_files):
        yield lambda: of_script(script)
        return
    command = [sys.executable, "-P", "-m", "stormkeeper.worker.script", str(script)]
    command += [option for file in py_files for option in ("--py-files", str(file))]
    command += [option for file in files for option in ("--config", str(file))]
    command += [f"--conf={override}" for override in overrides]
    command += [] if root is None else ["--root", str(root)]

    def described() -> Description:
        found = plain()
        for needs, option in (
            (ExitCode.NEEDS_SESSION, "--session"),
            (ExitCode.NEEDS_SESSION_FIRST, "--session-first"),
        ):
            if found is needs:
                with _run(script, [*command, option], arguments, SESSION_SECS) as with_session:
                    found = with_session()
        if isinstance(found, ExitCode):
            raise TopologyError(
                f"{script} uses PySpark after it has stopped its Spark session: leave out `.stop()`"
            )
        return found

    with _run(script, command, arguments, plain_secs) as plain:
        yield described


def describe(script: Path, **options: Any) -> Description:
    """Return the description of what a script defines; options and errors as of `describing`."""
    with describing(script, **options) as described:
        return described()


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


@contextmanager
def _run(
    script: Path,
    command: Sequence[str],
    arguments: Sequence[str],
    secs: float,
) -> Iterator[Callable[[], Description | ExitCode]]:
    """Start a process; yields a function, to be called once, that waits for the result."""
    mark, ends = uuid.uuid4().hex, time.monotonic() + secs
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stormkeeper-describe-"))
        result = Path(folder, "result")
        child = Child(
            "script",
            [*command, "--to", str(result), "--", *arguments],
            log=Path(folder, "log"),
            env=_environment(mark, folder),
        )
        stack.callback(end_marked, mark, settle_secs=0.0)
        stack.callback(child.wait_stopped, 0.0)

        def ended() -> Description | ExitCode:
            with stack:
                if child.wait_stopped(max(0.0, ends - time.monotonic())):
                    return _result(script, child, result)
                raise TopologyError(
                    f"{script} was not over after {secs:.0f} s. It is run to its end to see what it"
                    " defines, so do in the functions of its spouts and bolts what takes long or"
                    " waits"
                )

        yield ended


def _result(script: Path, child: Child, result: Path) -> Description | ExitCode:
    if child.returncode in (ExitCode.NEEDS_SESSION, ExitCode.NEEDS_SESSION_FIRST):
        return ExitCode(child.returncode)
    if child.returncode == ExitCode.FAULT and result.exists():
        raise TopologyError(result.read_text())
    if child.returncode == ExitCode.DESCRIBED and result.exists():
        with result.open("rb") as file:
            return decode(file.read(MAX_BYTES + 1))
    raise TopologyError(
        f"{script} {child.state()} before it was over, so what it defines is not known:\n"
        f"{child.log_tail()}"
    )


def _environment(mark: str, folder: str) -> dict[str, str]:
    environ = {
        **os.environ,
        RUN_MARK: mark,
        "TMPDIR": folder,
        "SPARK_LOCAL_DIRS": folder,
    }
    spark_environment.clean(environ)
    spark_environment.complete(environ, home=Path(folder))
    return environ
