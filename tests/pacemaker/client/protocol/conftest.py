"""A protocol with nothing done yet, and one that is connected."""

import pytest

from support.protocol_world import World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def connected(world):
    world.ask("/first")
    world.connect()
    world.serve()
    return world
