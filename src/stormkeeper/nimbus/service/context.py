"""The parts of a Nimbus for the calls of the service, and the base of all groups of calls."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from stormkeeper.blobs import distributor
from stormkeeper.blobs.distributor import CodeDistributor
from stormkeeper.conf import Conf
from stormkeeper.errors import (
    BlobExistsError,
    BlobInUseError,
    BlobNotFoundError,
    CallerError,
    CallRefusedError,
    CheckpointsError,
    CodeError,
    InvalidBlobKeyError,
    NotLeaderError,
    RecordTooLargeError,
    StateError,
)
from stormkeeper.names import host_port
from stormkeeper.nimbus.elector import Elector
from stormkeeper.nimbus.lifecycle import ConfChanges
from stormkeeper.nimbus.scheduler import Leadership
from stormkeeper.nimbus.submitted import Submitted, SubmittedCode
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.nimbus import (
    AlreadyAliveException,
    InvalidTopologyException,
    KeyAlreadyExistsException,
    KeyNotFoundException,
    NotAliveException,
)
from stormkeeper.thrift.records import StormBase

#: Most submissions at once: each blocks a thread while its code is copied.
MOST: Final = 16


class Submissions:
    """The topologies that are being submitted to this Nimbus. Safe for many threads.

    Their code arrives before they exist, so the blob clean-up must spare it. Half of the service's
    `threads` stay free for other calls: Nimbuses fetch the copies that a submission needs.
    """

    def __init__(self, threads: int = 2 * MOST) -> None:
        self._most = max(1, min(MOST, threads // 2))
        self._lock = threading.Lock()
        self._counter = itertools.count(1)
        self._ids: dict[str, str | None] = {}
        self._continued: set[str] = set()

    def ids(self) -> Collection[str]:
        with self._lock:
            return [storm_id for storm_id in self._ids.values() if storm_id is not None]

    def continued(self) -> Collection[str]:
        with self._lock:
            return set(self._continued)

    @contextmanager
    def continuing(self, checkpoints: str) -> Iterator[None]:
        """Reserve a checkpoint folder for a submission; raises `CheckpointsError`."""
        with self._lock:
            if checkpoints in self._continued:
                raise CheckpointsError(
                    f"another topology is being submitted that goes on from {checkpoints}"
                )
            self._continued.add(checkpoints)
        try:
            yield
        finally:
            with self._lock:
                self._continued.discard(checkpoints)

    def new_id(self, name: str, now: float) -> str:
        """Return a submission's new topology id; `now` is in seconds since 1970."""
        storm_id = f"{name}-{next(self._counter)}-{int(now)}"
        with self._lock:
            self._ids[name] = storm_id
        return storm_id

    @contextmanager
    def submitting(self, name: str) -> Iterator[None]:
        """Reserve a topology name for a submission.

        Raises ``AlreadyAliveException``, or `CallRefusedError` if too many are in progress.
        """
        with self._lock:
            if name in self._ids:
                raise AlreadyAliveException(f"{name} is already alive")
            if len(self._ids) >= self._most:
                raise CallRefusedError(
                    f"as many topologies as may ({self._most}) are being submitted already: try"
                    " again in a moment"
                )
            self._ids[name] = None
        try:
            yield
        finally:
            with self._lock:
                del self._ids[name]


@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """The parts of the process that the service uses; all are thread-safe."""

    conf: Conf
    storm: StormClusterState
    code: CodeDistributor
    conf_changes: ConfChanges
    submitted: SubmittedCode
    elector: Elector
    leadership: Callable[[], Leadership]
    submissions: Submissions
    sched_status: Callable[[], Mapping[str, str]]
    removed: Callable[[str | None], Iterable[str]] = lambda _user: ()
    clock: Callable[[], float] = time.time


WAIT_SECS: Final = "topology.max.replication.wait.time.sec"


class CallGroup:
    """A group of the methods of Storm's ``storm.thrift``, which `Handler` joins with others."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def _leadership(self) -> Leadership:
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
        return self._leadership(), *self._topology_by_name(name)

    def _topology_by_name(self, name: str) -> tuple[str, StormBase]:
        view = self._context.storm.view
        for read in (view.caught_up, view.now):
            for storm_id, base in read().bases.items():
                if base.name == name:
                    return storm_id, base
        raise NotAliveException(f"{name} is not alive")

    def _base(self, storm_id: str) -> StormBase:
        view = self._context.storm.view
        base = view.caught_up().bases.get(storm_id) or view.now().bases.get(storm_id)
        if base is None:
            raise NotAliveException(storm_id)
        return base

    def _submitted(self, storm_id: str) -> Submitted:
        submitted = self._context.submitted.get(storm_id)
        if submitted is None:
            raise CallRefusedError(
                f"the code of {storm_id} is not on this Nimbus: ask another one, or again when it"
                " has been copied"
            )
        return submitted

    def _conf(self, storm_id: str) -> Mapping[str, Any]:
        # Without the code, this Nimbus's alone.
        submitted = self._context.submitted.get(storm_id)
        own = {} if submitted is None else submitted.conf
        return {**self._context.conf, **{k: v for k, v in own.items() if v is not None}}

    def _check_blobs(self, conf: Mapping[str, Any]) -> None:
        used = conf.get("topology.blobstore.map") or {}
        known = self._context.storm.blobs(list(used)) if used else {}
        for key in used:
            if key not in known:
                raise InvalidTopologyException(f"Key not found: {key}")

    def _await_copies(
        self, storm_id: str, conf: Mapping[str, Any]
    ) -> tuple[distributor.Replication, float]:
        asked, longest = conf[WAIT_SECS], conf["storm.thrift.socket.timeout.ms"] / 1000
        secs = asked if 0 < asked <= longest else longest
        return distributor.await_copies(
            self._context.storm, storm_id, {**conf, WAIT_SECS: secs}
        ), secs


class Handler:
    """The service: the public methods of all groups."""

    #: Not methods of Storm's.
    count_health: Callable[[], tuple[Mapping[str, int], float | None]]
    close: Callable[[], None]

    def __init__(self, *groups: CallGroup) -> None:
        for group in groups:
            for name in dir(group):
                if not name.startswith("_"):
                    setattr(self, name, getattr(group, name))


@contextmanager
def client_errors(key: str | None = None) -> Iterator[None]:
    """Turn errors of blobs, files and oversized records into errors that a client sees.

    `key` is the blob of a method that declares exceptions for existing and missing keys.
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
