"""How many Nimbuses have a topology's code, and the wait until enough of them do.

A copy counts where one Nimbus has all blobs of the code in their newest versions, as only such a
Nimbus can lead. (Storm waits for copies of any one blob.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from stormkeeper.blobs import keys
from stormkeeper.state.storm.blobs import BlobEntry
from stormkeeper.state.storm.cluster import StormReads
from stormkeeper.state.storm.watching import Callback

#: How many copies are wanted where nobody has said, and there are as many Nimbuses.
COPIES: Final = 2

#: How long one wait for a change lasts, in seconds: no watch tells that a disk has failed.
_TURN_SECS: Final = 2.0


class Replication(NamedTuple):
    """How many Nimbuses have a topology's code, and how many should."""

    copies: int
    wanted: int

    @property
    def is_enough(self) -> bool:
        """Whether there are as many copies as are wanted."""
        return self.copies >= self.wanted


def copies(blobs: Collection[str], entries: Mapping[str, BlobEntry]) -> int:
    """Return how many Nimbuses that are alive have all of these blobs."""
    holders = [set(entries[key].alive) if key in entries else set() for key in blobs]
    return len(set.intersection(*holders)) if holders else 0


def wanted(configured: int | None, nimbuses: int) -> int:
    """Return how many copies are wanted.

    Parameters
    ----------
    configured
        ``topology.min.replication.count``; None: two where two Nimbuses are alive, else one.
    nimbuses
        How many are alive and can write to their disks.
    """
    return max(1, min(COPIES, nimbuses)) if configured is None else configured


def look(
    storm: StormReads, topology_id: str, configured: int | None, callback: Callback | None = None
) -> Replication:
    """Return how many copies there are, and are wanted; `callback` is told when that changes."""
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
    """Wait until a topology's code is on enough Nimbuses, and return on how many it is.

    Parameters
    ----------
    storm
        The cluster's state.
    topology_id
        Whose code.
    conf
        The topology's configuration over the cluster's: ``topology.min.replication.count``, and the
        longest wait, ``topology.max.replication.wait.time.sec``. At 0 and below the wait has no end
        but enough copies, or the end of the session.
    clock
        Seconds of a monotonic clock.

    Raises
    ------
    StateError
        The cluster's state could not be read; `StateClosedError`: the session was closed.
    """
    configured = conf["topology.min.replication.count"]
    longest = conf["topology.max.replication.wait.time.sec"]
    deadline = clock() + longest if longest > 0 else None
    with storm.watch(lambda again: look(storm, topology_id, configured, again)) as stream:
        seen = stream.next(0)
        while not seen.is_enough:
            left = _TURN_SECS if deadline is None else deadline - clock()
            if left <= 0:
                break
            try:
                seen = stream.next(min(left, _TURN_SECS))
            except TimeoutError:
                seen = look(storm, topology_id, configured)
        return seen
