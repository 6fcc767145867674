"""A cluster of Nimbuses in memory, with real files."""

import pytest

from support.code import Cluster


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self):
        self.secs = 0.0

    def __call__(self):
        return self.secs


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cluster(tmp_path):
    """No watch is told of anything."""
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def live(tmp_path):
    """Watches are told, by threads."""
    cluster = Cluster(tmp_path, inline=False)
    yield cluster
    cluster.close()
