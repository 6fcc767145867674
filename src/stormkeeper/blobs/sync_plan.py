"""Decides which blobs a Nimbus fetches, announces, withdraws and deletes. Pure.

The code of an active topology is always needed, any other blob while ZooKeeper counts its versions.
After a delay the leader deletes an unneeded blob in ZooKeeper, then every Nimbus on its disk: so a
Nimbus with old state deletes nothing that the others have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stormkeeper.blobs import keys
from stormkeeper.state.storm.blob_records import BlobEntry, BlobRecord


@dataclass(frozen=True)
class BlobSnapshot:
    """The input of `plan`; times are seconds of one monotonic clock."""

    nimbus: str
    topologies: Collection[str]
    #: On the disk. Read before `entries`, or a new blob here could look like a deleted blob.
    local: Mapping[str, BlobRecord]
    entries: Mapping[str, BlobEntry]
    #: Topologies in submission here: their code is stored before they are active.
    submitted: Collection[str] = ()
    #: Nimbuses that were unreachable a moment ago.
    resting: Collection[str] = ()
    #: Nimbuses that failed to send a blob a moment ago, with the blob's key.
    refused: Collection[tuple[str, str]] = ()
    #: When each blob became unneeded, from the last `SyncPlan`.
    unneeded_since: Mapping[str, float] = field(default_factory=dict)
    now: float = 0.0
    delay_secs: float = 0.0


@dataclass(frozen=True)
class BlobFetch:
    """A blob to fetch, and the Nimbuses with a copy."""

    key: str
    record: BlobRecord
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Missing:
    """The blobs of a topology's code that this Nimbus does not have."""

    keys: tuple[str, ...]
    #: Keys that no other live Nimbus has.
    lost: tuple[str, ...] = ()
    #: The Nimbuses that have held a lost blob in its newest version, sorted.
    held_last_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyncPlan:
    """The actions of one round."""

    #: The code of topologies first, small blobs first.
    fetch: tuple[BlobFetch, ...] = ()
    #: Blobs here that ZooKeeper does not list for this Nimbus.
    announce: tuple[str, ...] = ()
    #: Of `announce`: not counted by ZooKeeper, though a topology needs them.
    count: tuple[str, ...] = ()
    #: Blobs that ZooKeeper lists for this Nimbus and that are not here.
    withdraw: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()
    #: Blobs for the leader to delete in ZooKeeper.
    forget: tuple[str, ...] = ()
    #: Blobs that no other Nimbus has announced yet, in their newest version.
    awaited: tuple[str, ...] = ()
    #: Parts of topologies' code that no live Nimbus has and whose checksums are known.
    lost: tuple[BlobFetch, ...] = ()
    unneeded_since: Mapping[str, float] = field(default_factory=dict)


def plan(snapshot: BlobSnapshot) -> SyncPlan:
    needed = {key for name in snapshot.topologies for key in keys.of_topology(name)}
    fetch, announce, count, withdraw, awaited, lost = [], [], [], [], [], []
    for key in sorted(snapshot.local.keys() | snapshot.entries.keys() | needed):
        local, entry = snapshot.local.get(key), snapshot.entries.get(key)
        record = newest(local, entry, is_needed=key in needed)
        is_announced = entry is not None and snapshot.nimbus in entry.alive
        if entry is not None and entry.number > (record.version if record else 0):
            awaited.append(key)
        if local is not None and local == record:
            if not is_announced or entry is None or entry.record != record:
                announce.append(key)
                if entry is None or entry.number < local.version:
                    count.append(key)
            continue
        if is_announced:
            withdraw.append(key)
        if record is not None and entry is not None:
            others = [name for name in entry.alive if name != snapshot.nimbus]
            sources = tuple(
                name
                for name in others
                if name not in snapshot.resting and (name, key) not in snapshot.refused
            )
            if sources:
                fetch.append(BlobFetch(key, record, sources))
            elif not others:
                if key not in awaited:
                    awaited.append(key)
                if key in needed:
                    lost.append(BlobFetch(key, record, ()))
        elif key in needed and key not in awaited:
            awaited.append(key)
    fetch.sort(key=lambda each: (each.key not in needed, each.record.size, each.key))
    since = _unneeded_since(snapshot, needed)
    due = [key for key in sorted(since) if snapshot.now - since[key] >= snapshot.delay_secs]
    return SyncPlan(
        fetch=tuple(fetch),
        announce=tuple(announce),
        count=tuple(count),
        withdraw=tuple(withdraw),
        delete=tuple(k for k in due if k in snapshot.local and k not in snapshot.entries),
        forget=tuple(k for k in due if k in snapshot.entries),
        awaited=tuple(awaited),
        lost=tuple(lost),
        unneeded_since=since,
    )


def missing(snapshot: BlobSnapshot) -> dict[str, Missing]:
    found = {}
    for topology_id in snapshot.topologies:
        absent, lost = [], []
        last: set[str] = set()
        for key in keys.of_topology(topology_id):
            local, entry = snapshot.local.get(key), snapshot.entries.get(key)
            if local is not None and local == newest(local, entry, is_needed=True):
                continue
            absent.append(key)
            if entry is None or not set(entry.alive) - {snapshot.nimbus}:
                lost.append(key)
                last.update(entry.held if entry is not None else ())
        if absent:
            found[topology_id] = Missing(tuple(absent), tuple(lost), tuple(sorted(last)))
    return found


def newest(
    local: BlobRecord | None, entry: BlobEntry | None, *, is_needed: bool
) -> BlobRecord | None:
    """Return the version of a blob that should be here, if any.

    That is the newest announced version, or a newer version here that is not announced yet. A
    local blob with another `born` is an earlier, deleted blob. A topology's code has no earlier
    blob: then ZooKeeper has lost the entry.
    """
    recorded = None if entry is None else entry.record
    if local is None:
        return recorded
    counts = is_needed or (entry is not None and local.born == entry.born)
    if counts and (recorded is None or recorded.version < local.version):
        return local
    return recorded


def _unneeded_since(snapshot: BlobSnapshot, needed: Collection[str]) -> dict[str, float]:
    kept = {*needed, *(key for name in snapshot.submitted for key in keys.of_topology(name))}
    return {
        key: snapshot.unneeded_since.get(key, snapshot.now)
        for key in snapshot.local.keys() | snapshot.entries.keys()
        if key not in kept and (key not in snapshot.entries or keys.topology_of(key) is not None)
    }
