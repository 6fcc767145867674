"""A topology's checkpoints: where they are, who goes on from them, and when they go; pure.

A folder of checkpoints belongs to one topology at a time. One that goes on from it has the same
folder: nothing is copied or moved, so nothing can be read twice or be lost. A worker of the earlier
topology that still runs somewhere sees the greater claims of the later one there, and stops.

While a topology is there, its base says where its checkpoints are. When it goes, that becomes a
record of its own. What a base says is in use, whatever the record says.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from stormkeeper.conf.folders import on_disk
from stormkeeper.errors import CheckpointsError
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.thrift.records import Checkpoints, StormBase, TopologyStatus

#: Keys of a topology's conf. Nimbus puts the folder's name in place of what a user says of the
#: first one, and the queries that have a checkpoint there into the second one.
FROM: Final = "topology.checkpoint.from"
QUERIES: Final = "topology.checkpoint.queries"
ABANDON: Final = "topology.checkpoint.abandon"
DIR: Final = "topology.checkpoint.dir"
SHARED: Final = "topology.checkpoint.shared"
SCRIPTS: Final = "topology.checkpoint.scripts"

#: Why a plain script with checkpoints of its own goes on from no other ones.
OF_SCRIPTS: Final = (
    "a plain script with topology.checkpoint.scripts: false names its own checkpoints, and goes on"
    " from these: submit it without --from"
)

#: How many topologies are named in a message.
_NAMED: Final = 5


def begun(storm_id: str, name: str, conf: Mapping[str, Any]) -> Checkpoints:
    """Return those of a new topology, by its saved conf."""
    return Checkpoints(storm_id, storm_id, name, conf.get(DIR), bool(conf.get(SHARED)), {})


def continued(record: Checkpoints, storm_id: str, name: str) -> Checkpoints:
    """Return those of a topology that goes on from them."""
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
    """Return a topology's saved conf with what it goes on from; None: from nothing.

    That is said, too: a worker takes what is not said from the script, or from its machine.
    """
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
    """Return the checkpoints that a new topology is to go on from.

    Parameters
    ----------
    wanted
        The id of a topology that is gone, or a name: the last one of that name is meant.
    own
        What the new one's conf says.
    records, bases
        All that there are, by their ids.

    Raises
    ------
    CheckpointsError
        There are none, they are in use, or the new one wants them elsewhere.
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
    """Return the checkpoints of a topology, or of the last one of a name."""
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
    """Return checkpoints without those of some queries, which begin anew, on any machine.

    Nothing else runs a query in between, so where its machine does come back before it is launched,
    and has it, it goes on there as if it had not been given up.

    Parameters
    ----------
    record
        What a topology goes on from.
    queries
        Whose checkpoints are lost.
    supervisors
        The ids of those that are there.

    Raises
    ------
    CheckpointsError
        There is no such checkpoint, or it can be reached.
    """
    kept = copy.copy(record)
    kept.nodes = dict(record.nodes)
    for query in queries:
        node = kept.nodes.pop(query, None)
        if node is None:
            there = ", ".join(sorted(record.nodes))
            raise CheckpointsError(
                f"{record.storm_id} has no checkpoint of {query} to be abandoned, but of: {there}"
            )
        if record.shared:
            raise CheckpointsError(
                f"the checkpoint of {query} is shared, and not lost with a machine: leave out that"
                " it is to be abandoned"
            )
        if node in supervisors:
            raise CheckpointsError(
                f"the checkpoint of {query} is on {host(record, node)}, which is there: leave out"
                " that it is to be abandoned"
            )
    return kept


def host(record: Checkpoints, node: str) -> str:
    """Return what the host of a supervisor is called, as far as is known, and its id."""
    name = (record.hosts or {}).get(node)
    return f"the machine of supervisor {node}" if name is None else f"{name} (supervisor {node})"


def placed(
    record: Checkpoints, launches: Iterable[Launch], hosts: Mapping[str, str] | None = None
) -> Checkpoints:
    """Return checkpoints with the machines of queries that were launched since; else the same.

    Parameters
    ----------
    hosts
        The names of their hosts, by supervisor.
    """
    nodes = {query: one.slot.node for one in launches for query in one.queries}
    names = {node: name for node, name in (hosts or {}).items() if node in nodes.values()}
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
    """Return what is kept of checkpoints when their topology is gone; None: there are none.

    Parameters
    ----------
    record
        What its base said of them last.
    now_ms
        Milliseconds since 1970.
    supervisors
        The ids of those that are there.
    purge
        Whether they are to be removed at once.
    """
    if not record.nodes:
        return None
    kept = copy.copy(record)
    kept.ended_ms, kept.remove_on = now_ms, None
    return removed(kept, supervisors) if purge else kept


def removed(record: Checkpoints, supervisors: Collection[str]) -> Checkpoints:
    """Return checkpoints that are to be removed: by their machines, or of shared ones by any.

    Those machines come first on which they were used: something may be left there that writes.
    """
    machines = set(record.nodes.values())
    if record.shared:
        machines = machines & set(supervisors) or set(sorted(supervisors)[:1]) or machines
    changed = copy.copy(record)
    changed.remove_on = sorted(machines)
    return changed


def is_removable(record: Checkpoints) -> bool:
    """Return whether a supervisor can remove them, as they are on a disk."""
    return record.root is None or on_disk(record.root) is not None


def due(
    record: Checkpoints,
    bases: Mapping[str, StormBase],
    supervisors: Collection[str],
    now_ms: int,
    retention_secs: float | None,
) -> Checkpoints | None:
    """Return what a record is to become; None: it stays as it is.

    Those are to be removed whose retention has ended, if no topology has them. And where nobody of
    those is left who were to remove shared ones, another one does.
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
