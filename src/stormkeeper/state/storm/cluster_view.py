"""The records of a cluster in memory, in sync with the store: for plans and answers.

A `ClusterView` subscribes to topologies, assignments, supervisors, Nimbuses with their locks, and
the names of queries' nodes. Blobs' counts and holders have subscriptions of their own, from the
first use on: a dying Nimbus takes three holders for each topology along, and no plan waits. Each
version of a record is decoded once, and records that did not change are the same objects in all
snapshots: nobody may change them. For records of a single topology, such as profiler requests, make
a `Subscription` of your own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from sys import intern
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from stormkeeper import paths
from stormkeeper.errors import SerializationError
from stormkeeper.paths import BlobHolder
from stormkeeper.state import leader_lock
from stormkeeper.state.leader_lock import Lock
from stormkeeper.state.storage import NodeData, StateReader
from stormkeeper.state.storm.blob_records import counted
from stormkeeper.state.subscription import Subscription
from stormkeeper.state.subtrees import Node, Snapshot, Subtree
from stormkeeper.thrift.records import (
    Assignment,
    NimbusSummary,
    StormBase,
    SupervisorInfo,
    WorkerLaunch,
)
from stormkeeper.thrift.serialization import Codec

log = logging.getLogger(__name__)

T = TypeVar("T")

_RECORDS: Mapping[str, type] = {
    paths.STORMS: StormBase,
    paths.ASSIGNMENTS: Assignment,
    paths.SUPERVISORS: SupervisorInfo,
    paths.NIMBUSES: NimbusSummary,
}

Names = Mapping[str, frozenset[str]]


def records_below(path: str, codec: Codec) -> Subtree:
    """Return the subtree of a directory of records; an unreadable value is the error."""
    cls = _RECORDS[path]

    def decode(node: str, data: bytes) -> Any:
        try:
            record: Any = codec.read(cls, data)
        except SerializationError as error:
            log.warning("%s cannot be read: %s", node, error)
            return error
        compact = _COMPACTED.get(cls)
        return record if compact is None else compact(record)

    return Subtree(path, 1, decode)


class _Keys(dict[Any, int]):
    """The keys of equal maps, with the places of their values."""

    __slots__ = ("__weakref__",)


_KEYS: WeakValueDictionary[tuple[Any, ...], _Keys] = WeakValueDictionary()


class _Row(Mapping[Any, Any]):
    """A map that shares its keys with others: all assignments have executors (1, 1), (2, 2) ..."""

    __slots__ = ("_keys", "_values")

    def __init__(self, keys: Iterable[Any], values: Iterable[Any]) -> None:
        keys = tuple(keys)
        known = _KEYS.get(keys)
        if known is None:
            known = _KEYS[keys] = _Keys(zip(keys, range(len(keys)), strict=True))
        self._keys = known
        self._values = tuple(values)

    def __getitem__(self, key: Any) -> Any:
        return self._values[self._keys[key]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Row) and self._keys is other._keys:
            return self._values == other._values
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # as of any Mapping

    def __repr__(self) -> str:
        return repr(dict(self))


def _compact_assignment(record: Any) -> Any:
    """Share the parts that many assignments have."""
    places, times = record.executor_node_port, record.executor_start_time_secs
    for each in {id(each): each for each in (places or {}).values()}.values():
        each.node = intern(each.node)
    if places:
        record.executor_node_port = _Row(places, places.values())
    if times:
        same: dict[int, int] = {}
        shared = map(same.setdefault, times.values(), times.values())
        record.executor_start_time_secs = _Row(times, shared)
    if record.node_host:
        record.node_host = _interned(record.node_host)
    for number, launch in enumerate(record.launches or ()):
        launch.node = intern(launch.node)
        launch.queries = [*map(intern, launch.queries)]
        record.launches[number] = WorkerLaunch(**vars(launch))  # half as large, without a dict
    return record


def _compact_base(record: Any) -> Any:
    """Share names that many topologies have."""
    hints, kept = record.component_executors, record.checkpoints
    if hints:
        record.component_executors = _Row(map(intern, hints), hints.values())
    if kept is not None:
        kept.nodes, kept.hosts = _interned(kept.nodes), kept.hosts and _interned(kept.hosts)
    return record


def _interned(names: Mapping[str, str]) -> dict[str, str]:
    return {intern(name): intern(of) for name, of in names.items()}


_COMPACTED: Mapping[type, Callable[[Any], Any]] = {
    Assignment: _compact_assignment,
    StormBase: _compact_base,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecords:
    """The records of a cluster, of one snapshot of a `ClusterView`."""

    #: By topology id, as `assignments`, `ended` and `claimed`.
    bases: Mapping[str, StormBase]
    assignments: Mapping[str, Assignment]
    supervisors: Mapping[str, SupervisorInfo]
    #: By node name.
    nimbuses: Mapping[str, NimbusSummary]
    #: Queries that ended by themselves.
    ended: Names = field(default_factory=dict)
    #: Queries with a checkpoint that a launch has claimed.
    claimed: Names = field(default_factory=dict)
    #: By blob key; only of `ClusterView.with_holders`.
    holders: Mapping[str, tuple[BlobHolder, ...]] = field(default_factory=dict)
    #: The leader's lock, and those of the Nimbuses that wait.
    locks: tuple[Lock, ...] = ()
    #: Paths of unreadable records, which must not count as absent.
    unreadable: frozenset[str] = frozenset()
    #: By subtree and path.
    nodes: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)

    def version(self, path: str) -> int | None:
        """Return the version of the node directly below a directory; None if absent."""
        node = self.nodes.get(paths.parent(path), {}).get(path)
        return None if node is None else node.stat.version


class ClusterView:
    """Keeps `ClusterRecords` in sync with the store, from the first use on. Safe for many threads.

    Errors are those of `Subscription.caught_up`.
    """

    def __init__(self, state: StateReader, codec: Codec) -> None:
        #: By subtree, the nodes and what was made of them. Replaced as a whole: threads may race.
        self._made: Mapping[str, tuple[Mapping[str, Node], Any]] = {}
        self._state = state
        self._lock = threading.Lock()
        #: By path of the subtree.
        self._others: dict[str, Subscription] = {}
        self._holders: tuple[Mapping[str, Node], Mapping[str, tuple[BlobHolder, ...]]] = ({}, {})
        # Last: starts a thread.
        self.subscription = Subscription(
            state,
            [
                *(
                    # Each supervisor writes its record again every few seconds.
                    records_below(path, codec)._replace(is_busy=path == paths.SUPERVISORS)
                    for path in _RECORDS
                ),
                Subtree(paths.WORKERBEATS, 2),
                Subtree(paths.LEADER_LOCK, 1, lambda _path, data: data),
            ],
            name="cluster view",
        ).start()

    def close(self) -> None:
        self.subscription.close()
        with self._lock:
            for each in self._others.values():
                each.close()

    def latest(self) -> ClusterRecords:
        """Return the newest records, whatever their age; waits only for the first."""
        snapshot = self.subscription.snapshot
        return self._records(snapshot) if snapshot.revision else self.caught_up()

    def caught_up(self) -> ClusterRecords:
        """Return records with all writes of this session; supervisors' values may wait."""
        return self._records(self.subscription.caught_up())

    def with_holders(self) -> ClusterRecords:
        """Return records as `caught_up`, with the holders of blobs."""
        records = self.caught_up()
        nodes = self._nodes(Subtree(paths.BLOBSTORE, 2), "blob holders")
        known = self._holders
        if known[0] is not nodes:
            known = self._holders = (nodes, _holders(paths.BLOBSTORE, nodes))
        return replace(records, holders=known[1])

    def blob_counts(self) -> Mapping[str, tuple[int, int]]:
        """Return the highest version and `BlobRecord.born` by blob key, as `caught_up`."""
        top = paths.BLOB_KEY_SEQUENCES
        nodes = self._nodes(Subtree(top, 1, _counted), "blob counts")
        return {
            path.removeprefix(f"{top}/"): (node.value, node.stat.created)
            for path, node in nodes.items()
            if path != top
        }

    def _nodes(self, subtree: Subtree, name: str) -> Mapping[str, Node]:
        """Return the nodes of a subtree with a subscription of its own, as `caught_up`."""
        with self._lock:
            subscription = self._others.get(subtree.path)
            if subscription is None:
                subscription = Subscription(self._state, [subtree], name=name).start()
                self._others[subtree.path] = subscription
        return subscription.caught_up().trees[subtree.path]

    def now(self) -> ClusterRecords:
        """Return records with all writes before this call; supervisors' values may wait."""
        return self._records(self.subscription.now(may_wait=True))

    def _records(self, snapshot: Snapshot) -> ClusterRecords:
        trees, made = snapshot.trees, dict(self._made)

        def of(path: str, make: Callable[[str, Mapping[str, Node]], T]) -> T:
            nodes = trees[path]
            known = made.get(path)
            if known is None or known[0] is not nodes:
                known = made[path] = (nodes, make(path, nodes))
            value: T = known[1]
            return value

        tables = {path: of(path, _table) for path in _RECORDS}
        ended, claimed = of(paths.WORKERBEATS, _queries)
        records = ClusterRecords(
            bases=tables[paths.STORMS][0],
            assignments=tables[paths.ASSIGNMENTS][0],
            supervisors=tables[paths.SUPERVISORS][0],
            nimbuses=tables[paths.NIMBUSES][0],
            ended=ended,
            claimed=claimed,
            locks=of(paths.LEADER_LOCK, _locks),
            unreadable=frozenset().union(*(unreadable for _, unreadable in tables.values())),
            nodes=trees,
        )
        self._made = made
        return records


