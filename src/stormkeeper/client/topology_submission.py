"""Submits a topology; every check on this machine precedes the first byte sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import stormkeeper
from stormkeeper.client import package_builder, topology_view
from stormkeeper.client.blob_transfer import upload_package
from stormkeeper.client.nimbus_connection import NimbusConnection
from stormkeeper.client.package_builder import (
    BuiltPackage,
    SubmissionListener,
    SubmissionRequest,
)
from stormkeeper.conf import Address, Conf
from stormkeeper.errors import (
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
from stormkeeper.topology import faults, script_source
from stormkeeper.topology.description import Description
from stormkeeper.topology.package.code import PackagedCode
from stormkeeper.topology.topology import ComponentDescription

_SUBMIT: Final = "submitTopologyWithOpts"
#: Time that Nimbus may take, in addition to the wait for replication.
_SUBMIT_SECS: Final = 60.0
_FROM: Final = "topology.checkpoint.from"
_QUERIES: Final = "topology.checkpoint.queries"
_ABANDON: Final = "topology.checkpoint.abandon"
#: Whether a plain script's queries keep checkpoints in the topology's folder.
_SCRIPTS: Final = "topology.checkpoint.scripts"
#: Keys that bring jars.
_JARS: Final = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_COPIES_SECS: Final = "topology.max.replication.wait.time.sec"
#: Timeout for replication if Nimbus waits without a limit.
_COPIES_MOST_SECS: Final = 600.0

#: A component's single stream: the rows of its DataFrame.
STREAM: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedTopology:
    """The name, id and package size of a submitted topology."""

    name: str
    storm_id: str
    package_bytes: int


def submit(
    connection: NimbusConnection,
    conf: Conf,
    request: SubmissionRequest,
    code: PackagedCode,
    listener: SubmissionListener,
    *,
    described: Callable[[], Description],
    going_on_from: str | None = None,
    abandon: Sequence[str] = (),
) -> SubmittedTopology:
    """Submit a topology with the collected code; `described` waits for the description.

    `going_on_from` is the id or name of a killed topology whose checkpoints the new topology
    continues, except for the queries in `abandon`; None: the conf decides.

    Raises `TopologyError` for a fault in the topology, `ConfigError` for a wrong value or a strict
    unknown key, `MissingExtraError` if the script must run without PySpark, `RefusedError`, and
    `RpcError` if Nimbus does not answer.
    """
    if request.name is not None:
        _check_free(connection, request.name)
    listener.say(f"reading {request.code}")
    description = described()
    listener.report_unknown_keys(description.conf, f"the conf of the topology {description.name!r}")
    values = package_builder.conf_to_send(description.conf, conf, description.name)
    if going_on_from is not None:
        values[_FROM] = going_on_from
    if abandon:
        values[_ABANDON] = [*abandon]
    if not request.jars and not request.jvm_packages and not any(map(values.get, _JARS)):
        for name in sorted(script_source.formats(code.script, [code.root, *request.py_files])):
            if faults.coordinates(name) is not None:
                listener.warn(faults.may_miss_source(request.code, name))
    if description.kind == "script":
        named = script_source.names_checkpoints(code.script, [code.root, *request.py_files])
        if named:
            # The checkpoints are not bound to a machine, so the workers are not either.
            values.setdefault(_SCRIPTS, False)
        keeps = values.get(_SCRIPTS, conf[_SCRIPTS])
        if values.get(_FROM) is not None and not keeps:
            raise TopologyError(
                f"{request.code} is a plain script that names its own checkpoints, and continues"
                " from these: submit it without --from"
            )
        if not named:
            listener.warn(faults.unnamed_checkpoints(request.code, named is False, keeps))
    with package_builder.build_package(request, code, description, listener.say) as package:
        name = package.manifest.name
        _check_free(connection, name)
        return send_package(
            connection, conf, package, values, listener, credentials=request.credentials
        )


def send_package(
    connection: NimbusConnection,
    conf: Conf,
    package: BuiltPackage,
    values: dict[str, Any],
    listener: SubmissionListener,
    *,
    credentials: Mapping[str, str] | None = None,
) -> SubmittedTopology:
    """Upload and submit a package with the topology's conf `values`.

    Raises `RefusedError`, or `RpcError` if Nimbus does not answer.
    """
    name = package.manifest.name
    creds = Credentials(dict(credentials)) if credentials else None
    arguments = (
        json.dumps(values),
        storm_topology(package.description, package.manifest.entry_point),
        SubmitOptions(TopologyInitialStatus.ACTIVE, creds),
    )
    timeout = _SUBMIT_SECS + _copies_secs(values, conf)
    for is_last in (False, True):
        try:
            location = upload_package(
                connection, package.file, lambda sent: listener.sent(sent, package.size)
            )
        except RpcError as error:
            if is_last:
                raise
            listener.warn(f"{error}; the upload starts again")
            continue
        leader = connection.address
        listener.say(f"waiting for the cluster to take {name}")
        try:
            connection.call(_SUBMIT, name, location, *arguments, timeout=timeout)
        except (RefusedError, RpcRefusedError, RpcOutcomeUnknownError) as error:
            if _is_taken(connection, name, error, leader):
                break
            # Only the former leader has the upload, and takes no topologies any more.
            if is_last or connection.address == leader:
                raise
            listener.warn(f"{error}; another Nimbus leads now: the package is sent there")
        else:
            break
    found = connection.nimbus.getTopologySummaryByName(name)
    if values.get(_FROM) is not None:
        queries = package.description.query_ids
        with suppress(RpcError):  # the topology is submitted all the same
            saved = json.loads(connection.nimbus.getTopologyConf(found.id))
            lost = values.get(_ABANDON) or ()
            for line in checkpoint_notes(values[_FROM], saved.get(_QUERIES) or (), queries, lost):
                listener.warn(line)
    return SubmittedTopology(name=name, storm_id=found.id, package_bytes=package.size)


def checkpoint_notes(
    origin: str, had: Collection[str], queries: Collection[str], lost: Collection[str] = ()
) -> list[str]:
    """Return notes on queries that do not continue a checkpoint of the topology `origin`.

    `had` are its queries with checkpoints, `queries` the new topology's, `lost` queries with
    abandoned checkpoints.
    """
    lines = []
    if given_up := sorted({*queries} & {*lost}):
        lines.append(
            f"{', '.join(given_up)}: starts afresh, as its checkpoint is given up: rows that it has"
            " written before may be written again"
        )
    if new := sorted({*queries} - {*had} - {*lost}):
        lines.append(f"{', '.join(new)}: starts afresh, as {origin} has no checkpoint of that name")
    if left := sorted({*had} - {*queries}):
        lines.append(
            f"{', '.join(left)}: {origin} has a checkpoint of that name, which no query continues"
        )
    return lines


def storm_topology(description: Description, script: str) -> StormTopology:
    """Return the topology for Storm's clients: components, inputs and parallelism.

    A component's code is the script's name. A plain script is a single spout.
    """
    components = description.components or (ComponentDescription(description.name, "spout", (), 1),)
    read = {source for component in components for source in component.inputs}
    code = ComponentObject(shell=ShellComponent("python", script))

    def common(component: ComponentDescription) -> ComponentCommon:
        return ComponentCommon(
            inputs={
                # Spark distributes rows over tasks in its own way.
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


def _check_free(connection: NimbusConnection, name: str) -> None:
    if fault := topology_fault(name):
        raise RefusedError(fault)
    if not connection.nimbus.isTopologyNameAllowed(name):
        raise RefusedError(
            f"there is a topology {name} already: end it with `storm kill {name}`, or give another"
            " name after the file"
        )


def _copies_secs(values: Mapping[str, Any], conf: Conf) -> float:
    secs = values.get(_COPIES_SECS, conf[_COPIES_SECS])
    return float(secs) if secs > 0 else _COPIES_MOST_SECS


def _is_taken(
    connection: NimbusConnection, name: str, error: StormkeeperError, leader: Address | None
) -> bool:
    """Return whether `leader` has taken the topology although the call failed."""
    if isinstance(error, RefusedError) and connection.address == leader:
        return False
    # The name was free before, so this submission has taken it.
    return topology_view.find_topology(connection, name) is not None
