"""Records in a store: encoding, reads with callbacks, and writers by authority.

A `SessionWriter` writes a process's registrations, heartbeats and reports; a `LeaderWriter`
decisions about topologies, fenced, with the leader's epoch; a `RecordWriter` what either may write.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple

from thriftpy2.thrift import TPayload

from stormkeeper.errors import NoNodeError, RecordTooLargeError, SerializationError, StateError
from stormkeeper.state.fenced_writer import FencedWriter
from stormkeeper.state.storage import ClusterState, StateReader, StateWriter, digest_id
from stormkeeper.state.watches import Callback, WaitingCallbacks, WatchKind
from stormkeeper.thrift.reader import with_article
from stormkeeper.thrift.serialization import Codec, Record

log = logging.getLogger(__name__)

#: Attempts beside other sessions' changes.
ROUNDS = 20

#: A ZooKeeper server hangs up on 1 MiB, and the leadership would end with the connection.
LONGEST = 1_000_000

#: Remembered unreadable values, each of which is logged once.
MOST_UNREADABLE = 10_000


def checked(cls: type[Record], record: Record) -> Record:
    if type(record) is not cls:
        raise TypeError(f"expected a record of class {cls.__name__}, not {type(record).__name__}")
    return record


def stamped(record: Record, epoch: int) -> Record:
    ours = copy.copy(record)
    ours.leader_epoch = epoch  # type: ignore[attr-defined]
    return ours


class Versioned(NamedTuple, Generic[Record]):
    """A record, and the node's version."""

    record: Record
    version: int


class RecordReader:
    """Reads records, and calls callbacks on changes. Thread-safe.

    A read of an absent record returns None; deleting one is fine.
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
        """Events at paths outside Storm's layout."""
        return self._callbacks.unknown_events

    @property
    def unreadable(self) -> int:
        """Unreadable values that bulk reads left out."""
        return self._unreadable

    def _names(self, path: str, callback: Callback | None = None) -> list[str]:
        """Return the sorted names of a node's children; none if absent.

        The callback is called once when they change, or the absent node is made.
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
            # Made just now: wait for the children alone, or the callback comes twice.
            self._callbacks.forget(WatchKind.NODE, path, callback)
        raise StateError(f"{path} came and went {ROUNDS} times while its children were read")

    def _record(
        self, cls: type[Record], path: str, callback: Callback | None = None
    ) -> Record | None:
        """Return a node's record, None if absent.

        The callback stays registered if the value is unreadable (`SerializationError`).
        """
        found = self._versioned(cls, path, callback)
        return None if found is None else found.record

    def _versioned(
        self, cls: type[Record], path: str, callback: Callback | None = None
    ) -> Versioned[Record] | None:
        with self._callbacks.once(WatchKind.NODE, path, callback) as watch:
            found = self._state.get_data_with_version(path, watch)
        if found is None:
            return None
        return Versioned(self._read(cls, path, found.data), found.version)

    def _version(self, path: str, callback: Callback | None = None) -> int | None:
        with self._callbacks.once(WatchKind.NODE, path, callback) as watch:
            return self._state.get_version(path, watch)

    def _records(self, cls: type[Record], path: str) -> dict[str, Record]:
        """Return the readable records directly below a node, by name."""
        try:
            nodes = self._state.children_data(path)
        except NoNodeError:
            nodes = {}
        return self._decoded(cls, path, ((name, node.data) for name, node in nodes.items()))

    def _decoded(
        self, cls: type[Record], path: str, values: Iterable[tuple[str, bytes]]
    ) -> dict[str, Record]:
        records = {}
        for name, data in values:
            try:
                records[name] = self._codec.read(cls, data)
            except SerializationError as error:
                self._leave_out(f"{path}/{name}", data, error)
        return records

    def _read(self, cls: type[Record], path: str, data: bytes) -> Record:
        try:
            return self._codec.read(cls, data)
        except SerializationError as error:
            raise SerializationError(f"{path}: {error}") from error

    def _leave_out(self, path: str, data: bytes, error: SerializationError) -> None:
        known = hash(data)
        if self._unread.get(path) == known:
            return
        if len(self._unread) >= MOST_UNREADABLE:
            self._unread.clear()
        self._unread[path] = known
        self._unreadable += 1
        log.warning("%s is left out: %s", path, error)


class RecordWriter(RecordReader):
    """Writes that leaders and other processes may do."""

    _writer: StateWriter


class SessionWriter(RecordWriter):
    """Writes that need no leadership."""

    _state: ClusterState


class LeaderWriter(RecordWriter):
    """Writes of the leader alone."""

    _writer: FencedWriter

    def _put(
        self,
        cls: type[Record],
        path: str,
        record: Record,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        data = self._encoded(checked(cls, record))
        self._writer.set_data(path, data, workers_digest=digest_of_workers(topology_conf))

    def _encoded(self, record: TPayload, *, is_followed: bool = False) -> bytes:
        """Encode a record; `is_followed`: for a new record that the view reads at once."""
        ours = stamped(record, self._writer.fence.epoch)
        data = self._codec.write(ours)
        if is_followed:
            self._codec.expect(data, ours)
        if len(data) > LONGEST:
            raise RecordTooLargeError(
                f"{with_article(type(record))} of {len(data):,} bytes: {LONGEST:,} are the most"
                " that ZooKeeper keeps of one"
            )
        return data


def digest_of_workers(topology_conf: Mapping[str, Any] | None) -> str | None:
    payload = (topology_conf or {}).get("storm.zookeeper.topology.auth.payload")
    return digest_id(payload) if payload else None
