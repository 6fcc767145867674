"""Leaders who are elected by nobody: each takes a lock, which has to be the first."""

from stormkeeper.state import leader_lock
from stormkeeper.state.leader_lock import Fence, Lock
from stormkeeper.state.storage import ClusterState
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState, leader_state


def obtain_fence(state: ClusterState, lock: Lock) -> Fence:
    """Return the fence of a lock, which must be the first."""
    leader_lock.verify_fence(state, lock.fence)
    return lock.fence


def fence_of(state: ClusterState) -> Fence:
    """Take a lock of this session, and return its fence."""
    return obtain_fence(state, leader_lock.take(state))


def lead(storm: StormClusterState) -> LeaderClusterState:
    """Take a lock of this session, and lead by it."""
    return leader_state(storm, fence_of(storm.state))
