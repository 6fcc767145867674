"""Decides what a Nimbus does about blobs: what to fetch from whom, announce, withdraw and delete.

Pure. ZooKeeper's list of topologies is the authority on what is needed, and its records of blobs on
what they are. A blob is a topology's code or another one, such as a user's own. The code of a
topology that is there is needed, whatever else is known of it. Another blob is needed as long as it
is counted in ZooKeeper: whoever deletes it deletes that.

What is not needed is deleted when it has not been for the delay. First the leader deletes it in
ZooKeeper, and then every Nimbus on its disk what ZooKeeper does not have: one that has slept, or
sees an old state, deletes nothing that the others have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stormkeeper.blobs import keys
from stormkeeper.state.storm.blobs import BlobEntry, BlobRecord


@dataclass(frozen=True)
class Snapshot:
    """What a decision is made of; times are seconds of one monotonic clock."""

    #: The id of this Nimbus.
    nimbus: str
    #: The ids of the topologies that there are.
    topologies: Collection[str]
    #: The blobs on the disk. They are read before `entries`: else a new blob here could seem to be
    #: one that was deleted.
    local: Mapping[str, BlobRecord]
    #: The blobs in ZooKeeper.
    entries: Mapping[str, BlobEntry]
    #: Topologies that are being submitted here: their code comes before they do.
    submitted: Collection[str] = ()
    #: Nimbuses that could not be reached lately, and are left alone; and those that did not send a
    #: blob as they should have, each with its key.
    resting: Collection[str] = ()
    refused: Collection[tuple[str, str]] = ()
    #: Since when a blob has not been needed, as the last `Plan` has it.
    unneeded_since: Mapping[str, float] = field(default_factory=dict)
    now: float = 0.0
    #: How long a blob is kept that is not needed.
    delay_secs: float = 0.0


@dataclass(frozen=True)
class Fetch:
    """A blob to fetch, and the Nimbuses that have it, if any does."""

    key: str
    record: BlobRecord
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Missing:
    """What is missing of a topology's code on this Nimbus."""

    keys: tuple[str, ...]
    #: Of them, those that no other Nimbus has that is alive.
    lost: tuple[str, ...] = ()
    #: The Nimbuses that have held one of the lost ones in its newest version, sorted.
    held_last_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What there is to do, each in the order in which it is to be done."""

    #: What topologies need first, and of that the smallest first.
    fetch: tuple[Fetch, ...] = ()
    #: Blobs that are here, and of which ZooKeeper does not say so.
    announce: tuple[str, ...] = ()
    #: Those of them that ZooKeeper does not count, though a topology needs them.
    count: tuple[str, ...] = ()
    #: Blobs that are not here, and of which ZooKeeper says that they are.
    withdraw: tuple[str, ...] = ()
    #: Blobs to be deleted on the disk.
    delete: tuple[str, ...] = ()
    #: For the leader: blobs to be deleted in ZooKeeper.
    forget: tuple[str, ...] = ()
    #: Blobs that have to come from somebody who does not say yet that he has them, or has a newer
    #: version of them.
    awaited: tuple[str, ...] = ()
    #: Parts of topologies' code that no Nimbus alive has; their checksums are known.
    lost: tuple[Fetch, ...] = ()
    #: By topology.
    missing: Mapping[str, Missing] = field(default_factory=dict)
    unneeded_since: Mapping[str, float] = field(default_factory=dict)


def plan(snapshot: Snapshot) -> Plan:
    """Return what there is to do."""
    needed = {key for name in snapshot.topologies for key in keys.of_topology(name)}
    fetch, announce, count, withdraw, awaited, lost = [], [], [], [], [], []
    for key in sorted(snapshot.local.keys() | snapshot.entries.keys() | needed):
        local, entry = snapshot.local.get(key), snapshot.entries.get(key)
        record = newest(local, entry, is_needed=key in needed)
        is_said = entry is not None and snapshot.nimbus in entry.alive
        if entry is not None and entry.number > (record.version if record else 0):
            awaited.append(key)
        if local is not None and local == record:
            if not is_said or entry is None or entry.record != record:
                announce.append(key)
                if entry is None or entry.number < local.version:
                    count.append(key)
            continue
        if is_said:
            withdraw.append(key)
        if record is not None and entry is not None:
            others = [name for name in entry.alive if name != snapshot.nimbus]
            sources = tuple(
                name
                for name in others
                if name not in snapshot.resting and (name, key) not in snapshot.refused
            )
            if sources:
                fetch.append(Fetch(key, record, sources))
            elif not others:
                if key not in awaited:
                    awaited.append(key)
                if key in needed:
                    lost.append(Fetch(key, record, ()))
        elif key in needed and key not in awaited:
            awaited.append(key)
    fetch.sort(key=lambda each: (each.key not in needed, each.record.size, each.key))
    since = _unneeded_since(snapshot, needed)
    due = [key for key in sorted(since) if snapshot.now - since[key] >= snapshot.delay_secs]
    return Plan(
        fetch=tuple(fetch),
        announce=tuple(announce),
        count=tuple(count),
        withdraw=tuple(withdraw),
        delete=tuple(k for k in due if k in snapshot.local and k not in snapshot.entries),
        forget=tuple(k for k in due if k in snapshot.entries),
        awaited=tuple(awaited),
        lost=tuple(lost),
        missing=missing(snapshot),
        unneeded_since=since,
    )


def missing(snapshot: Snapshot) -> dict[str, Missing]:
    """Return the topologies whose code is not all here, with what is missing, by their ids."""
    found = {}
    for topology_id in snapshot.topologies:
        here, lost = [], []
        last: set[str] = set()
        for key in keys.of_topology(topology_id):
            local, entry = snapshot.local.get(key), snapshot.entries.get(key)
            if local is not None and local == newest(local, entry, is_needed=True):
                continue
            here.append(key)
            if entry is None or not set(entry.alive) - {snapshot.nimbus}:
                lost.append(key)
                last.update(entry.held if entry is not None else ())
        if here:
            found[topology_id] = Missing(tuple(here), tuple(lost), tuple(sorted(last)))
    return found


def newest(
    local: BlobRecord | None, entry: BlobEntry | None, *, is_needed: bool
) -> BlobRecord | None:
    """Return which version of a blob there should be, None where nobody has had any that counts.

    It is the newest that any Nimbus has had, or a newer one that is here, and was not announced
    when its process ended. One that is here and was born at another time is of an earlier blob of
    that key, which was deleted. A topology's code has no earlier one, as ids are not used again:
    where it was born at another time, or never, ZooKeeper has lost that.
    """
    recorded = None if entry is None else entry.record
    if local is None:
        return recorded
    counts = is_needed or (entry is not None and local.born == entry.born)
    if counts and (recorded is None or recorded.version < local.version):
        return local
    return recorded


def _unneeded_since(snapshot: Snapshot, needed: Collection[str]) -> dict[str, float]:
    kept = {*needed, *(key for name in snapshot.submitted for key in keys.of_topology(name))}
    return {
        key: snapshot.unneeded_since.get(key, snapshot.now)
        for key in snapshot.local.keys() | snapshot.entries.keys()
        if key not in kept and (key not in snapshot.entries or keys.topology_of(key) is not None)
    }
