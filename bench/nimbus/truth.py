"""What stands in ZooKeeper, read by itself: where each query runs, and what an event may not move.

A fault is a line of text; a run with a fault has no figures.
"""

from collections import Counter
from dataclasses import dataclass, field

from nimbus import cluster
from stormkeeper import paths
from stormkeeper.thrift.records import Assignment
from stormkeeper.thrift.serialization import deserialize


@dataclass(frozen=True)
class Placed:
    """All launches of a cluster: slot and queries by claim, by topology."""

    launches: dict = field(default_factory=dict)
    #: When each assignment was written last, in seconds since 1970, by ZooKeeper.
    written_at: dict = field(default_factory=dict)
    released: int = 0

    @property
    def workers(self):
        return sum(map(len, self.launches.values()))

    def last_write(self, since=0.0):
        """Return when the last assignment was written after a moment, None without one."""
        return max((at for at in self.written_at.values() if at >= since), default=None)

    def changed_since(self, before):
        return sum(
            self.launches[storm_id] != before.launches.get(storm_id) for storm_id in self.launches
        )


def read(client):
    """Read all assignments through a client of kazoo's, as of now."""
    top = cluster.ROOT + paths.ASSIGNMENTS
    client.sync(top)
    ids = sorted(client.get_children(top))
    asked = [client.get_async(f"{top}/{storm_id}") for storm_id in ids]
    launches, written, released = {}, {}, 0
    for storm_id, answer in zip(ids, asked, strict=True):
        data, stat = answer.get(timeout=cluster.WRITE_SECS)
        found = {}
        for one in deserialize(Assignment, data).launches or ():
            if one.released:
                released += 1
            else:
                claim = one.claim.epoch, one.claim.counter
                found[claim] = (one.node, one.port), tuple(one.queries)
        launches[storm_id] = found
        written[storm_id] = stat.mtime / 1000
    return Placed(launches, written, released)


def faults(placed, before, storm_ids, queries, living, *, most=5):
    """Return what is wrong after an event, the first few lines of it.

    Every query of every topology is in exactly one launch, on a living supervisor, no slot has two
    launches, and each launch that was on a supervisor that lives is still the same.
    """
    found = []
    slots = Counter(slot for each in placed.launches.values() for slot, _ in each.values())
    found += [f"the slot {slot} has {count} launches" for slot, count in slots.items() if count > 1]
    for storm_id in storm_ids:
        launches = placed.launches.get(storm_id, {})
        counts = Counter(query for _, of_one in launches.values() for query in of_one)
        if counts.keys() != queries or any(count != 1 for count in counts.values()):
            missing = len(queries - counts.keys())
            found.append(f"{storm_id}: {missing} queries are missing, the others: {dict(counts)}")
        found += [
            f"{storm_id}: {claim} is on {slot[0]}, which is dead"
            for claim, (slot, _) in launches.items()
            if slot[0] not in living
        ]
        found += [
            f"{storm_id}: {claim} was alive on {launch[0]}, and was moved"
            for claim, launch in before.launches.get(storm_id, {}).items()
            if launch[0][0] in living and launches.get(claim) != launch
        ]
    return found if len(found) <= most else [*found[:most], f"... and {len(found) - most} more"]
