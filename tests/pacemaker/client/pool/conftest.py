"""Pools over two real daemons, some of which come to harm."""

import pytest

from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.pool import PacemakerPool
from support.pacemaker import PacemakerProcess
from support.pools import TRY, InOrder, address


@pytest.fixture(scope="module")
def running():
    """Two daemons for the tests that do them no harm."""
    with PacemakerProcess() as one, PacemakerProcess() as other:
        yield one, other


@pytest.fixture
def daemons(running):
    for daemon in running:
        with PacemakerClient(daemon.address) as client:
            client.delete_path("/")
    return running


@pytest.fixture(scope="module")
def mortals():
    with PacemakerProcess() as one, PacemakerProcess() as other:
        yield [one, other]


@pytest.fixture
def own_daemons(mortals):
    """Two daemons to be harmed; they are healed for the next test."""
    for daemon in mortals:
        try:
            daemon.resume()
        except AssertionError:  # it was killed
            daemon.start()
        with PacemakerClient(daemon.address) as client:
            client.delete_path("/")
    return mortals


@pytest.fixture
def pool_of(stack):
    """Make a pool over daemons and scripted peers; pulses go to the first."""

    def make(*servers, **options):
        return stack.enter_context(
            PacemakerPool(
                [address(server) for server in servers],
                **{"try_timeout": TRY, "random": InOrder(), **options},
            )
        )

    return make


@pytest.fixture
def direct(stack):
    """Make a client of one server alone."""
    return lambda server: stack.enter_context(PacemakerClient(server.address))
