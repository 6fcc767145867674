from contextlib import ExitStack

import pytest

from stormkeeper import conf
from stormkeeper.client.nimbus_connection import connect
from support.small_nimbus import SmallNimbus, serving


@pytest.fixture
def cluster():
    """Start small Nimbuses; return the configuration that names them."""
    with ExitStack() as stack:

        def start(*nimbuses):
            seeds = [stack.enter_context(serving(nimbus)) for nimbus in nimbuses]
            return conf.defaults().with_values({"nimbus.seeds": seeds})

        yield start


@pytest.fixture
def nimbus():
    """A small Nimbus."""
    return SmallNimbus()


@pytest.fixture
def connected(cluster, nimbus):
    """A connection to it."""
    with connect(cluster(nimbus)) as connection:
        yield connection
