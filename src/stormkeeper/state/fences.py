"""Fences: the lock nodes that say who may write as the leader, and since when.

A lock is an ephemeral node below ``/leader-lock`` that is never made twice: its name has a GUID
and a number of its own (as Curator's latches have, so that Storm's tools list it). It is gone, for
good, when its session is. What is written on the condition that it is there is therefore written
by whoever made it, in its reign, or not at all (see `stormkeeper.state.fenced`).
"""

import uuid
from dataclasses import dataclass

from stormkeeper.errors import (
    NoNodeError,
    NotLeaderError,
    OutcomeUnknownError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state import paths
from stormkeeper.state.storage import ClusterState, StateReader

#: What is between the GUID and the number in a lock's name: Curator's for a leader latch.
_LATCH = "-latch-"


@dataclass(frozen=True, slots=True)
class Fence:
    """A lock node, by which its holder's writes are let through."""

    #: Where the node is, or was.
    path: str

    #: The store's count of changes when it was made (its creation zxid): grows with every lock.
    epoch: int


def take(state: ClusterState, holder: bytes = b"") -> Fence:
    """Make a lock of this session; it may be one of several, and that says nothing about a reign.

    Parameters
    ----------
    state
        The session that the lock is to end with.
    holder
        The node's value, for people to read: who this is.

    Raises
    ------
    OutcomeUnknownError
        A lock may have been made, and was not found, or could not be looked for, or could not be
        deleted again. If it was, it ends with the session, and may be the first of all until then:
        look for locks of the session's own, or end it, before another one is taken.
    NotLeaderError
        The lock was made and is gone already, with its session.
    """
    prefix = f"{paths.LEADER_LOCK}/_c_{uuid.uuid4()}{_LATCH}"
    try:
        path = state.create_sequential(prefix, holder)
    except OutcomeUnknownError as error:
        # A second one would be this session's too, and nobody would ever delete the first.
        path = _find(state, prefix, error)
    try:
        stat = state.get_stat(path)
    except StateError as error:
        # Without its epoch it is no fence, and as a lock it would keep others from leading.
        try:
            state.delete_node(path)
        except StateUnavailableError:
            # What the read raised says that nothing was sent, and so that there is no lock.
            raise OutcomeUnknownError(
                f"the lock {path} was made, and could be neither read nor deleted: {error}"
            ) from error
        except StateError:
            pass
        raise
    if stat is None:
        raise NotLeaderError(f"the lock {path} is gone already: its session ended; take another")
    return Fence(path, stat.created)


def give_up(state: ClusterState, fence: Fence) -> None:
    """Delete the lock, and so end what its holder may write; one that is gone is fine."""
    state.delete_node(fence.path)


def verify(state: StateReader, fence: Fence) -> None:
    """Fail unless `fence` is a lock that this session has taken and has still.

    What is written by a fence is let through while there is a node at its path. So whoever would
    lead by a fence that names another node, a persistent one that is always there for instance,
    would not be fenced; and the epoch that is written into records has to be the lock's own.

    Raises
    ------
    TypeError
        `fence` is no `Fence`.
    NotLeaderError
        There is no such lock: the node is gone, is no ephemeral node directly below
        ``/leader-lock``, is another session's, or was made by another change than the epoch says.
    """
    if not isinstance(fence, Fence):
        raise TypeError(
            f"whoever leads has a Fence, as fences.take returns it, not a {type(fence).__name__}"
        )
    if paths.parent(paths.check(fence.path)) != paths.LEADER_LOCK:
        raise NotLeaderError(f"{fence.path} is no lock: locks are directly below /leader-lock")
    stat = state.get_stat(fence.path)
    if stat is None:
        why = "it is gone, or never was there"
    elif not stat.owner:
        why = "it is persistent, and would not end with any session"
    elif stat.owner != state.session_id:
        why = "another session made it"
    elif stat.created != fence.epoch:
        why = f"its epoch is {stat.created}, not {fence.epoch}"
    else:
        return
    raise NotLeaderError(
        f"nobody leads in this session by {fence.path}: {why}; take a lock (fences.take)"
    )


def _find(state: ClusterState, prefix: str, unknown: OutcomeUnknownError) -> str:
    try:
        state.sync_path(paths.LEADER_LOCK)
        names = state.get_children(paths.LEADER_LOCK)
    except NoNodeError:
        names = []
    except StateUnavailableError as error:
        raise unknown from error
    for name in names:
        if (path := f"{paths.LEADER_LOCK}/{name}").startswith(prefix):
            return path
    raise unknown
