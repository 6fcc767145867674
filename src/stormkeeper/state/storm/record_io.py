"""How records are read from a store and written to it: the ground of all families of operations.

The types say who may write what. A `SessionWriter` writes what a process registers, beats and
reports. A `LeaderWriter` writes what decides about topologies; its store checks with every write
that it still leads. A `RecordWriter` writes what either of them may.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, Self, TypeVar

from thriftpy2.thrift import TPayload

from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.errors import NoNodeError, RecordTooLargeError, SerializationError, StateError
from stormkeeper.state.access import digest_id
from stormkeeper.state.leader_lock import FencedWriter
from stormkeeper.state.storage import ClusterState, StateReader, StateWriter
from stormkeeper.state.storm.subscriptions import Callback, WaitingCallbacks
from stormkeeper.state.watches import WatchKind
from stormkeeper.thrift.reader import with_article
from stormkeeper.thrift.serialization import (
    Compression,
    Release,
    compression_for,
    deserialize,
    release_for,
    serialize,
)

Record = TypeVar("Record", bound=TPayload)


class Codec:
    """How records are written; every form is read.

    Parameters
    ----------
    compression : Compression, optional
        Storm 2's default, gzip, if left out.
    release : Release, optional
        Which Storm is to read what is written; by `release_for` if left out.
    """

    def __init__(
        self, compression: Compression = Compression.GZIP, release: Release | None = None
    ) -> None:
        self._compression = compression
        #: Which Storm is to read what is written.
        self.release = release or release_for(compression)
        #: What the directories whose records are remembered had when they were last read.
        self._listed: dict[str, Mapping[str, _Read]] = {}

    @classmethod
    def from_conf(cls, conf: Conf) -> Self:
        """Return the codec that the configuration names.

        Raises
        ------
        ConfigError
            ``storm.meta.serialization.delegate`` is none that is known.
        """
        release = conf["storm.meta.serialization.release"]
        return cls(
            compression_for(conf["storm.meta.serialization.delegate"]),
            None if release is None else Release(release),
        )

    def read(self, cls: type[Record], data: bytes) -> Record:
        """Return the record of class `cls` that `data` is.

        Raises
        ------
        SerializationError
            It is none.
        """
        return deserialize(cls, data)

    def read_all(
        self, cls: type[Record], directory: str, values: Mapping[str, bytes]
    ) -> tuple[dict[str, Record], dict[str, SerializationError]]:
        """Return the records that `values` are, and what is wrong with those that are none.

        The bytes of a large cluster's records hardly change between two reads, and to decode them
        takes most of a read's time. So a record whose bytes are those of the last time is not
        decoded again: the same object is returned. Safe for many threads.

        Parameters
        ----------
        cls
            The records' class: one for each directory.
        directory
            Where they are. All that it had the last time is remembered, until it is read again.
        values
            All that is there, by name.
        """
        before, now = self._listed.get(directory, {}), dict[str, _Read]()
        failed = {}
        for name, data in values.items():
            known = before.get(name)
            if known is None or known.data != data:
                try:
                    known = _Read(data, self.read(cls, data))
                except SerializationError as error:
                    failed[name] = error
                    continue
            now[name] = known
        self._listed[directory] = now
        return {name: each.record for name, each in now.items()}, failed

    def write(self, record: TPayload) -> bytes:
        """Return a record's bytes.

        Raises
        ------
        SerializationError
            The record does not fit its schema.
        """
        return serialize(record, self._compression, release=self.release)


class _Read(NamedTuple):
    data: bytes
    record: Any


def checked(cls: type[Record], record: Record) -> Record:
    """Return `record` if it is of class `cls`: no other belongs where it is to be written.

    Raises
    ------
    TypeError
        It is not.
    """
    if type(record) is not cls:
        raise TypeError(f"expected a record of class {cls.__name__}, not {type(record).__name__}")
    return record


def stamped(record: Record, epoch: int) -> Record:
    """Return a copy of `record` that says which leader wrote it; the record itself stays.

    Only the copy's own fields are new: what they hold is shared with the record.

    Parameters
    ----------
    record : object
        A record of a class that has the field ``leader_epoch``.
    epoch : int
        The leader's: the creation zxid of its lock.
    """
    ours = copy.copy(record)
    ours.leader_epoch = epoch  # type: ignore[attr-defined]
    return ours


log = logging.getLogger(__name__)

#: How often a listing is tried whose node comes and goes meanwhile.
ROUNDS = 20

#: Where many records are that seldom change.
_REMEMBERED = frozenset({paths.STORMS, paths.ASSIGNMENTS})

#: Bytes of a leader's record: a ZooKeeper server hangs up on a request of 1 MiB, and with the
#: connection the lead would be gone.
LONGEST = 1_000_000

#: How many unreadable values are remembered, so that each is logged once.
REMEMBERED = 10_000


class Versioned(NamedTuple, Generic[Record]):
    """A record, and the version of its node."""

    record: Record
    version: int


class RecordReader:
    """Reads records, and has callbacks told when they change. Safe for many threads.

    Parameters
    ----------
    state : StateReader
        The store.
    codec : Codec
        How records are written in it.
    clock : callable, optional
        Seconds since 1970.
    """

    _state: StateReader

    def __init__(
        self, state: StateReader, codec: Codec, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._state = state
        self._codec = codec
        self._clock = clock
        self._callbacks = WaitingCallbacks(state)
        self._unreadable = 0
        self._unread: dict[str, int] = {}

    @property
    def unknown_events(self) -> int:
        """How many events were told of paths that are no part of Storm's layout."""
        return self._callbacks.unknown_events

    @property
    def unreadable(self) -> int:
        """How many values reads of several nodes left out, as they were no records."""
        return self._unreadable

    def _names(self, path: str, callback: Callback | None = None) -> list[str]:
        """Return the names of a node's children, sorted; none where it is absent.

        The callback is told once when they change, or when the absent node is made.
        """
        for _ in range(ROUNDS):
            try:
                with self._callbacks.once(WatchKind.CHILDREN, path, callback) as watch:
                    return self._state.get_children(path, watch)
            except NoNodeError:
                if callback is None:
                    return []
            with self._callbacks.once(WatchKind.NODE, path, callback) as watch:
                if not self._state.node_exists(path, watch):
                    return []
            # Made just now: wait for its children alone, or the callback would be told twice.
            self._callbacks.forget(WatchKind.NODE, path, callback)
        raise StateError(f"{path} came and went {ROUNDS} times while its children were read")

    def _record(
        self, cls: type[Record], path: str, callback: Callback | None = None
    ) -> Record | None:
        """Return a node's record, None where there is no node.

        The callback is told once when the node is made, deleted or given another value.

        Raises
        ------
        SerializationError
            The node's value is no such record; the callback waits all the same.
        """
        with self._callbacks.once(WatchKind.NODE, path, callback) as watch:
            data = self._state.get_data(path, watch)
        return None if data is None else self._read(cls, path, data)

    def _versioned(
        self, cls: type[Record], path: str, callback: Callback | None = None
    ) -> Versioned[Record] | None:
        """Return a node's record and version; else as `_record`."""
        with self._callbacks.once(WatchKind.NODE, path, callback) as watch:
            found = self._state.get_data_with_version(path, watch)
        return (
            None if found is None else Versioned(self._read(cls, path, found.data), found.version)
        )

    def _version(self, path: str, callback: Callback | None = None) -> int | None:
        """Return a node's version, None where there is no node; callback as `_record`."""
        with self._callbacks.once(WatchKind.NODE, path, callback) as watch:
            return self._state.get_version(path, watch)

    def _records(self, cls: type[Record], path: str) -> dict[str, Record]:
        """Return the records directly below a node, by name; those that cannot be read left out."""
        return self._listed(cls, path)[0]

    def _listed(self, cls: type[Record], path: str) -> tuple[dict[str, Record], set[str]]:
        """Return the records directly below a node, by name, and who of them cannot be read.

        Records of topologies are remembered, and shared by all who read them: nobody changes one
        that was read.
        """
        try:
            nodes = self._state.children_data(path)
        except NoNodeError:
            nodes = {}
        values = {name: node.data for name, node in nodes.items()}
        if path in _REMEMBERED:
            found, failed = self._codec.read_all(cls, path, values)
            for name, error in failed.items():
                self._leave_out(f"{path}/{name}", values[name], error)
        else:
            found = self._decoded(cls, path, values.items())
        return found, values.keys() - found.keys()

    def _decoded(
        self, cls: type[Record], path: str, values: Iterable[tuple[str, bytes]]
    ) -> dict[str, Record]:
        """Return the records that `values`, by name, below `path` are; others are left out.

        What is left out is counted and logged, once for each value.
        """
        records = {}
        for name, data in values:
            try:
                records[name] = self._codec.read(cls, data)
            except SerializationError as error:
                self._leave_out(f"{path}/{name}", data, error)
        return records

    def _read(self, cls: type[Record], path: str, data: bytes) -> Record:
        """Return the record that `data` is; an error says where it was found."""
        try:
            return self._codec.read(cls, data)
        except SerializationError as error:
            raise SerializationError(f"{path}: {error}") from error

    def _leave_out(self, path: str, data: bytes, error: SerializationError) -> None:
        known = hash(data)
        if self._unread.get(path) == known:
            return
        if len(self._unread) >= REMEMBERED:
            self._unread.clear()
        self._unread[path] = known
        self._unreadable += 1
        log.warning("%s is left out: %s", path, error)


