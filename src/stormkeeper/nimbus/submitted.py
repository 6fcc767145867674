"""Topologies as submitted, read from the blobs of their code; no user code runs.

As in Storm, a component's ``json_conf`` has its number of tasks as ``topology.tasks``.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import is_not
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from stormkeeper.blobs import keys
from stormkeeper.blobs.store import BlobStore
from stormkeeper.conf import Conf
from stormkeeper.conf.keys import is_secret
from stormkeeper.conf.schema import SCHEMA
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import BlobNotFoundError, CodeError, ConfigError, SerializationError
from stormkeeper.nimbus.scheduling.cluster import Topology
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.state.storm.cluster_view import ClusterView
from stormkeeper.statistics.executor_reports import DeclaredComponent, components_of_tasks
from stormkeeper.thrift.nimbus import ComponentCommon, StormTopology
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.records import StormBase
from stormkeeper.thrift.serialization import decompress
from stormkeeper.topology.description import Description, ExecutorDescription, with_parallelism
from stormkeeper.topology.package.archive import Package
from stormkeeper.topology.package.manifest import DESCRIPTION

log = logging.getLogger(__name__)

TASKS: Final = "topology.tasks"

#: Lists of tasks must fit into memory.
MOST_TASKS: Final = 100_000

#: Largest decompressed topology or conf, in bytes.
_LARGEST: Final = 32 * 1024 * 1024

#: Most descriptions of packages kept.
_PACKAGES: Final = 64

#: Bytes of all cached topologies; the objects made from them take forty times as much.
_REMEMBERED: Final = 2 * 1024 * 1024


@dataclass(frozen=True)
class Submitted:
    """A topology as submitted; a foreign package has no description."""

    topology: StormTopology
    conf: Mapping[str, Any]
    description: Description | None

    def spread(self, hints: Mapping[str, int]) -> Submitted:
        """Return the topology with other parallelism, as by a rebalance."""
        if self.description is None:
            return self
        description = with_parallelism(self.description, hints)
        return self if description is self.description else replace(self, description=description)

    @cached_property
    def shown_conf(self) -> str:
        """The conf as JSON, without secrets, which Storm's Nimbus may have saved."""
        shown = {key: value for key, value in self.conf.items() if not is_secret(key)}
        return json.dumps(shown, sort_keys=True)

    @cached_property
    def queries(self) -> tuple[str, ...]:
        """The queries to run; a script is a single query."""
        return () if self.description is None else self.description.query_ids

    @cached_property
    def executors(self) -> tuple[ExecutorDescription, ...]:
        if self.description is None:
            return ()
        if self.description.kind == "script":
            name = self.description.name
            return (ExecutorDescription(name, name, 1, 1),)
        return self.description.executors

    @property
    def is_script(self) -> bool:
        """Whether only a running worker knows the components."""
        return self.description is not None and self.description.kind == "script"

    @cached_property
    def components(self) -> Mapping[str, DeclaredComponent]:
        executors, tasks = Counter[str](), Counter[str]()
        for executor in self.executors:
            executors[executor.component] += 1
            tasks[executor.component] += executor.task_end - executor.task_start + 1
        found = {}
        for id_, common in commons(self.topology).items():
            hint = common.parallelism_hint
            hint = 1 if hint is None else hint
            found[id_] = DeclaredComponent(
                kind="spout" if id_ in self.topology.spouts else "bolt",
                num_executors=executors[id_] or hint,
                num_tasks=tasks[id_] or _tasks(common, hint),
            )
        return MappingProxyType(found)

    @cached_property
    def tasks(self) -> Mapping[int, str]:
        counts = {id_: component.num_tasks for id_, component in self.components.items()}
        return MappingProxyType(components_of_tasks(counts))


