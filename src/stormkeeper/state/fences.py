"""Fences: the proof of who leads, and since when.

Whose lock is the first in the queue (see `stormkeeper.state.locks`) gets a fence. The first stays
the first until it is gone, and a lock is never made twice. So what is written on the condition
that the lock is there is written by the one leader of that time, or not at all (see
`stormkeeper.state.fenced`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stormkeeper import paths
from stormkeeper.errors import NotLeaderError
from stormkeeper.state import locks
from stormkeeper.state.locks import Lock
from stormkeeper.state.storage import NodeData, StateReader


@dataclass(frozen=True, slots=True)
class Fence:
    """A lock that was found to be the first: by it, its holder's writes are let through."""

    #: Where the lock is, or was.
    path: str

    #: The store's count of changes when the lock was made: grows from reign to reign.
    epoch: int


def obtain(state: StateReader, lock: Lock) -> Fence:
    """Return the fence of the lock that is the first.

    Parameters
    ----------
    state
        The session that the lock ends with.
    lock
        As `stormkeeper.state.locks.take` returned it.

    Raises
    ------
    NotLeaderError
        `lock` is not the first, or no lock of this session any more; it says why.
    """
    fence = Fence(lock.path, lock.created)
    verify(state, fence)
    return fence


def verify(state: StateReader, fence: Fence) -> None:
    """Fail unless `fence` is a lock that this session has taken, has still, and leads by.

    What is written by a fence is let through while there is a node at its path. So whoever would
    lead by a fence that names another node, such as a lock that waits, or a persistent one that is
    always there, would not be fenced; and the epoch that is written into records has to be the
    lock's own.

    Raises
    ------
    TypeError
        `fence` is no `Fence`.
    NotLeaderError
        There is no such lock: the node is gone, is no lock, is another session's, was revoked, or
        was made by another change than the epoch says. Or another lock is before it.
    """
    if not isinstance(fence, Fence):
        raise TypeError(
            f"whoever leads has a Fence, as fences.obtain returns it, not a {type(fence).__name__}"
        )
    if paths.parent(paths.check(fence.path)) != paths.LEADER_LOCK:
        raise NotLeaderError(f"{fence.path} is no lock: locks are directly below /leader-lock")
    if why := _refusal(locks.nodes(state), fence, state.session_id):
        raise NotLeaderError(f"nobody leads in this session by {fence.path}: {why}")


def _refusal(nodes: Mapping[str, NodeData], fence: Fence, session_id: int | None) -> str | None:
    """Return why whoever has `fence` does not lead, None when he does, and what to do."""
    line = locks.in_line(nodes)
    lock = next((lock for lock in line if lock.path == fence.path), None)
    if lock is None:
        found = nodes.get(fence.path.rpartition("/")[2])
        if found is None:
            why = "it is gone, or never was there"
        elif not found.stat.owner:
            why = "it is persistent, and would not end with any session"
        else:
            why = "its name is none of a lock"
    elif lock.session_id != session_id:
        why = "another session made it"
    elif lock.created != fence.epoch:
        why = f"its epoch is {lock.created}, not {fence.epoch}"
    elif lock.revoked:
        why = "it was revoked: its value was set"
    elif ahead := locks.predecessor(line, lock):
        holder = ahead.holder.decode(errors="replace")
        return f"{ahead.path} ({holder!r}) is before it; wait until it is gone (locks.before)"
    else:
        return None
    return f"{why}; take a lock (locks.take)"
