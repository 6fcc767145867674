"""Caches what scheduling needs of each topology's package and conf."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from stormkeeper.conf import Conf
from stormkeeper.errors import CodeError, ConfigError
from stormkeeper.nimbus.scheduling.conversion import TopologyFacts
from stormkeeper.nimbus.submitted import Submitted, SubmittedCode, topology_value
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.topology.description import ExecutorDescription

_MEMORY: Final = "topology.worker.memory.mb"
_SHARED: Final = "topology.checkpoint.shared"
_WAIT: Final = "topology.message.timeout.secs"


@dataclass(frozen=True, slots=True)
class CachedTopology:
    """Facts about a topology; `wait_secs` is for a kill or rebalance that specifies no wait."""

    facts: TopologyFacts
    executors: tuple[ExecutorDescription, ...]
    conf: Mapping[str, Any]
    wait_secs: float


class TopologyCache:
    """Facts about topologies by version of their code and parallelism. Not safe for threads.

    `conf` provides defaults for a topology's own values.
    """

    def __init__(self, code: SubmittedCode, conf: Conf) -> None:
        self._code = code
        self._conf = conf
        #: By topology id, with the version and parallelism of the entry.
        self._cached: dict[str, tuple[Hashable, Mapping[str, int], CachedTopology]] = {}

    def topologies(
        self, snapshot: ClusterSnapshot, texts: Mapping[str, str]
    ) -> dict[str, CachedTopology]:
        """Return the topologies of a snapshot whose code is on this Nimbus.

        Other topologies are dropped from the cache. `texts` are their present ``sched_status``.
        """
        self._forget(self._cached.keys() - snapshot.bases.keys())
        found = {}
        for storm_id, base in snapshot.bases.items():
            known = self._get(storm_id, base.component_executors or {})
            if known is not None:
                facts = replace(
                    known.facts,
                    ended=snapshot.ended.get(storm_id, frozenset()),
                    claimed=snapshot.claimed.get(storm_id, frozenset()),
                    text=texts.get(storm_id, ""),
                )
                found[storm_id] = replace(known, facts=facts)
        return found

    def _get(self, storm_id: str, hints: Mapping[str, int]) -> CachedTopology | None:
        known, version = self._cached.get(storm_id), self._code.version(storm_id)
        # Code that is missing for a moment is unchanged.
        if known is not None and known[0] == (version or known[0]) and known[1] == hints:
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

    def _forget(self, storm_ids: Collection[str]) -> None:
        for storm_id in storm_ids:
            del self._cached[storm_id]


def cached_topology(submitted: Submitted, conf: Conf) -> CachedTopology:
    """Return the facts about a submitted topology, with defaults from the cluster's conf.

    Raises `ConfigError` if a value in the topology's conf is invalid: its blob can be overwritten.
    """
    own = submitted.conf

    def value(key: str) -> Any:
        return conf[key] if own.get(key) is None else topology_value(key, own)

    facts = TopologyFacts(
        queries=submitted.queries,
        memory_mb=float(value(_MEMORY)),
        is_shared=bool(value(_SHARED)),
    )
    if not submitted.queries:
        facts = _blocked("its package is none of ours, and does not say which queries to run")
    return CachedTopology(facts, submitted.executors, own, float(value(_WAIT)))


def _blocked(why: str) -> TopologyFacts:
    return TopologyFacts(queries=(), memory_mb=0, is_shared=False, blocked=why)
