"""Leaders who are elected by nobody: each takes a lock, which has to be the first."""

from stormkeeper.state import fences, locks
from stormkeeper.state.fences import Fence
from stormkeeper.state.storage import ClusterState
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.leader import LeaderClusterState, leading


def fence_of(state: ClusterState) -> Fence:
    """Take a lock of this session, and return its fence."""
    return fences.obtain(state, locks.take(state))


def lead(storm: StormClusterState) -> LeaderClusterState:
    """Take a lock of this session, and lead by it."""
    return leading(storm, fence_of(storm.state))
