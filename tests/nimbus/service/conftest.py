"""Two Nimbuses on ZooKeeper, one of which leads, and clients of Apache Thrift's own library."""

import itertools
import os

import pytest

from stormkeeper import conf
from stormkeeper.state.storm import cluster as storm_cluster
from support.apache_thrift import ApacheClient
from support.nimbus_service import SECRET, nimbuses

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def both(tmp_path_factory, zookeeper_server):
    """The Nimbus that leads, and the other one."""
    configured = conf.defaults().with_values(
        {
            "storm.zookeeper.servers": [zookeeper_server.host],
            "storm.zookeeper.port": zookeeper_server.port,
            "storm.zookeeper.root": f"/service-{os.getpid()}-{next(_numbers)}",
        }
    )
    sessions = [storm_cluster.connect(configured) for _ in range(2)]
    folder = tmp_path_factory.mktemp("service")
    with nimbuses(folder, *sessions, **{"storm.zookeeper.auth.payload": SECRET}) as running:
        yield running


@pytest.fixture(scope="module")
def leading(both):
    return both[0]


@pytest.fixture(scope="module")
def client(leading):
    with ApacheClient(leading.port) as client:
        yield client


@pytest.fixture(scope="module")
def other(both):
    """A client of the Nimbus that does not lead."""
    with ApacheClient(both[1].port) as client:
        yield client
