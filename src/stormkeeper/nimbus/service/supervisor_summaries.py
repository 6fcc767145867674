"""A summary of each supervisor, in memory and encoded, for the calls that list supervisors.

A record changes every few seconds by its uptime alone, so the other bytes stay. Used slots and
memory are counted again only for supervisors whose assignments changed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any, Final

from stormkeeper.nimbus.scheduling.cluster import runs_packages
from stormkeeper.nimbus.service.summaries import pack_i32
from stormkeeper.nimbus.service.views import memory_of, seconds
from stormkeeper.state.storm.cluster_view import ClusterRecords
from stormkeeper.statistics.executor_reports import assigned_slots
from stormkeeper.thrift.nimbus import SupervisorSummary
from stormkeeper.thrift.records import Assignment, SupervisorInfo
from stormkeeper.thrift.writer import Encoded, encode_around

_NO_VERSION: Final = "VERSION_NOT_PROVIDED"


@dataclass(slots=True)
class _Share:
    """A topology's slots and memory in MB on a supervisor."""

    ports: set[int]
    memory: list[float]


@dataclass(frozen=True, slots=True)
class _Kept:
    info: SupervisorInfo
    #: With uptime 0.
    summary: SupervisorSummary
    encoded: Encoded


class SupervisorSummaries:
    """Keeps the summaries of all supervisors. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._infos: Mapping[str, SupervisorInfo] = {}
        self._assignments: Mapping[str, Assignment] = {}
        #: By supervisor and topology.
        self._shares: dict[str, dict[str, _Share]] = {}
        self._kept: dict[str, _Kept] = {}

    def encoded(
        self, records: ClusterRecords, chosen: Iterable[str] | None = None
    ) -> list[SupervisorSummary]:
        """Return encoded summaries, instead of records: of all supervisors, or of `chosen`."""
        with self._lock:
            moved = self._count(records.assignments)
            if moved or records.supervisors is not self._infos:
                self._kept = {
                    id_: self._made(id_, info, is_moved=id_ in moved)
                    for id_, info in records.supervisors.items()
                }
                self._infos = records.supervisors
            kept = self._kept
        found: list[Any] = [kept[id_].encoded for id_ in (kept if chosen is None else chosen)]
        return found

    def _count(self, assignments: Mapping[str, Assignment]) -> set[str]:
        """Count the changed assignments; return the supervisors that they are on."""
        moved, last = set[str](), self._assignments
        if assignments is last:
            return moved
        for storm_id in last.keys() | assignments.keys():
            before, after = last.get(storm_id), assignments.get(storm_id)
            if before is after:
                continue
            for node in _shares(before):
                del self._shares[node][storm_id]
                moved.add(node)
            for node, share in _shares(after).items():
                self._shares.setdefault(node, {})[storm_id] = share
                moved.add(node)
        for node in moved:
            if not self._shares[node]:
                del self._shares[node]
        self._assignments = assignments
        return moved

    def _made(self, id_: str, info: SupervisorInfo, *, is_moved: bool) -> _Kept:
        known = self._kept.get(id_)
        if known is not None and known.info is info and not is_moved:
            return known
        shares = self._shares.get(id_, {}).values()
        summary = supervisor_summary(
            id_,
            info,
            used_workers=len(set[int]().union(*(share.ports for share in shares))),
            used_memory=fsum(each for share in shares for each in share.memory),
        )
        uptime, summary.uptime_secs = pack_i32(summary.uptime_secs), 0
        if known is not None and known.summary == summary:
            summary, (before, _, after) = known.summary, known.encoded.parts
        else:
            before, after = encode_around(summary, "uptime_secs")
        return _Kept(info, summary, Encoded(SupervisorSummary, before, uptime, after))


def _shares(assignment: Assignment | None) -> dict[str, _Share]:
    found: dict[str, _Share] = {}
    for node, port in assigned_slots(assignment):
        found.setdefault(node, _Share(set(), [])).ports.add(port)
    for (node, _), memory in memory_of(assignment).items():
        found.setdefault(node, _Share(set(), [])).memory.append(memory)
    return found


def supervisor_summary(
    supervisor_id: str, info: SupervisorInfo, *, used_workers: int, used_memory: float
) -> SupervisorSummary:
    is_ours = runs_packages(info)
    return SupervisorSummary(
        host=info.hostname,
        uptime_secs=seconds(info.uptime_secs or 0),
        # Storm's own supervisors have no free slot for our queries.
        num_workers=len(info.meta or ()) if is_ours else used_workers,
        num_used_workers=used_workers,
        supervisor_id=supervisor_id,
        version=info.version or _NO_VERSION,
        total_resources=dict(info.resources_map or {}),
        used_mem=used_memory,
        used_cpu=0.0,
        blacklisted=False,
        refuses=info.refuses,
        java_only=None if is_ours else True,
    )
