"""Submits topologies: an upload, checks, and what is written in which order.

The checks come in Storm's order, with its words. What is written comes before what needs it, and
the base last: with it the topology is there. Whoever is interrupted before that leaves what no
topology needs, which is removed in time.
"""

# ruff: noqa: N802

from __future__ import annotations

import copy
import getpass
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stormkeeper import paths
from stormkeeper.errors import (
    CallerError,
    CallRefusedError,
    CheckpointsError,
    OutcomeUnknownError,
    SerializationError,
    StormkeeperError,
    TransferEndedError,
)
from stormkeeper.names import topology_fault
from stormkeeper.nimbus import checkpoints
from stormkeeper.nimbus.retaining import every_base
from stormkeeper.nimbus.service import structure, topology_conf
from stormkeeper.nimbus.service.served import WAIT_SECS, Served, told
from stormkeeper.nimbus.submitted import commons, encode_conf
from stormkeeper.state.storm.cluster import LeaderClusterState
from stormkeeper.state.storm.record_io import Versioned
from stormkeeper.thrift.nimbus import (
    AlreadyAliveException,
    InvalidTopologyException,
    StormTopology,
    SubmitOptions,
    TopologyInitialStatus,
)
from stormkeeper.thrift.records import Checkpoints, StormBase, TopologyStatus
from stormkeeper.topology.description import Description
from stormkeeper.topology.package import archive

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """A topology that is to be written."""

    name: str
    storm_id: str
    package: Path
    description: Description
    topology: StormTopology
    conf: Mapping[str, Any]
    options: SubmitOptions
    #: What it goes on from; None: from nothing.
    origin: Versioned[Checkpoints] | None
    #: What is left of that without what it gives up.
    kept: Checkpoints | None


