"""Submits a topology: everything is checked here before the first byte of it is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import stormkeeper
from stormkeeper.client import package_builder, submission_conf, topology_view
from stormkeeper.client.nimbus_connection import NimbusConnection
from stormkeeper.client.package_builder import BuiltPackage, SubmissionRequest
from stormkeeper.conf import Address, Conf
from stormkeeper.errors import (
    ConfigError,
    RefusedError,
    RpcError,
    RpcOutcomeUnknownError,
    RpcRefusedError,
    StormkeeperError,
    TopologyError,
)
from stormkeeper.names import topology_fault
from stormkeeper.thrift.nimbus import (
    Bolt,
    ComponentCommon,
    ComponentObject,
    Grouping,
    NullStruct,
    ShellComponent,
    SpoutSpec,
    StormTopology,
    StreamInfo,
    SubmitOptions,
    TopologyInitialStatus,
)
from stormkeeper.thrift.records import Credentials, GlobalStreamId
from stormkeeper.topology import faults
from stormkeeper.topology import script_source as source
from stormkeeper.topology.description import Description
from stormkeeper.topology.package.code import SubmittedCode
from stormkeeper.topology.topology import ComponentDescription

#: Bytes of a piece: Storm's clients send as many.
_CHUNK: Final = 307_200
#: What of a message is left for all but the piece.
_BESIDE: Final = 4_096
_SUBMIT: Final = "submitTopologyWithOpts"
#: Seconds that Nimbus may take for a submission, beyond what it waits for copies of the code.
_SUBMIT_SECS: Final = 60.0
#: Keys of a topology's conf: what it goes on from, which queries have checkpoints there, and of
#: which these are given up.
_FROM: Final = "topology.checkpoint.from"
_QUERIES: Final = "topology.checkpoint.queries"
_ABANDON: Final = "topology.checkpoint.abandon"
#: Whether queries of a plain script that name no checkpoint have it in the topology's folder.
_SCRIPTS: Final = "topology.checkpoint.scripts"
#: Keys that bring jars.
_JARS: Final = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_COPIES_SECS: Final = "topology.max.replication.wait.time.sec"
#: As long as it waits where that is without an end.
_COPIES_MOST_SECS: Final = 600.0


@dataclass(frozen=True, slots=True)
class SubmissionListener:
    """Whom a submission tells how it gets on.

    Parameters
    ----------
    say
        Called with what takes its time.
    sent
        Called with how many bytes of how many have arrived.
    warn
        Called with what is not as it should be, and is done all the same.
    strict
        Whether a key that nobody knows is no warning, but an error.
    """

    say: Callable[[str], None]
    sent: Callable[[int, int], None]
    warn: Callable[[str], None]
    strict: bool = False

    def mistyped(self, text: str) -> None:
        """Tell of a key that nobody knows.

        Raises
        ------
        ConfigError
            That is an error.
        """
        if self.strict:
            raise ConfigError(text)
        self.warn(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedTopology:
    """A topology that Nimbus has taken: its name and id, and the bytes of its package."""

    name: str
    storm_id: str
    package_bytes: int


def submit(
    connection: NimbusConnection,
    conf: Conf,
    given: SubmissionRequest,
    code: SubmittedCode,
    told: SubmissionListener,
    *,
    going_on_from: str | None = None,
    abandon: Sequence[str] = (),
) -> SubmittedTopology:
    """Submit a topology.

    Parameters
    ----------
    connection
        To the leading Nimbus.
    conf
        The configuration of this command.
    given, code
        What is submitted, and its code as `packing.collected` gives it.
    told
        Hears how it gets on.
    going_on_from
        The killed topology from whose checkpoints it goes on, by its id or name; None: what the
        conf says.
    abandon
        The queries that begin anew all the same; none: what the conf says.

    Raises
    ------
    TopologyError
        Of a fault in what is submitted.
    ConfigError
        Of a value in its conf that is none, or of a key that nobody knows where that is an error.
    MissingExtraError
        PySpark is needed to describe it, and is not installed.
    RefusedError
        Nimbus does not take it.
    RpcError
        Nimbus was not reached, or could not.
    """
    if given.name is not None:
        _check_free(connection, given.name)
    told.say(f"reading {given.code}")
    description = package_builder.describe(given, code)
    for text in submission_conf.mistyped_own(description.conf, description.name):
        told.mistyped(text)
    values = submission_conf.sent(description.conf, conf, description.name)
    if going_on_from is not None:
        values[_FROM] = going_on_from
    if abandon:
        values[_ABANDON] = [*abandon]
    if not given.jars and not given.jvm_packages and not any(map(values.get, _JARS)):
        for name in sorted(source.formats(code.script, [code.root, *given.py_files])):
            if faults.coordinates(name) is not None:
                told.warn(faults.may_miss_source(given.code, name))
    if description.kind == "script":
        named = source.names_checkpoints(code.script, [code.root, *given.py_files])
        if named:
            # No machine is the home of its checkpoints then: it may run on any.
            values.setdefault(_SCRIPTS, False)
        keeps = values.get(_SCRIPTS, conf[_SCRIPTS])
        if values.get(_FROM) is not None and not keeps:
            raise TopologyError(
                f"{given.code} is a plain script that names its own checkpoints, and goes on from"
                " these: submit it without --from"
            )
        if not named:
            told.warn(faults.unnamed_checkpoints(given.code, named is False, keeps))
    with package_builder.packed(given, code, description, told.say) as packed:
        name = packed.manifest.name
        _check_free(connection, name)
        return send(connection, conf, packed, values, told, credentials=given.credentials)


def _check_free(connection: NimbusConnection, name: str) -> None:
    if fault := topology_fault(name):
        raise RefusedError(fault)
    if not connection.nimbus.isTopologyNameAllowed(name):
        raise RefusedError(
            f"there is a topology {name} already: end it with `storm kill {name}`, or give another"
            " name behind the file"
        )


def send(
    connection: NimbusConnection,
    conf: Conf,
    packed: BuiltPackage,
    values: dict[str, Any],
    told: SubmissionListener,
    *,
    credentials: Mapping[str, str] | None = None,
) -> SubmittedTopology:
    """Send a package, and have Nimbus take it.

    Parameters
    ----------
    connection, conf, told
        As of `submit`.
    packed
        The package.
    values
        The topology's conf.
    credentials
        Texts by their names.

    Raises
    ------
    RefusedError
        Nimbus does not take it.
    RpcError
        Nimbus was not reached, or could not.
    """
    name = packed.manifest.name
    creds = Credentials(dict(credentials)) if credentials else None
    arguments = (
        submission_conf.as_json(values),
        storm_topology(packed.description, packed.manifest.entry_point),
        SubmitOptions(TopologyInitialStatus.ACTIVE, creds),
    )
    timeout = _SUBMIT_SECS + _copies_secs(values, conf)
    for is_last in (False, True):
        location = _uploaded(connection, conf, packed, told)
        holder = connection.address
        told.say(f"waiting for the cluster to take {name}")
        try:
            connection.call(_SUBMIT, name, location, *arguments, timeout=timeout)
        except (RefusedError, RpcRefusedError, RpcOutcomeUnknownError) as error:
            if _is_taken(connection, name, error, holder):
                break
            # The next leader has not what a former one was sent, who takes no topology any more.
            if is_last or connection.address == holder:
                raise
            told.warn(f"{error}; another Nimbus leads now, and gets it")
        else:
            break
    found = connection.nimbus.getTopologySummaryByName(name)
    if values.get(_FROM) is not None:
        queries = packed.description.query_ids
        with suppress(RpcError):  # it is submitted all the same
            saved = json.loads(connection.nimbus.getTopologyConf(found.id))
            lost = values.get(_ABANDON) or ()
            for line in differences(values[_FROM], saved.get(_QUERIES) or (), queries, lost):
                told.warn(line)
    return SubmittedTopology(name=name, storm_id=found.id, package_bytes=packed.size)


def differences(
    origin: str, had: Collection[str], queries: Collection[str], lost: Collection[str] = ()
) -> list[str]:
    """Return what is to be told of a topology that goes on from another one's checkpoints; pure.

    Parameters
    ----------
    origin
        The other one, as the user calls it.
    had, queries
        The queries that have checkpoints there, and those that the new one has.
    lost
        Those whose checkpoints are given up.
    """
    lines = []
    if given_up := sorted({*queries} & {*lost}):
        lines.append(
            f"{', '.join(given_up)}: begins anew, as its checkpoint is given up: what it has"
            " written before may be written again"
        )
    if new := sorted({*queries} - {*had} - {*lost}):
        lines.append(f"{', '.join(new)}: begins anew, as {origin} has no checkpoint of that name")
    if left := sorted({*had} - {*queries}):
        lines.append(
            f"{', '.join(left)}: {origin} has a checkpoint of that name, which is not gone on with"
        )
    return lines


def _uploaded(
    connection: NimbusConnection, conf: Conf, packed: BuiltPackage, told: SubmissionListener
) -> str:
    """Upload a package; to the next leader, if the one goes away meanwhile."""

    def try_once() -> str:
        return upload(
            connection,
            packed.file,
            max_frame=conf["nimbus.thrift.max_buffer_size"],
            sent=lambda arrived: told.sent(arrived, packed.size),
        )

    try:
        return try_once()
    except RpcError as error:
        told.warn(f"{error}; the upload begins anew")
    return try_once()


def _copies_secs(values: Mapping[str, Any], conf: Conf) -> float:
    """Return how long Nimbus may wait for copies of the code."""
    secs = values.get(_COPIES_SECS, conf[_COPIES_SECS])
    return float(secs) if secs > 0 else _COPIES_MOST_SECS


def _is_taken(
    connection: NimbusConnection, name: str, error: StormkeeperError, holder: Address | None
) -> bool:
    """Return whether a topology was taken by `holder` though its submission has ended so."""
    if isinstance(error, RefusedError) and connection.address == holder:
        return False
    # The name was free a moment ago: whoever has it now was submitted by this.
    return topology_view.summary(connection, name) is not None


def upload(
    connection: NimbusConnection,
    file: BinaryIO,
    *,
    max_frame: int,
    sent: Callable[[int], None] = lambda _sent: None,
) -> str:
    """Send a file, and return where Nimbus keeps it.

    Parameters
    ----------
    connection
        To the leading Nimbus.
    file
        From its beginning.
    max_frame
        The longest message, in bytes: ``nimbus.thrift.max_buffer_size``.
    sent
        Called with how many bytes have arrived.

    Raises
    ------
    RpcError
        If a piece does not arrive. What has arrived is removed by Nimbus in time.
    RefusedError
        If Nimbus does not want it.
    """
    nimbus = connection.nimbus
    location = nimbus.beginFileUpload()
    file.seek(0)
    arrived = 0
    while chunk := file.read(max(1, min(_CHUNK, max_frame - _BESIDE))):
        nimbus.uploadChunk(location, chunk)
        arrived += len(chunk)
        sent(arrived)
    nimbus.finishFileUpload(location)
    return location


#: The one stream that a component of ours has: the rows of its DataFrame.
STREAM: Final = "default"


def storm_topology(description: Description, script: str) -> StormTopology:
    """Return the record of a topology.

    Parameters
    ----------
    description
        The topology's. A plain script is one spout, which is called as the description is.
    script
        Its name in the package.
    """
    components = description.components or (ComponentDescription(description.name, "spout", (), 1),)
    read = {source for component in components for source in component.inputs}
    code = ComponentObject(shell=ShellComponent("python", script))

    def common(component: ComponentDescription) -> ComponentCommon:
        return ComponentCommon(
            inputs={
                # Spark spreads rows over tasks as it likes.
                GlobalStreamId(source, STREAM): Grouping(shuffle=NullStruct())
                for source in component.inputs
            },
            streams={STREAM: StreamInfo([], False)} if component.id in read else {},
            parallelism_hint=component.parallelism,
        )

    return StormTopology(
        spouts={one.id: SpoutSpec(code, common(one)) for one in components if one.kind == "spout"},
        bolts={one.id: Bolt(code, common(one)) for one in components if one.kind == "bolt"},
        state_spouts={},
        storm_version=stormkeeper.__version__,
    )
