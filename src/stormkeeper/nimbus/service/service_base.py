"""What all groups of Nimbus's calls share: the caller, the leader, topologies by name and id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from stormkeeper import paths
from stormkeeper.blobs import replication
from stormkeeper.errors import (
    BlobExistsError,
    BlobInUseError,
    BlobNotFoundError,
    CallerError,
    CallRefusedError,
    CodeError,
    InvalidBlobKeyError,
    InvalidPathError,
    NotLeaderError,
    RecordTooLargeError,
    StateError,
)
from stormkeeper.names import host_port
from stormkeeper.nimbus.leadership import Leadership
from stormkeeper.nimbus.service.context import ServiceContext
from stormkeeper.nimbus.submitted import Submitted
from stormkeeper.rpc.dispatcher import caller
from stormkeeper.thrift.nimbus import (
    InvalidTopologyException,
    KeyAlreadyExistsException,
    KeyNotFoundException,
    NotAliveException,
)
from stormkeeper.thrift.records import StormBase

#: Key of the longest wait for copies of a topology's code.
WAIT_SECS: Final = "topology.max.replication.wait.time.sec"


class CallGroup:
    """A group of the service's methods; `stormkeeper.nimbus.service.handler` joins the groups."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def _principal(self) -> str:
        """Return the authenticated caller; '' while authentication is off."""
        try:
            return caller().user or ""
        except LookupError:  # outside a call
            return ""

    def _leadership(self) -> Leadership:
        """Return the current leadership.

        Raises
        ------
        CallRefusedError
            This Nimbus does not lead. Clients, Storm's too, look for the leader then.
        """
        try:
            return self._context.leadership()
        except NotLeaderError as error:
            raise CallRefusedError(f"not a leader, {self._leader_text()}") from error

    def _leader_text(self) -> str:
        try:
            leader = self._context.elector.leader_address()
        except StateError:
            return "and no leader is known: ask again in a moment"
        return f"current leader is {host_port(leader.host, leader.port)}"

    def _led_topology(self, name: str) -> tuple[Leadership, str, StormBase]:
        """Return the current leadership, and a topology by name, for a command.

        Raises
        ------
        CallRefusedError
            This Nimbus does not lead.
        NotAliveException
            No topology has that name.
        """
        leadership = self._leadership()
        for storm_id, base in leadership.leader.storm_bases().items():
            if base.name == name:
                return leadership, storm_id, base
        raise NotAliveException(f"{name} is not alive")

    def _topology_by_name(self, name: str) -> tuple[str, StormBase]:
        """Return a topology by name, also on a Nimbus that does not lead.

        Raises
        ------
        NotAliveException
            No topology has that name.
        """
        storm = self._context.storm
        for is_synced in (False, True):
            if is_synced:
                # This session's server may lag behind the leader of the ensemble.
                storm.state.sync_path(paths.STORMS)
            for storm_id, base in storm.storm_bases().items():
                if base.name == name:
                    return storm_id, base
        raise NotAliveException(f"{name} is not alive")

    def _base(self, storm_id: str) -> StormBase:
        """Return the base of a topology, also on a Nimbus that does not lead.

        Raises
        ------
        NotAliveException
            No topology has that id.
        """
        storm = self._context.storm
        try:
            base = storm.storm_base(storm_id)
            if base is None:
                storm.state.sync_path(paths.STORMS)
                base = storm.storm_base(storm_id)
        except InvalidPathError:
            base = None
        if base is None:
            raise NotAliveException(storm_id)
        return base

    def _submitted(self, storm_id: str) -> Submitted:
        """Return an existing topology as it was submitted.

        Raises
        ------
        CallRefusedError
            The topology's code is not on this Nimbus.
        """
        submitted = self._context.submitted.get(storm_id)
        if submitted is None:
            raise CallRefusedError(
                f"the code of {storm_id} is not on this Nimbus: ask another one, or again when it"
                " has been copied"
            )
        return submitted

    def _conf(self, storm_id: str) -> Mapping[str, Any]:
        """Return a topology's conf over this Nimbus's; without the code, this Nimbus's alone."""
        submitted = self._context.submitted.get(storm_id)
        own = {} if submitted is None else submitted.conf
        return {**self._context.conf, **{k: v for k, v in own.items() if v is not None}}

    def _check_blobs(self, conf: Mapping[str, Any]) -> None:
        """Check that all blobs of a conf's ``topology.blobstore.map`` exist.

        Raises
        ------
        InvalidTopologyException
            A blob is missing, or the map is no mapping.
        """
        used = conf.get("topology.blobstore.map") or {}
        if not isinstance(used, dict):
            raise InvalidTopologyException("topology.blobstore.map is no mapping")
        known = self._context.storm.blobs(list(used)) if used else {}
        for key in used:
            if key not in known:
                raise InvalidTopologyException(f"Key not found: {key}")

    def _await_copies(
        self, storm_id: str, conf: Mapping[str, Any]
    ) -> tuple[replication.Replication, float]:
        """Wait until enough Nimbuses have a topology's code, at most as long as a client waits.

        `conf` is the topology's over the cluster's. Returns the number of copies, and the longest
        wait in seconds.
        """
        asked, longest = conf[WAIT_SECS], conf["storm.thrift.socket.timeout.ms"] / 1000
        secs = asked if 0 < asked <= longest else longest
        return replication.wait(self._context.storm, storm_id, {**conf, WAIT_SECS: secs}), secs


@contextmanager
def client_errors(key: str | None = None) -> Iterator[None]:
    """Turn errors of blobs, files and oversized records into errors that a client sees.

    `key` is the blob of a call whose method declares ``KeyNotFoundException`` and
    ``KeyAlreadyExistsException``.
    """
    try:
        yield
    except BlobInUseError:
        raise
    except (RecordTooLargeError, InvalidBlobKeyError) as error:
        raise CallerError(str(error)) from error
    except CodeError as error:
        if key is not None and isinstance(error, BlobExistsError):
            raise KeyAlreadyExistsException(key) from error
        if key is not None and isinstance(error, BlobNotFoundError):
            raise KeyNotFoundException(key) from error
        raise CallRefusedError(str(error)) from error
