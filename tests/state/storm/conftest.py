"""Typed states on an ensemble in memory."""

from collections.abc import Callable, Iterator

import pytest

from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState
from stormkeeper.thrift.serialization import Codec
from support.leaders import lead
from support.memory_state import MemoryEnsemble, MemoryState


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.secs = 1_700_000_000.0

    def __call__(self) -> float:
        return self.secs


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    """The store; whoever wants to say when callbacks run has an inline one instead."""
    return MemoryEnsemble()


@pytest.fixture
def open_storm(
    ensemble: MemoryEnsemble, clock: Clock
) -> Iterator[Callable[..., StormClusterState]]:
    """Opens a session and what is typed in it; keywords go to `StormClusterState`."""
    opened = []

    def open_one(**keywords: object) -> StormClusterState:
        both = {"clock": clock, "monotonic": clock}
        storm = StormClusterState(ensemble.session(), Codec(), **both | keywords)
        opened.append(storm)
        return storm

    yield open_one
    for storm in opened:
        storm.disconnect()


@pytest.fixture
def storm(open_storm: Callable[..., StormClusterState]) -> StormClusterState:
    return open_storm()


@pytest.fixture
def memory(storm: StormClusterState) -> MemoryState:
    """The session of `storm`."""
    return storm.state


@pytest.fixture
def leader(open_storm: Callable[..., StormClusterState]) -> LeaderClusterState:
    """A leader with a session of its own."""
    storm = open_storm()
    return lead(storm)