class Submitting(Served):
    """The methods by which topologies are submitted."""

    def isTopologyNameAllowed(self, name: str, /) -> bool:
        """Return whether a topology of that name could be submitted now."""
        if topology_fault(name) is not None:
            return False
        # The server that is asked may lag behind.
        self._given.storm.state.sync_path(paths.STORMS)
        return self._given.storm.storm_id_by_name(name) is None

    def beginFileUpload(self) -> str:
        """Begin a file, and return where it will be; of a leader alone, who will have it."""
        self._reign()
        with told():
            return self._given.code.inbox.begin()

    def uploadChunk(self, location: str, chunk: bytes, /) -> None:
        """Take the next bytes of a file."""
        with told():
            self._given.code.inbox.chunk(location, chunk)

    def finishFileUpload(self, location: str, /) -> None:
        """Have a file be there."""
        with told():
            self._given.code.inbox.finish(location)

    def submitTopology(
        self, name: str, location: str | None, json_conf: str, topology: StormTopology, /
    ) -> None:
        """Submit a topology that is active from the beginning."""
        options = SubmitOptions(TopologyInitialStatus.ACTIVE)
        self.submitTopologyWithOpts(name, location, json_conf, topology, options)

    def submitTopologyWithOpts(
        self,
        name: str,
        location: str | None,
        json_conf: str,
        topology: StormTopology,
        options: SubmitOptions,
        /,
    ) -> None:
        """Submit a topology."""
        reign = self._reign()
        if fault := topology_fault(name):
            raise InvalidTopologyException(fault)
        with self._given.submissions.submitting(name), ExitStack() as going:
            if any(base.name == name for base in reign.leader.storm_bases().values()):
                raise AlreadyAliveException(f"{name} is already alive")
            own = topology_conf.read(json_conf)
            self._check_blobs(own)
            origin = going.enter_context(self._continuing(reign.leader, own))
            now = self._given.clock()
            storm_id = self._given.submissions.new_id(name, now)
            principal = self._principal()
            saved = topology_conf.saved(
                own,
                self._given.conf,
                storm_id=storm_id,
                name=name,
                principal=principal,
                user=principal or _process_user(),
            )
            kept = _kept(reign.leader, origin, own)
            conf = checkpoints.conf_of(saved, kept)
            structure.check(topology)
            package = self._package(location)
            description = _described(package)
            structure.check_package(topology, description)
            if origin is not None and _names_its_own(description, conf):
                raise InvalidTopologyException(checkpoints.OF_SCRIPTS)
            structure.check_limits(
                conf["topology.workers"], max(1, len(description.executors)), self._given.conf
            )
            checked = _Checked(
                name=name,
                storm_id=storm_id,
                package=package,
                description=description,
                topology=structure.normalised(topology, description),
                conf=conf,
                options=options,
                origin=origin,
                kept=kept,
            )
            self._prepare(reign.leader, checked)
            self._activate(reign.leader, storm_id, _base(checked, int(now)))
        package.unlink(missing_ok=True)
        log.info("submitted %s as %s", name, storm_id)
        reign.wake()

    @contextmanager
    def _continuing(
        self, leader: LeaderClusterState, own: Mapping[str, Any]
    ) -> Iterator[Versioned[Checkpoints] | None]:
        """Yield the checkpoints that a topology goes on from, which nobody else has meanwhile."""
        wanted = own.get(checkpoints.FROM)
        if wanted is None:
            yield None
            return
        with ExitStack() as alone:
            try:
                bases = every_base(self._given.storm, leader)
                id_ = checkpoints.find(wanted, own, leader.all_checkpoints(), bases).folder
                alone.enter_context(self._given.submissions.continuing(id_))
                # Again, now that nobody else goes on from them.
                origin = leader.checkpoints(id_)
                records = {} if origin is None else {id_: origin.record}
                bases = every_base(self._given.storm, leader)
                checkpoints.find(wanted, own, records, bases)
            except CheckpointsError as error:
                raise InvalidTopologyException(str(error)) from error
            yield origin

    def _package(self, location: str | None) -> Path:
        if not location:
            raise InvalidTopologyException(
                "no package was uploaded with the topology: submit it by `storm submit`"
            )
        try:
            return self._given.code.inbox.take(location)
        except TransferEndedError as error:
            raise InvalidTopologyException(str(error)) from error

    def _prepare(self, leader: LeaderClusterState, checked: _Checked) -> None:
        """Write all of a topology but its base, or leave nothing of it where that can be done."""
        storm_id, conf = checked.storm_id, self._given.conf
        credentials = checked.options.creds
        try:
            if credentials is not None and credentials.creds:
                with told():
                    leader.set_credentials(storm_id, credentials, conf)
            self._given.code.upload(
                storm_id,
                {
                    "stormjar.jar": checked.package,
                    "stormcode.ser": self._given.storm.codec.write(checked.topology),
                    "stormconf.ser": encode_conf(checked.conf),
                },
            )
            self._wait_for_copies(checked)
            leader.setup_heartbeats(storm_id, conf)
            leader.setup_errors(storm_id, conf)
            leader.setup_backpressure(storm_id, conf)
            self._hold(leader, checked)
        except BaseException:
            self._leave_nothing(leader, storm_id)
            raise

    def _hold(self, leader: LeaderClusterState, checked: _Checked) -> None:
        """See that the checkpoints which a topology goes on from are still there."""
        origin = checked.origin
        if origin is None:
            return
        record = copy.copy(origin.record)
        record.ended_ms = int(self._given.clock() * 1000)
        if not leader.change_checkpoints(record, origin.version):
            raise CallerError(
                f"the checkpoints of {record.storm_id} were changed meanwhile: submit it again"
            )

    def _wait_for_copies(self, checked: _Checked) -> None:
        """Wait until enough Nimbuses have a topology's code.

        Whoever wants to wait without an end is refused when its client has gone.
        """
        conf = {**self._given.conf, **checked.conf}
        found, secs = self._await_copies(checked.storm_id, conf)
        if found.is_enough:
            return
        if not found.copies:
            raise CallRefusedError(
                f"{checked.name} is not submitted: no Nimbus has its code any more; this Nimbus's"
                " disk has lost it, or its session with ZooKeeper has ended: submit it again"
            )
        told = f"{found.copies} of {found.wanted} copies of its code"
        if secs != conf[WAIT_SECS]:
            raise CallerError(
                f"{checked.name} is not submitted, as there are {told} after {secs:g} s: start"
                " more Nimbuses, or submit it with a lower topology.min.replication.count"
            )
        log.warning("%s is submitted with %s after %g s", checked.storm_id, told, secs)

    def _activate(self, leader: LeaderClusterState, storm_id: str, base: StormBase) -> None:
        """Have a topology be there."""
        try:
            try:
                leader.activate_storm(storm_id, base, self._given.conf)
            except OutcomeUnknownError:
                leader.activate_storm(storm_id, base, self._given.conf)
        except OutcomeUnknownError:
            # It may be there: nothing of it is to be removed.
            raise
        except BaseException:
            self._leave_nothing(leader, storm_id)
            raise

    def _leave_nothing(self, leader: LeaderClusterState, storm_id: str) -> None:
        with suppress(StormkeeperError):
            leader.remove_storm(storm_id)
            leader.teardown_heartbeats(storm_id)
            leader.teardown_errors(storm_id)
            leader.remove_backpressure(storm_id)
        with suppress(StormkeeperError):
            self._given.code.cleanup(storm_id)


