"""Counts the Nimbuses that have a topology's code, and waits until there are enough.

A Nimbus counts if it has all blobs of the code in their newest versions, as only such a Nimbus can
lead. (Storm waits for copies of any one blob.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from stormkeeper.blobs import keys
from stormkeeper.state.storm.blob_records import BlobEntry
from stormkeeper.state.storm.cluster import StormReads
from stormkeeper.state.watches import Callback

#: Copies wanted by default, if there are as many Nimbuses.
COPIES: Final = 2

#: Seconds between two looks without a change: no watch reports a failed disk.
_TURN_SECS: Final = 2.0


class Replication(NamedTuple):
    """How many Nimbuses have a topology's code, and how many should."""

    copies: int
    wanted: int

    @property
    def is_enough(self) -> bool:
        """Whether there are as many copies as wanted."""
        return self.copies >= self.wanted


def copies(blobs: Collection[str], entries: Mapping[str, BlobEntry]) -> int:
    """Return how many live Nimbuses have all of these blobs."""
    holders = [set(entries[key].alive) if key in entries else set() for key in blobs]
    return len(set.intersection(*holders)) if holders else 0


def wanted(configured: int | None, nimbuses: int) -> int:
    """Return how many copies are wanted of `nimbuses` that are alive and can write."""
    return max(1, min(COPIES, nimbuses)) if configured is None else configured


def look(
    storm: StormReads, topology_id: str, configured: int | None, callback: Callback | None = None
) -> Replication:
    """Return the current and wanted copies; `callback` is called when they change."""
    blobs = keys.of_topology(topology_id)
    nimbuses = sum(not each.disk_fault for each in storm.nimbuses(callback))
    if callback is not None:
        for key in blobs:
            storm.blobstore_info(key, callback)
    return Replication(copies(blobs, storm.blobs(blobs)), wanted(configured, nimbuses))


def wait(
    storm: StormReads,
    topology_id: str,
    conf: Mapping[str, Any],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Replication:
    """Wait until enough Nimbuses have a topology's code, and return how many have it.

    `conf` is the topology's over the cluster's; at ``topology.max.replication.wait.time.sec`` 0 and
    less there is no limit. Raises `StateError`.
    """
    configured = conf["topology.min.replication.count"]
    longest = conf["topology.max.replication.wait.time.sec"]
    deadline = clock() + longest if longest > 0 else None
    with storm.watch(lambda again: look(storm, topology_id, configured, again)) as stream:
        latest = stream.next(0)
        while not latest.is_enough:
            left = _TURN_SECS if deadline is None else deadline - clock()
            if left <= 0:
                break
            try:
                latest = stream.next(min(left, _TURN_SECS))
            except TimeoutError:
                latest = look(storm, topology_id, configured)
        return latest