class RecordWriter(RecordReader):
    """What leaders and others may write, each by a writer of its own kind."""

    _writer: StateWriter


class SessionWriter(RecordWriter):
    """What belongs to a session, or to a process: nobody has to lead for it."""

    _state: ClusterState


class LeaderWriter(RecordWriter):
    """What only a leader may write."""

    _writer: FencedWriter

    def _put(
        self,
        cls: type[Record],
        path: str,
        record: Record,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a record, with the leader's epoch; the one that was given stays as it is.

        Raises
        ------
        NotLeaderError
            Somebody else may lead by now; nothing was written.
        OutcomeUnknownError
            The connection was lost in mid-write: written or not.
        RecordTooLargeError
            It has too many bytes.
        TypeError
            `record` is not of class `cls`.
        """
        data = self._stamped(checked(cls, record))
        self._writer.set_data(path, data, workers=workers_of(topology_conf))

    def _stamped(self, record: TPayload) -> bytes:
        data = self._codec.write(stamped(record, self._writer.fence.epoch))
        if len(data) > LONGEST:
            raise RecordTooLargeError(
                f"{with_article(type(record))} of {len(data):,} bytes: {LONGEST:,} are the most"
                " that ZooKeeper keeps of one"
            )
        return data


def workers_of(topology_conf: Mapping[str, Any] | None) -> str | None:
    """Return the digest of a topology's own workers, None where its configuration names none."""
    payload = (topology_conf or {}).get("storm.zookeeper.topology.auth.payload")
    return digest_id(payload) if payload else None
