"""The queue of those who would lead, with Curator's latches in it, as Storm's Nimbuses stand there.

Curator itself, in a JVM, from the jars that PySpark brings.
"""

from pathlib import Path

import py4j.java_gateway
import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway

from stormkeeper import paths
from stormkeeper.daemon.spark_environment import find_java
from stormkeeper.errors import NotLeaderError
from stormkeeper.state import leader_lock
from support.leaders import obtain_fence
from support.waiting import DEADLINE_SECS, until

pytestmark = pytest.mark.zookeeper

JAVA_S = b"nimbus-java.example:6627:0"


@pytest.fixture(scope="module")
def jvm():
    port, token, process = py4j.java_gateway.launch_gateway(
        classpath=str(Path(pyspark.__file__).parent / "jars" / "*"),
        javaopts=["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        java_path=str(find_java()),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    yield gateway.jvm
    gateway.shutdown()
    process.stdin.close()
    process.kill()
    process.wait(timeout=DEADLINE_SECS)


@pytest.fixture
def start_latch(jvm, zookeeper_server, zookeeper_root):
    """Has somebody in the JVM queue up, as Storm's Nimbus does."""
    curator = jvm.org.apache.curator
    client = curator.framework.CuratorFrameworkFactory.newClient(
        str(zookeeper_server.address), curator.retry.RetryOneTime(100)
    )
    client.start()
    latches = []

    def start_latch():
        latch = curator.framework.recipes.leader.LeaderLatch(
            client, zookeeper_root + paths.LEADER_LOCK, JAVA_S.decode()
        )
        latch.start()
        latches.append(latch)
        return latch

    yield start_latch
    for latch in latches:
        if latch.getState().name() != "CLOSED":
            latch.close()
    client.close()


def test_each_waits_for_the_one_before_it(connect, start_latch):
    state, other = connect(), connect()
    first = leader_lock.take(state, b"nimbus1.example:6627:0")
    fence = obtain_fence(state, first)
    latch = start_latch()
    until(lambda: len(leader_lock.queue(state)) == 2)
    last = leader_lock.take(other)
    ours, theirs, _ = leader_lock.queue(other)
    assert (ours, theirs.nimbus) == (first, ("nimbus-java.example", 6627, 0))
    assert leader_lock.before(other, last) == theirs
    assert not latch.hasLeadership()

    leader_lock.give_up(state, first)
    until(latch.hasLeadership)
    with pytest.raises(NotLeaderError, match="it is gone"):
        leader_lock.verify_fence(state, fence)
    with pytest.raises(NotLeaderError, match=rf"'{JAVA_S.decode()}'\) is before it"):
        obtain_fence(other, last)

    latch.close()
    until(lambda: leader_lock.before(other, last) is None)
    assert obtain_fence(other, last).epoch > fence.epoch


def test_our_lock_stands_behind_storms_lock(connect, start_latch):
    latch = start_latch()
    until(latch.hasLeadership)
    state = connect()
    lock = leader_lock.take(state)
    assert leader_lock.before(state, lock).holder == JAVA_S
    latch.close()
    until(lambda: leader_lock.before(state, lock) is None)
    fence = obtain_fence(state, lock)

    later = start_latch()
    until(lambda: len(leader_lock.queue(state)) == 2)
    assert not later.hasLeadership()
    leader_lock.verify_fence(state, fence)