def _kept(
    leader: LeaderClusterState, origin: Versioned[Checkpoints] | None, own: Mapping[str, Any]
) -> Checkpoints | None:
    """Return what a topology goes on from, without the checkpoints that its conf gives up."""
    lost = own.get(checkpoints.ABANDON) or ()
    if origin is None:
        if lost:
            raise InvalidTopologyException(
                f"{checkpoints.ABANDON} is for a topology that goes on from another one's"
                f" checkpoints: give {checkpoints.FROM}, too"
            )
        return None
    try:
        return checkpoints.abandoned(origin.record, lost, leader.supervisors())
    except CheckpointsError as error:
        raise InvalidTopologyException(str(error)) from error


def _described(package: Path) -> Description:
    """Return what a package says of its topology, once all of it was found to be whole."""
    try:
        with package.open("rb") as file:
            return archive.read_package(file).description
    except SerializationError as error:
        raise InvalidTopologyException(
            f"what was uploaded is no package that can be run here: {error}"
        ) from error


def _base(checked: _Checked, now: int) -> StormBase:
    is_active = checked.options.initial_status != TopologyInitialStatus.INACTIVE
    version = checked.conf.get("topology.version")
    return StormBase(
        name=checked.name,
        status=TopologyStatus.ACTIVE if is_active else TopologyStatus.INACTIVE,
        num_workers=checked.conf["topology.workers"],
        component_executors={
            id_: common.parallelism_hint or 1 for id_, common in commons(checked.topology).items()
        },
        launch_time_secs=now,
        owner=checked.conf[topology_conf.USER],
        principal=checked.conf[topology_conf.PRINCIPAL],
        topology_version=None if version is None else str(version),
        checkpoints=_checkpoints(checked),
    )


def _names_its_own(description: Description, conf: Mapping[str, Any]) -> bool:
    """Return whether a topology keeps no checkpoints in a folder of the cluster."""
    return description.kind == "script" and not conf.get(checkpoints.SCRIPTS, True)


def _checkpoints(checked: _Checked) -> Checkpoints | None:
    if _names_its_own(checked.description, checked.conf):
        return None
    if checked.kept is not None:
        return checkpoints.continued(checked.kept, checked.storm_id, checked.name)
    return checkpoints.begun(checked.storm_id, checked.name, checked.conf)


def _process_user() -> str:
    """Return the operating system's user that this process runs as."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # one without a name, as in a container
        return str(os.getuid())
