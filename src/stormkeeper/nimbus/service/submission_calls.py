"""Calls that submit a topology: upload, checks, and the writes in their order.

Checks come in Storm's order and with Storm's messages. The base is written last: it makes the
topology exist. The cleaner removes the leftovers of an interrupted submission.
"""

from __future__ import annotations

import copy
import getpass
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from stormkeeper.nimbus.cleanup import every_base
from stormkeeper.nimbus.service import topology_checks
from stormkeeper.nimbus.service.context import WAIT_SECS, CallGroup, client_errors
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
    name: str
    storm_id: str
    package: Path
    description: Description
    topology: StormTopology
    conf: Mapping[str, Any]
    options: SubmitOptions
    #: Checkpoints to continue from; None: a fresh start.
    origin: Versioned[Checkpoints] | None
    #: The same without the abandoned ones.
    kept: Checkpoints | None


class SubmissionCalls(CallGroup):
    """The calls that submit topologies."""

    def isTopologyNameAllowed(self, name: str, /) -> bool:
        bases = self._context.storm.view.now().bases.values()
        return topology_fault(name) is None and all(base.name != name for base in bases)

    def beginFileUpload(self) -> str:
        self._leadership()
        with client_errors():
            return self._context.code.inbox.begin()

    def uploadChunk(self, location: str, chunk: bytes, /) -> None:
        with client_errors():
            self._context.code.inbox.chunk(location, chunk)

    def finishFileUpload(self, location: str, /) -> None:
        with client_errors():
            self._context.code.inbox.finish(location)

    def submitTopology(
        self, name: str, location: str | None, json_conf: str, topology: StormTopology, /
    ) -> None:
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
        leadership = self._leadership()
        if fault := topology_fault(name):
            raise InvalidTopologyException(fault)
        with self._context.submissions.submitting(name), ExitStack() as going:
            bases = leadership.leader.view.caught_up().bases
            if any(base.name == name for base in bases.values()):
                raise AlreadyAliveException(f"{name} is already alive")
            own = topology_checks.read_conf(json_conf)
            self._check_blobs(own)
            origin = self._origin(leadership.leader, own, going)
            now = self._context.clock()
            storm_id = self._context.submissions.new_id(name, now)
            saved = topology_checks.saved_conf(
                own, self._context.conf, storm_id=storm_id, name=name, user=_process_user()
            )
            kept = _kept(leadership.leader, origin, own)
            conf = checkpoints.conf_of(saved, kept)
            topology_checks.check(topology)
            package = self._package(location)
            description = _described(package)
            topology_checks.check_package(topology, description)
            if origin is not None and _names_its_own(description, conf):
                raise InvalidTopologyException(checkpoints.OF_SCRIPTS)
            topology_checks.check_limits(
                conf["topology.workers"], max(1, len(description.executors)), self._context.conf
            )
            checked = _Checked(
                name=name,
                storm_id=storm_id,
                package=package,
                description=description,
                topology=topology_checks.normalised(topology, description),
                conf=conf,
                options=options,
                origin=origin,
                kept=kept,
            )
            self._prepare(leadership.leader, checked)
            self._activate(leadership.leader, storm_id, _base(checked, int(now)))
        package.unlink(missing_ok=True)
        log.info("submitted %s as %s", name, storm_id)
        leadership.wake()

    def _origin(
        self, leader: LeaderClusterState, own: Mapping[str, Any], going: ExitStack
    ) -> Versioned[Checkpoints] | None:
        """Return the checkpoints to continue from, reserved until `going` closes."""
        wanted = own.get(checkpoints.FROM)
        if wanted is None:
            return None
        try:
            found = checkpoints.find(wanted, own, leader.all_checkpoints(), every_base(leader))
            going.enter_context(self._context.submissions.continuing(found.folder))
            # Again, now that the folder is reserved.
            origin = leader.checkpoints(found.folder)
            records = {} if origin is None else {found.folder: origin.record}
            checkpoints.find(wanted, own, records, every_base(leader))
        except CheckpointsError as error:
            raise InvalidTopologyException(str(error)) from error
        return origin

    def _package(self, location: str | None) -> Path:
        if not location:
            raise InvalidTopologyException(
                "no package was uploaded with the topology: submit it by `storm submit`"
            )
        try:
            return self._context.code.inbox.take(location)
        except TransferEndedError as error:
            raise InvalidTopologyException(str(error)) from error

    def _prepare(self, leader: LeaderClusterState, checked: _Checked) -> None:
        """Write everything but the base; on failure remove everything again."""
        storm_id, conf = checked.storm_id, self._context.conf
        credentials = checked.options.creds
        try:
            if credentials is not None and credentials.creds:
                with client_errors():
                    leader.set_credentials(storm_id, credentials, conf)
            self._context.code.upload(
                storm_id,
                {
                    "stormjar.jar": checked.package,
                    "stormcode.ser": self._context.storm.codec.write(checked.topology),
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
        """Check in ZooKeeper that the checkpoints to continue from are unchanged."""
        origin = checked.origin
        if origin is None:
            return
        record = copy.copy(origin.record)
        record.ended_ms = int(self._context.clock() * 1000)
        if not leader.change_checkpoints(record, origin.version):
            raise CallerError(
                f"the checkpoints of {record.storm_id} were changed meanwhile: submit it again"
            )

    def _wait_for_copies(self, checked: _Checked) -> None:
        """Wait until enough Nimbuses have the code, at most until the client gives up."""
        conf = {**self._context.conf, **checked.conf}
        found, secs = self._await_copies(checked.storm_id, conf)
        if found.is_enough:
            return
        if not found.copies:
            raise CallRefusedError(
                f"{checked.name} is not submitted: no Nimbus has its code any more; this Nimbus's"
                " disk has lost it, or its session with ZooKeeper has ended: submit it again"
            )
        copies = f"{found.copies} of {found.wanted} copies of its code"
        if secs != conf[WAIT_SECS]:
            raise CallerError(
                f"{checked.name} is not submitted, as there are {copies} after {secs:g} s: start"
                " more Nimbuses, or submit it with a lower topology.min.replication.count"
            )
        log.warning("%s is submitted with %s after %g s", checked.storm_id, copies, secs)

    def _activate(self, leader: LeaderClusterState, storm_id: str, base: StormBase) -> None:
        try:
            try:
                leader.activate_storm(storm_id, base, self._context.conf)
            except OutcomeUnknownError:
                leader.activate_storm(storm_id, base, self._context.conf)
        except OutcomeUnknownError:
            # The topology may exist: nothing is removed.
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
            self._context.code.cleanup(storm_id)


def _kept(
    leader: LeaderClusterState, origin: Versioned[Checkpoints] | None, own: Mapping[str, Any]
) -> Checkpoints | None:
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
        owner=checked.conf[topology_checks.USER],
        principal=checked.conf[topology_checks.PRINCIPAL],
        topology_version=None if version is None else str(version),
        checkpoints=_checkpoints(checked),
    )


def _names_its_own(description: Description, conf: Mapping[str, Any]) -> bool:
    return description.kind == "script" and not conf.get(checkpoints.SCRIPTS, True)


def _checkpoints(checked: _Checked) -> Checkpoints | None:
    if _names_its_own(checked.description, checked.conf):
        return None
    if checked.kept is not None:
        return checkpoints.continued(checked.kept, checked.storm_id, checked.name)
    return checkpoints.begun(checked.storm_id, checked.name, checked.conf)


def _process_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # one without a name, as in a container
        return str(os.getuid())