class SubmittedCode:
    """Reads topologies' code from this Nimbus's disk, cached by checksum. Safe for many threads."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._read: OrderedDict[str, _Read] = OrderedDict()
        #: By checksum of the package, which many topologies may share.
        self._descriptions: dict[str, tuple[Description, int]] = {}
        #: Of the store at a revision.
        self._versions: tuple[int, dict[str, tuple[str, ...] | None]] = (-1, {})

    @property
    def revision(self) -> int:
        """The revision of this Nimbus's blobs: while it stays, all versions stay."""
        return self._store.revision

    def version(self, storm_id: str) -> tuple[str, ...] | None:
        """Return the checksums of a topology's code; None if incomplete here."""
        # First: what is read now may be newer, and is then read again.
        revision = self._store.revision
        known = self._versions
        if known[0] != revision:
            known = self._versions = (revision, {})
        if storm_id not in known[1]:
            records = [self._store.get(key) for key in keys.of_topology(storm_id)]
            found = tuple(record.sha256 for record in records if record is not None)
            known[1][storm_id] = found if len(found) == len(records) else None
        return known[1][storm_id]

    def get(self, storm_id: str) -> Submitted | None:
        """Return a topology; None if incomplete here. Raises `CodeError` if damaged."""
        blobs, state = keys.of_topology(storm_id), self.version(storm_id)
        if state is None:
            return None
        with self._lock:
            known = self._read.get(storm_id)
            if known is not None and known.of == state:
                self._read.move_to_end(storm_id)
                return known.what
        try:
            found, cost = self._submitted(*blobs)
        except BlobNotFoundError:  # deleted just now
            return None
        except (SerializationError, OSError) as error:
            # Damaged blobs are fetched again from another Nimbus.
            records = [self._store.get(key) for key in blobs]
            if any(self._store.drop_damaged(record) for record in records if record):
                return None
            raise CodeError(f"the code of {storm_id} is damaged: {error}") from error
        with self._lock:
            self._read[storm_id] = _Read(state, found, cost)
            while sum(each.cost for each in self._read.values()) > _REMEMBERED:
                self._read.popitem(last=False)
        return found

    def _submitted(self, jar: str, code: str, conf: str) -> tuple[Submitted, int]:
        struct, saved = self._bytes(code), self._bytes(conf)
        description, described = self._description(jar)
        topology = decode(StormTopology, struct)
        found = Submitted(topology, MappingProxyType(decode_conf(saved)), description)
        _check_tasks(sum(component.num_tasks for component in found.components.values()))
        return found, len(struct) + len(saved) + described

    def _description(self, jar: str) -> tuple[Description | None, int]:
        """Return a package's description and the bytes of it; none of a Java topology's."""
        record, file = self._store.open(jar)
        with file:
            known = self._descriptions.get(record.sha256)
            if known is not None:
                return known
            try:
                package = Package(file)
            except SerializationError:
                return None, 0
        size = sum(each.size for each in package.manifest.files if each.name == DESCRIPTION)
        if len(self._descriptions) >= _PACKAGES:
            self._descriptions.clear()
        self._descriptions[record.sha256] = found = (package.description, size)
        return found

    def _bytes(self, key: str) -> bytes:
        record, file = self._store.open(key)
        with file:
            if record.size > _LARGEST:
                raise SerializationError(f"{key} has {record.size:,} bytes")
            return decompress(file.read(), _LARGEST)


class SchedulingCode(SubmittedCode):
    """Reads only what scheduling needs: the topologies have no components.

    Decoding these takes longer than the rest. `TopologyCache` keeps the results.
    """

    def _submitted(self, jar: str, code: str, conf: str) -> tuple[Submitted, int]:  # noqa: ARG002
        own, (description, _) = decode_conf(self._bytes(conf)), self._description(jar)
        found = Submitted(StormTopology({}, {}, {}), MappingProxyType(own), description)
        _check_tasks(sum(one.task_end - one.task_start + 1 for one in found.executors))
        return found, _REMEMBERED + 1


def _check_tasks(count: int) -> None:
    if count > MOST_TASKS:
        raise SerializationError(f"it has more than {MOST_TASKS:,} tasks")


class _Read(NamedTuple):
    of: tuple[str, ...]
    what: Submitted
    cost: int


def commons(topology: StormTopology) -> dict[str, ComponentCommon]:
    parts = (topology.spouts, topology.bolts, topology.state_spouts)
    return {id_: part.common for group in parts for id_, part in group.items()}


def encode_conf(conf: Mapping[str, Any]) -> bytes:
    return gzip.compress(json.dumps(conf, sort_keys=True).encode(), mtime=0)


def decode_conf(data: bytes) -> dict[str, Any]:
    """Read a configuration of `encode_conf` or Storm; raises `SerializationError`."""
    try:
        conf = json.loads(decompress(data, _LARGEST))
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"a topology's saved conf is no JSON: {error}") from error
    if not isinstance(conf, dict):
        raise SerializationError("a topology's saved conf is no mapping")
    return conf


def topology_value(key: str, own: Mapping[str, Any]) -> Any:
    """Return a saved configuration's value as the key's type; raises `ConfigError`."""
    try:
        return SCHEMA[key].convert(own[key])
    except ConfigError as error:
        raise ConfigError(f"its saved conf has a value of {key} that is none: {error}") from error


def _tasks(common: ComponentCommon, hint: int) -> int:
    try:
        tasks = json.loads(common.json_conf or "{}").get(TASKS, hint)
    except (ValueError, AttributeError, RecursionError):
        tasks = hint
    return max(0, tasks) if isinstance(tasks, int) else hint


_MEMORY: Final = "topology.worker.memory.mb"
_SHARED: Final = "topology.checkpoint.shared"
_WAIT: Final = "topology.message.timeout.secs"


@dataclass(frozen=True, slots=True)
class CachedTopology:
    """The facts of a topology's package and conf for scheduling."""

    #: The fields that come from package, conf, and nodes of the queries.
    facts: Topology
    executors: tuple[ExecutorDescription, ...]
    conf: Mapping[str, Any]
    #: Of a kill or rebalance that specifies no wait.
    wait_secs: float