def _table(path: str, nodes: Mapping[str, Node]) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the records below `path` by name, sorted, and the paths of unreadable values."""
    names = sorted(nodes.keys() - {path})
    records = {
        name.removeprefix(f"{path}/"): nodes[name].value
        for name in names
        if not isinstance(nodes[name].value, SerializationError)
    }
    unreadable = (name for name in names if isinstance(nodes[name].value, SerializationError))
    return MappingProxyType(records), frozenset(unreadable)


def _below(path: str, nodes: Mapping[str, Node]) -> dict[str, list[str]]:
    """Return the names two levels below `path`, by the names one level below."""
    found: dict[str, list[str]] = {}
    for node in sorted(nodes):
        parent, _, name = node.removeprefix(f"{path}/").partition("/")
        if name:
            found.setdefault(parent, []).append(name)
    return found


def _queries(path: str, nodes: Mapping[str, Node]) -> tuple[Names, Names]:
    found = parsed_queries(_below(path, nodes))
    return _without_empty(found[0]), _without_empty(found[1])


def parsed_queries(names: Mapping[str, list[str]]) -> tuple[Names, Names]:
    """Return ended and claimed queries by topology, from the names below ``/workerbeats``."""
    return _parsed(names, paths.parse_query_end), _parsed(names, paths.parse_query_claim)


def _parsed(names: Mapping[str, list[str]], parse: Callable[[str], str | None]) -> Names:
    return {
        storm_id: frozenset(query for name in below if (query := parse(name)) is not None)
        for storm_id, below in names.items()
    }


def _without_empty(names: Names) -> Names:
    return MappingProxyType({storm_id: queries for storm_id, queries in names.items() if queries})


def _locks(path: str, nodes: Mapping[str, Node]) -> tuple[Lock, ...]:
    below = {name.removeprefix(f"{path}/"): node for name, node in nodes.items() if name != path}
    return tuple(
        leader_lock.in_line({name: NodeData(node.value, node.stat) for name, node in below.items()})
    )


def _counted(_path: str, data: bytes) -> int:
    return counted(data)


def _holders(path: str, nodes: Mapping[str, Node]) -> Mapping[str, tuple[BlobHolder, ...]]:
    return MappingProxyType(
        {
            key: tuple(holder for holder in map(paths.parse_blob_holder, names) if holder)
            for key, names in _below(path, nodes).items()
        }
    )
