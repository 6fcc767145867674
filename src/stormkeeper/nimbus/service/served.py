"""What all groups of the service's methods have: who calls, who leads, and topologies by name."""

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
from stormkeeper.nimbus.reign import Reign
from stormkeeper.nimbus.service.given import Given
from stormkeeper.nimbus.submitted import Submitted
from stormkeeper.rpc.dispatching import caller
from stormkeeper.thrift.nimbus import (
    InvalidTopologyException,
    KeyAlreadyExistsException,
    KeyNotFoundException,
    NotAliveException,
)
from stormkeeper.thrift.records import StormBase

#: How long it is waited for copies of a topology's code.
WAIT_SECS: Final = "topology.max.replication.wait.time.sec"


class Served:
    """A group of methods.

    Parameters
    ----------
    given
        What it works with.
    """

    def __init__(self, given: Given) -> None:
        self._given = given

    def _principal(self) -> str:
        """Return who calls; '' as long as nobody is asked who he is."""
        try:
            return caller().user or ""
        except LookupError:  # by no call
            return ""

    def _reign(self) -> Reign:
        """Return what a leader writes with.

        Raises
        ------
        CallRefusedError
            This Nimbus does not lead. Clients, Storm's too, look for the leader then.
        """
        try:
            return self._given.reign()
        except NotLeaderError as error:
            raise CallRefusedError(f"not a leader, {self._leader()}") from error

    def _leader(self) -> str:
        try:
            leader = self._given.leadership.leader_address()
        except StateError:
            return "and no leader is known: ask again in a moment"
        return f"current leader is {host_port(leader.host, leader.port)}"

    def _led(self, name: str) -> tuple[Reign, str, StormBase]:
        """Return what a leader writes with, and the topology of a name, which it commands.

        Raises
        ------
        CallRefusedError
            As `_reign`.
        NotAliveException
            There is none of that name.
        """
        reign = self._reign()
        for storm_id, base in reign.leader.storm_bases().items():
            if base.name == name:
                return reign, storm_id, base
        raise NotAliveException(f"{name} is not alive")

    def _named(self, name: str) -> tuple[str, StormBase]:
        """Return the topology of a name, on whichever Nimbus this is.

        Raises
        ------
        NotAliveException
            There is none of that name.
        """
        storm = self._given.storm
        for is_sure in (False, True):
            if is_sure:
                # The server that was asked may lag behind.
                storm.state.sync_path(paths.STORMS)
            for storm_id, base in storm.storm_bases().items():
                if base.name == name:
                    return storm_id, base
        raise NotAliveException(f"{name} is not alive")

    def _base(self, storm_id: str) -> StormBase:
        """Return the base of a topology, on whichever Nimbus this is.

        Raises
        ------
        NotAliveException
            There is no topology of that id.
        """
        storm = self._given.storm
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
        """Return what was submitted of a topology that there is.

        Raises
        ------
        CallRefusedError
            Its code is not here.
        """
        submitted = self._given.submitted.get(storm_id)
        if submitted is None:
            raise CallRefusedError(
                f"the code of {storm_id} is not on this Nimbus: ask another one, or again when it"
                " has been copied"
            )
        return submitted

    def _conf(self, storm_id: str) -> Mapping[str, Any]:
        """Return a topology's configuration over this Nimbus's; that alone without its code."""
        submitted = self._given.submitted.get(storm_id)
        own = {} if submitted is None else submitted.conf
        return {**self._given.conf, **{k: v for k, v in own.items() if v is not None}}

    def _check_blobs(self, conf: Mapping[str, Any]) -> None:
        """Check that there are the blobs that a topology uses by its configuration.

        Raises
        ------
        InvalidTopologyException
            There are not.
        """
        used = conf.get("topology.blobstore.map") or {}
        if not isinstance(used, dict):
            raise InvalidTopologyException("topology.blobstore.map is no mapping")
        known = self._given.storm.blobs(list(used)) if used else {}
        for key in used:
            if key not in known:
                raise InvalidTopologyException(f"Key not found: {key}")

    def _await_copies(
        self, storm_id: str, conf: Mapping[str, Any]
    ) -> tuple[replication.Replication, float]:
        """Wait until enough Nimbuses have a topology's code, but not longer than a client does.

        Parameters
        ----------
        conf
            The topology's over the cluster's.

        Returns
        -------
        Replication, float
            How many have it, and for how many seconds it was waited at most.
        """
        asked, longest = conf[WAIT_SECS], conf["storm.thrift.socket.timeout.ms"] / 1000
        secs = asked if 0 < asked <= longest else longest
        return replication.wait(self._given.storm, storm_id, {**conf, WAIT_SECS: secs}), secs


@contextmanager
def told(key: str | None = None) -> Iterator[None]:
    """Have a client be told what is wrong with blobs and files, and with what is too large.

    Parameters
    ----------
    key
        Of the blob that the client speaks of, where its method declares what is wrong with that.
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
