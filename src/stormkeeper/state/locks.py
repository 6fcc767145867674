"""Locks: the queue of those who would lead, in the order in which they came.

A lock is an ephemeral node below ``/leader-lock`` that is never made twice: its name has a GUID
and a number of its own, as those of Curator have, by which Storm's Nimbuses queue. It is gone, for
good, when its session is. Whose lock is the first may lead, and proves it with a fence (see
`stormkeeper.state.fences`).

The order is that of the changes that made the locks (their creation zxids), whoever made them:

- Nobody gets in before a lock: what is made later has a greater zxid, for ever. So the first stays
  the first until it is gone, and each reign has a greater epoch than the one before it.
- A list of locks, however old, lacks none that is before one that it has. It may have some that
  are gone: then its reader waits for a moment longer.

The number at the end of a name says the same while it rises. But it has 32 bits, it begins at 0
again when ``/leader-lock`` is made anew, and by hand a node can be given any name.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stormkeeper import paths
from stormkeeper.errors import (
    NoNodeError,
    NotLeaderError,
    OutcomeUnknownError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.paths import NimbusId
from stormkeeper.state.storage import ClusterState, NodeData, StateReader

#: What is between the GUID and the number in a lock's name: Curator's for a leader latch.
_LATCH: Final = "-latch-"

#: Names of locks: ZooKeeper's number has at least ten characters, and a sign once it has wrapped.
_NAME: Final = re.compile(r"(?:.*-)?latch-(?P<number>[0-9]{10}|-[0-9]{9,10})")


@dataclass(frozen=True, slots=True)
class Lock:
    """A place in the queue."""

    #: Where the node is, or was.
    path: str

    #: The store's count of changes when it was made (its creation zxid).
    created: int

    #: The id of the session that it ends with.
    session_id: int

    #: Who says to hold it.
    holder: bytes

    #: Whether its value was set since: then it keeps its place, and lets no write through.
    revoked: bool = False

    @property
    def nimbus(self) -> NimbusId | None:
        """The Nimbus that says to hold it, None where its value is none of a Nimbus."""
        return paths.parse_nimbus_id(self.holder.decode(errors="replace"))


def take(state: ClusterState, holder: bytes = b"") -> Lock:
    """Make a lock of this session, the last in the queue; it may be one of several.

    Parameters
    ----------
    state
        The session that the lock is to end with.
    holder
        The node's value: who this is. A Nimbus writes its `stormkeeper.paths.NimbusId`.

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
        # Its place is not known, and it would keep others from leading.
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
    return Lock(path, stat.created, stat.owner, holder, stat.version != 0)


def give_up(state: ClusterState, lock: Lock) -> None:
    """Delete the lock, and so end what its holder may write; one that is gone is fine."""
    state.delete_node(lock.path)


def queue(state: StateReader) -> list[Lock]:
    """Return all locks as they are now, the first one's first: it is the leader's, or will be."""
    return in_line(nodes(state))


def before(state: StateReader, lock: Lock, watch: bool = False) -> Lock | None:
    """Return the lock that is right before `lock`, None when `lock` is the first.

    Parameters
    ----------
    state
        Any session.
    lock
        A lock that is in the queue.
    watch
        Leave a watch on what is returned: it tells that it is gone, or was revoked. Then ask
        again, as others may be before `lock` still.

    Raises
    ------
    NotLeaderError
        `lock` is gone.
    """
    while True:
        ahead = predecessor(queue(state), lock)
        # One that has gone meanwhile is not watched: then there are fewer of them.
        if ahead is None or not watch or state.node_exists(ahead.path, watch=True):
            return ahead


def nodes(state: StateReader) -> dict[str, NodeData]:
    """Return what is below ``/leader-lock`` by name, as it is now: locks, and anything else."""
    try:
        # The server that is asked may lag behind.
        state.sync_path(paths.LEADER_LOCK)
        return state.children_data(paths.LEADER_LOCK)
    except NoNodeError:
        return {}


def in_line(nodes: Mapping[str, NodeData]) -> list[Lock]:
    """Return the locks among the nodes below ``/leader-lock``, the first one's first.

    A persistent node is none, whatever its name: nobody would ever lead by it.
    """
    numbered = []
    for name, (data, stat) in nodes.items():
        if stat.owner and (match := _NAME.fullmatch(name)):
            path = f"{paths.LEADER_LOCK}/{name}"
            lock = Lock(path, stat.created, stat.owner, data, stat.version != 0)
            numbered.append((stat.created, int(match["number"]), path, lock))
    # What one transaction made has the same zxid.
    return [lock for *_, lock in sorted(numbered, key=lambda each: each[:3])]


def predecessor(line: Sequence[Lock], lock: Lock) -> Lock | None:
    """Return which of the locks in `line` is right before `lock`, None when it is the first.

    Raises
    ------
    NotLeaderError
        It is not in `line`.
    """
    ahead = None
    for each in line:
        if (each.path, each.created) == (lock.path, lock.created):
            return ahead
        ahead = each
    raise NotLeaderError(
        f"the lock {lock.path} is gone, with its session or by hand: take another (locks.take)"
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