class TopologyCache:
    """Caches `CachedTopology` by version of the code and parallelism.

    `conf` provides defaults for a topology's own values. `topologies` is for one thread;
    `read_ahead` may run on another.
    """

    def __init__(self, code: SubmittedCode, conf: Conf) -> None:
        self._code = code
        self._conf = conf
        #: Guards `_cached`.
        self._lock = threading.Lock()
        #: By topology id, with the version and parallelism of the entry.
        self._cached: dict[str, tuple[Hashable, Mapping[str, int], CachedTopology]] = {}
        #: By topology id, with what of a snapshot is in the entry.
        self._last: dict[str, tuple[CachedTopology, tuple[object, ...], CachedTopology]] = {}
        #: The last answer, and what it was made of.
        self._answer: tuple[tuple[object, ...], dict[str, CachedTopology]] | None = None

    def topologies(
        self, snapshot: ClusterSnapshot, texts: Mapping[str, str]
    ) -> dict[str, CachedTopology]:
        """Return the snapshot's topologies with code on this Nimbus.

        A topology that is as in the last call is the same object.
        """
        # First: what is read below may be newer, and is then read again.
        sources = (self._code.revision, snapshot.bases, snapshot.ended, snapshot.claimed, texts)
        if self._answer is not None and not any(map(is_not, self._answer[0], sources)):
            return self._answer[1]
        with self._lock:
            for gone in self._cached.keys() - snapshot.bases.keys():
                del self._cached[gone]
        found, none = {}, frozenset[str]()
        for storm_id, base in snapshot.bases.items():
            known = self.read_ahead(storm_id, base)
            if known is None:
                continue
            ended = snapshot.ended.get(storm_id, none)
            claimed, text = snapshot.claimed.get(storm_id, none), texts.get(storm_id, "")
            last = self._last.get(storm_id)
            if last is None or last[0] is not known or last[1] != (ended, claimed, text):
                facts = replace(known.facts, ended=ended, claimed=claimed, text=text)
                last = (known, (ended, claimed, text), replace(known, facts=facts))
            found[storm_id] = last
        self._last = found
        answer = {storm_id: each for storm_id, (_, _, each) in found.items()}
        with self._lock:
            # What could not be read is tried again.
            is_whole = self._cached.keys() >= snapshot.bases.keys()
        self._answer = (sources, answer) if is_whole else None
        return answer

    def read_ahead(self, storm_id: str, base: StormBase) -> CachedTopology | None:
        """Return a topology's facts, read if they are not cached; None without code here."""
        with self._lock:
            return self._get(storm_id, base.component_executors or {})

    def _get(self, storm_id: str, hints: Mapping[str, int]) -> CachedTopology | None:
        known, version = self._cached.get(storm_id), self._code.version(storm_id)
        # Code that is missing for a moment is unchanged.
        if known is not None and known[0] == (version or known[0]):
            if known[1] is hints:
                return known[2]
            if known[1] == hints:
                # The next call compares no contents.
                self._cached[storm_id] = (known[0], hints, known[2])
                return known[2]
        try:
            submitted = self._code.get(storm_id)
            if submitted is None:
                return None
            made = cached_topology(submitted.spread(hints), self._conf)
        except (CodeError, ConfigError) as error:
            return CachedTopology(_blocked(str(error)), (), {}, float(self._conf[_WAIT]))
        self._cached[storm_id] = (version, hints, made)
        return made


def cached_topology(submitted: Submitted, conf: Conf) -> CachedTopology:
    """Return a topology's facts, with defaults from the cluster's conf.

    Raises `ConfigError` for an invalid value in the topology's conf: its blob can be overwritten.
    """
    own = submitted.conf

    def value(key: str) -> Any:
        return conf[key] if own.get(key) is None else topology_value(key, own)

    facts = Topology(
        id="",
        queries=submitted.queries,
        memory_mb=float(value(_MEMORY)),
        is_shared=bool(value(_SHARED)),
    )
    if not submitted.queries:
        facts = _blocked("its package is none of ours, and does not say which queries to run")
    return CachedTopology(facts, submitted.executors, own, float(value(_WAIT)))


def _blocked(why: str) -> Topology:
    return Topology(id="", queries=(), blocked=why)


#: Between looks for topologies whose code is not read yet.
_AHEAD_SECS: Final = 5.0


class ReadAhead(PeriodicThread):
    """Keeps the records and the code of topologies in memory while another Nimbus leads.

    So a new leader's first round is as quick as the next ones.
    """

    def __init__(self, view: Callable[[], ClusterView], cache: TopologyCache) -> None:
        super().__init__(
            "read-ahead",
            self.read,
            period_secs=_AHEAD_SECS,
            failure="the code of topologies is not read ahead",
            logger=log,
        )
        self._view = view
        self._cache = cache
        #: The bases whose code was all read.
        self._done: Mapping[str, StormBase] = {}

    def read(self) -> None:
        bases, is_done = self._view().latest().bases, True
        for storm_id, base in () if bases is self._done else bases.items():
            if self.is_closing:
                return
            is_done &= self._cache.read_ahead(storm_id, base) is not None
        self._done = bases if is_done else {}
