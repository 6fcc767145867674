"""The leader's lock: the queue of candidates, and the fence of the first.

A lock is an ephemeral node below ``/leader-lock``, never made twice, named by a GUID and a number,
as in Curator; Storm's Nimbuses queue by the number. Here the creation zxid orders locks:

- A later lock has a greater zxid, so no lock gets in before another, and epochs grow.
- Even an outdated list has every lock that stands before one in it.

The number has 32 bits and restarts when ``/leader-lock`` is made anew, and an operator can give a
node any name.
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

#: Curator's name for a leader latch, between GUID and number.
_LATCH: Final = "-latch-"

#: ZooKeeper's number has at least ten characters, and a sign once it has wrapped.
_NAME: Final = re.compile(r"(?:.*-)?latch-(?P<number>[0-9]{10}|-[0-9]{9,10})")


@dataclass(frozen=True, slots=True)
class Fence:
    """The lock by which a leader writes."""

    path: str
    #: Creation zxid: grows with every leadership.
    epoch: int


@dataclass(frozen=True, slots=True)
class Lock:
    """A place in the queue."""

    path: str
    #: Creation zxid.
    created: int

    session_id: int
    #: The node's value at creation.
    holder: bytes
    #: Whether the value was set since creation: a revoked lock keeps its place, and lets no write
    #: through.
    revoked: bool = False

    @property
    def nimbus(self) -> NimbusId | None:
        """The holder, None if the value is no Nimbus id."""
        return paths.parse_nimbus_id(self.holder.decode(errors="replace"))

    @property
    def fence(self) -> Fence:
        return Fence(self.path, self.created)


def take(state: ClusterState, holder: bytes = b"") -> Lock:
    """Make a lock of this session, the last in the queue; `holder` is a `NimbusId`.

    After `OutcomeUnknownError` a lock may exist, and become the first until the session ends: look
    for the session's locks, or end the session, before taking another. Raises `NotLeaderError` if
    the lock is gone already.
    """
    prefix = f"{paths.LEADER_LOCK}/_c_{uuid.uuid4()}{_LATCH}"
    try:
        path = state.create_sequential(prefix, holder)
    except OutcomeUnknownError as error:
        # A second lock would leave the first without an owner to delete it.
        path = _find(state, prefix, error)
    try:
        stat = state.get_stat(path)
    except StateError as error:
        # A lock of unknown place would keep others from leading.
        try:
            state.delete_node(path)
        except StateUnavailableError:
            # The read's own error would claim that nothing was sent: no lock.
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
    state.delete_node(lock.path)


def queue(state: StateReader) -> list[Lock]:
    """Return all locks, the leader's first."""
    return in_line(nodes(state))


def before(state: StateReader, lock: Lock, watch: bool = False) -> Lock | None:
    """Return the lock right before `lock`, None if `lock` is the first.

    With `watch`, leaves a watch on the returned lock: when it fires, ask again. Raises
    `NotLeaderError` if `lock` is gone.
    """
    while True:
        ahead = predecessor(queue(state), lock)
        # Unwatched if gone meanwhile; each turn there are fewer.
        if ahead is None or not watch or state.node_exists(ahead.path, watch=True):
            return ahead


def nodes(state: StateReader) -> dict[str, NodeData]:
    """Return the nodes below ``/leader-lock`` by name, after a sync."""
    try:
        state.sync_path(paths.LEADER_LOCK)
        return state.children_data(paths.LEADER_LOCK)
    except NoNodeError:
        return {}


def in_line(nodes: Mapping[str, NodeData]) -> list[Lock]:
    """Return the locks among the nodes below ``/leader-lock``, the first at the front.

    A persistent node is no lock.
    """
    numbered = []
    for name, (data, stat) in nodes.items():
        if stat.owner and (match := _NAME.fullmatch(name)):
            path = f"{paths.LEADER_LOCK}/{name}"
            lock = Lock(path, stat.created, stat.owner, data, stat.version != 0)
            numbered.append((stat.created, int(match["number"]), path, lock))
    # Locks of one transaction have the same zxid.
    return [lock for *_, lock in sorted(numbered, key=lambda each: each[:3])]


def predecessor(line: Sequence[Lock], lock: Lock) -> Lock | None:
    """Return the lock right before `lock`, None for the first.

    Raises `NotLeaderError` if `lock` is not in `line`.
    """
    ahead = None
    for each in line:
        if (each.path, each.created) == (lock.path, lock.created):
            return ahead
        ahead = each
    raise NotLeaderError(
        f"the lock {lock.path} is gone, with its session or by hand: take another"
        " (leader_lock.take)"
    )


def verify_fence(state: StateReader, fence: Fence) -> None:
    """Raise `NotLeaderError`, with the reason, unless this session leads by `fence`.

    A write does not check the lock's place in the queue, nor the epoch that records get. So this
    function checks both, once.
    """
    if not isinstance(fence, Fence):
        raise TypeError(f"a leader writes by a Fence, not by a {type(fence).__name__}")
    if paths.parent(paths.check(fence.path)) != paths.LEADER_LOCK:
        raise NotLeaderError(f"{fence.path} is no lock: locks are directly below /leader-lock")
    if why := _refusal(nodes(state), fence, state.session_id):
        raise NotLeaderError(f"{fence.path} does not lead in this session: {why}")


def _refusal(nodes: Mapping[str, NodeData], fence: Fence, session_id: int | None) -> str | None:
    line = in_line(nodes)
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
    elif ahead := predecessor(line, lock):
        holder = ahead.holder.decode(errors="replace")
        return f"{ahead.path} ({holder!r}) is before it; wait until it is gone (leader_lock.before)"
    else:
        return None
    return f"{why}; take a lock (leader_lock.take)"


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
