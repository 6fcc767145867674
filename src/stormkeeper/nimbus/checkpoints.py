"""Checkpoints of topologies: folder, machines, continuation by other topologies, removal; pure.

A topology that continues from another uses the same folder: nothing is copied, read twice or lost.
A worker of the earlier topology sees greater claims there, and stops. An existing topology's base
takes precedence over the record of its checkpoints.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from stormkeeper.conf.folders import on_disk
from stormkeeper.errors import CheckpointsError
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.thrift.records import Checkpoints, StormBase, TopologyStatus

#: Keys of a topology's conf. Nimbus replaces the user's FROM by the folder's name, and lists the
#: queries with a checkpoint there in QUERIES.
FROM: Final = "topology.checkpoint.from"
QUERIES: Final = "topology.checkpoint.queries"
ABANDON: Final = "topology.checkpoint.abandon"
DIR: Final = "topology.checkpoint.dir"
SHARED: Final = "topology.checkpoint.shared"
SCRIPTS: Final = "topology.checkpoint.scripts"

OF_SCRIPTS: Final = (
    "a plain script with topology.checkpoint.scripts: false names its own checkpoints, and goes on"
    " from these: submit it without --from"
)

_NAMED: Final = 5


def begun(storm_id: str, name: str, conf: Mapping[str, Any]) -> Checkpoints:
    return Checkpoints(storm_id, storm_id, name, conf.get(DIR), bool(conf.get(SHARED)), {})


def continued(record: Checkpoints, storm_id: str, name: str) -> Checkpoints:
    return Checkpoints(
        record.folder,
        storm_id,
        name,
        record.root,
        record.shared,
        dict(record.nodes),
        hosts=record.hosts,
    )


def conf_of(saved: Mapping[str, Any], record: Checkpoints | None) -> dict[str, Any]:
    """Return a saved conf with the checkpoints to continue from; None: a fresh start."""
    # None is written, too: a worker takes a missing key from the script or its machine.
    conf = {**saved, FROM: None, QUERIES: None}
    conf.pop(ABANDON, None)
    if record is not None:
        conf |= {FROM: record.folder, QUERIES: sorted(record.nodes), SHARED: record.shared}
        if record.root is None:
            conf.pop(DIR, None)
        else:
            conf[DIR] = record.root
    return conf


def find(
    wanted: str,
    own: Mapping[str, Any],
    records: Mapping[str, Checkpoints],
    bases: Mapping[str, StormBase],
) -> Checkpoints:
    """Return the checkpoints from which a new topology wants to continue.

    `wanted` is a past topology's id, or a name (its last topology); `own` is the new topology's
    conf. Raises `CheckpointsError` if there are none, or they are in use.
    """
    for storm_id, base in bases.items():
        if wanted in (storm_id, base.name):
            if base.status is TopologyStatus.KILLED:
                raise CheckpointsError(f"{wanted} is being killed: try again when it is gone")
            raise CheckpointsError(
                f"{wanted} is {base.status.name}, and no other topology can go on from its"
                f" checkpoints: end it with `storm kill {base.name}`"
            )
    found = _named(wanted, records)
    for base in bases.values():
        if base.checkpoints is not None and base.checkpoints.folder == found.folder:
            raise CheckpointsError(
                f"{base.name} goes on from the checkpoints of {wanted} already: end it with"
                f" `storm kill {base.name}`, and go on from that one"
            )
    if found.remove_on is not None:
        raise CheckpointsError(
            f"the checkpoints of {wanted} are being removed: submit it without --from, and it"
            " begins anew"
        )
    for key, there in ((DIR, found.root), (SHARED, found.shared)):
        if key in own and own[key] != there:
            raise CheckpointsError(
                f"{key} is {own[key]}, and was {there} for {wanted}, whose checkpoints stay where"
                f" they are: leave {key} out"
            )
    return found


def _named(wanted: str, records: Mapping[str, Checkpoints]) -> Checkpoints:
    for record in records.values():
        if record.storm_id == wanted:
            return record
    last = records.get(wanted)
    if last is not None:
        raise CheckpointsError(
            f"{last.storm_id} went on from the checkpoints of {wanted}: go on from that one"
        )
    of_name = [record for record in records.values() if record.name == wanted]
    if of_name:
        return max(of_name, key=lambda record: (record.ended_ms or 0, record.storm_id))
    names = sorted({record.name for record in records.values() if record.remove_on is None})
    there = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    raise CheckpointsError(
        f"there are no checkpoints of {wanted}: they go after nimbus.checkpoint.retention.secs, or"
        " with `storm kill --purge`, and a plain script may name its own."
        + (f" There are some of: {there}" if there else " There are none at all")
    )


def abandoned(
    record: Checkpoints, queries: Iterable[str], supervisors: Collection[str]
) -> Checkpoints:
    """Return checkpoints without some queries, which start anew on any machine.

    A query still continues if its machine returns before the launch and gets the query. Raises
    `CheckpointsError` if a checkpoint does not exist, or is reachable.
    """
    kept = copy.copy(record)
    kept.nodes = dict(record.nodes)
    for query in queries:
        node = kept.nodes.pop(query, None)
        if node is None:
            there = ", ".join(sorted(record.nodes))
            raise CheckpointsError(
                f"{record.storm_id} has no checkpoint of {query} to abandon, but of: {there}"
            )
        if record.shared:
            raise CheckpointsError(
                f"the checkpoint of {query} is shared, and not lost with a machine: do not"
                " abandon it"
            )
        if node in supervisors:
            raise CheckpointsError(
                f"the checkpoint of {query} is on {host(record, node)}, which is present: do not"
                " abandon it"
            )
    return kept


def host(record: Checkpoints, node: str) -> str:
    name = (record.hosts or {}).get(node)
    return f"the machine of supervisor {node}" if name is None else f"{name} (supervisor {node})"


def placed(
    record: Checkpoints, launches: Iterable[Launch], hosts: Mapping[str, str] | None = None
) -> Checkpoints:
    """Return checkpoints with the machines of launched queries; the same object if unchanged."""
    nodes = {query: one.slot.node for one in launches for query in one.queries}
    used = set(nodes.values())
    names = {node: name for node, name in (hosts or {}).items() if node in used}
    if nodes.items() <= record.nodes.items() and names.items() <= (record.hosts or {}).items():
        return record
    changed = copy.copy(record)
    changed.nodes = {**record.nodes, **nodes}
    known = {**(record.hosts or {}), **names}
    changed.hosts = {node: known[node] for node in changed.nodes.values() if node in known} or None
    return changed


def ended(
    record: Checkpoints, now_ms: int, supervisors: Collection[str], *, purge: bool
) -> Checkpoints | None:
    if not record.nodes:
        return None
    kept = copy.copy(record)
    kept.ended_ms, kept.remove_on = now_ms, None
    return removed(kept, supervisors) if purge else kept


def removed(record: Checkpoints, supervisors: Collection[str]) -> Checkpoints:
    """Return checkpoints with supervisors for the removal: any if the checkpoints are shared.

    Supervisors that used shared checkpoints come first: a writer may be left there.
    """
    machines = set(record.nodes.values())
    if record.shared:
        machines = machines & set(supervisors) or set(sorted(supervisors)[:1]) or machines
    changed = copy.copy(record)
    changed.remove_on = sorted(machines)
    return changed


def is_removable(record: Checkpoints) -> bool:
    """Return whether checkpoints are on a disk: supervisors remove no others."""
    return record.root is None or on_disk(record.root) is not None


def due(
    record: Checkpoints,
    bases: Mapping[str, StormBase],
    supervisors: Collection[str],
    now_ms: int,
    retention_secs: float | None,
) -> Checkpoints | None:
    """Return the changed record of checkpoints after the retention; None: unchanged.

    Another supervisor is named if all that should remove shared checkpoints are gone.
    """
    used = [base.checkpoints.folder for base in bases.values() if base.checkpoints is not None]
    if record.folder in used or record.ended_ms is None:
        return None
    if record.remove_on is None:
        if retention_secs is None or now_ms < record.ended_ms + retention_secs * 1000:
            return None
        return removed(record, supervisors)
    if record.shared and supervisors and set(record.remove_on).isdisjoint(supervisors):
        return removed(record, supervisors)
    return None
