"""What scheduling has to know of topologies beside their records, out of their code."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from stormkeeper.conf import Conf
from stormkeeper.errors import CodeError, ConfigError
from stormkeeper.nimbus.scheduling.mapping import Facts
from stormkeeper.nimbus.submitted import Submitted, topology_value
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.topology.description import ExecutorDescription

#: What a worker may use, and whether a query may move: keys of a topology's conf.
_MEMORY: Final = "topology.worker.memory.mb"
_SHARED: Final = "topology.checkpoint.shared"
_WAIT: Final = "topology.message.timeout.secs"


class Code(Protocol):
    """Where the code of topologies is; a `stormkeeper.nimbus.submitted.SubmittedCode`."""

    def version(self, storm_id: str) -> Hashable:
        """Return what tells one version of the code from another; None where it is not here."""
        ...

    def get(self, storm_id: str) -> Submitted | None:
        """Return what was submitted, None where it is not here; raises `CodeError`."""
        ...


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a topology.

    Parameters
    ----------
    facts
        For a plan.
    executors
        Of all queries.
    conf
        Its saved configuration.
    wait_secs
        How long a kill or a rebalance of it waits that does not say so.
    """

    facts: Facts
    executors: tuple[ExecutorDescription, ...]
    conf: Mapping[str, Any]
    wait_secs: float


class Knowledge:
    """Knows topologies by their code, and by what a rebalance has left.

    Not safe for threads.

    Parameters
    ----------
    code
        Where it is.
    conf
        What holds where a topology's own says nothing.
    """

    def __init__(self, code: Code, conf: Conf) -> None:
        self._code = code
        self._conf = conf
        #: By the topologies' ids, with the version and the parallelism that it was made for.
        self._known: dict[str, tuple[Hashable, Mapping[str, int], Known]] = {}

    def of(self, snapshot: ClusterSnapshot, texts: Mapping[str, str]) -> dict[str, Known]:
        """Return what is known of topologies; one whose code is not here is left out.

        Parameters
        ----------
        snapshot
            Has them. The others are forgotten.
        texts
            What is told of them so far.
        """
        self._forget(self._known.keys() - snapshot.bases.keys())
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

    def _get(self, storm_id: str, hints: Mapping[str, int]) -> Known | None:
        known, version = self._known.get(storm_id), self._code.version(storm_id)
        # Where the code is not here for a moment, it is what it was.
        if known is not None and known[0] == (version or known[0]) and known[1] == hints:
            return known[2]
        try:
            submitted = self._code.get(storm_id)
            if submitted is None:
                return None
            made = known_of(submitted.spread(hints), self._conf)
        except (CodeError, ConfigError) as error:
            return Known(_blocked(str(error)), (), {}, float(self._conf[_WAIT]))
        self._known[storm_id] = (version, hints, made)
        return made

    def _forget(self, storm_ids: Collection[str]) -> None:
        for storm_id in storm_ids:
            del self._known[storm_id]


def known_of(submitted: Submitted, conf: Conf) -> Known:
    """Return what is known of a topology by what was submitted, and by the cluster's conf.

    Raises
    ------
    ConfigError
        A value of its own is none, as anybody may write its blobs anew.
    """
    own = submitted.conf

    def value(key: str) -> Any:
        return conf[key] if own.get(key) is None else topology_value(key, own)

    facts = Facts(
        queries=submitted.queries,
        memory_mb=float(value(_MEMORY)),
        is_shared=bool(value(_SHARED)),
    )
    if not submitted.queries:
        facts = _blocked("its package is none of ours, and does not say which queries to run")
    return Known(facts, submitted.executors, own, float(value(_WAIT)))


def _blocked(why: str) -> Facts:
    return Facts(queries=(), memory_mb=0, is_shared=False, blocked=why)
