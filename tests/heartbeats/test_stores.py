"""Reading heartbeats over several Pacemakers, of which not all need to be there."""

import gc
import time

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import (
    InvalidPathError,
    PacemakerClosedError,
    PacemakerUnavailableError,
)
from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS
from stormkeeper.heartbeats.stores import PacemakerHeartbeats
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.pool import PacemakerPool
from support.heartbeats import path
from support.pools import InOrder
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker
from support.waiting import until

#: Copies on two servers are told apart by ages, which are as exact as their answers are quick.
APART_SECS = 1.5


@pytest.fixture
def three(start_pacemaker):
    return [start_pacemaker() for _ in range(3)]


@pytest.fixture
def heartbeats(three):
    addresses = [Address.parse(server.address, 0) for server in three]
    found = PacemakerHeartbeats(PacemakerPool(addresses, random=InOrder()))
    yield found
    found.close()


def send(server, where, value):
    with PacemakerClient(server.address) as client:
        client.send_pulse(where, value)


def missing(found):
    return {name: one.error for name, one in found.coverage.items() if not one.is_reachable}


def test_ages_come_from_all_servers_without_values(three, heartbeats):
    heartbeats.beat(path("a"), b"1")
    send(three[1], path("b"), b"22")
    send(three[2], path("c", port=1), b"333")
    found = heartbeats.read_all()
    assert {
        where: (one.server, one.size, one.revision) for where, one in found.by_path.items()
    } == {
        path("a"): (three[0].address, 1, 1),
        path("b"): (three[1].address, 2, 1),
        path("c", port=1): (three[2].address, 3, 1),
    }
    assert {one.value for one in found.by_path.values()} == {None}
    assert all(one.age_secs >= 0 for one in found.by_path.values())
    assert list(found.coverage) == [server.address for server in three]
    assert len({one.position.instance for one in found.coverage.values()}) == 3
    assert all(0 <= one.horizon_secs <= one.uptime_secs for one in found.coverage.values())
    assert missing(found) == {}


def test_a_server_that_is_down_is_named_and_others_are_read(three, heartbeats):
    for server, name in zip(three, "abc", strict=True):
        send(server, path(name), b"x")
    three[1].kill()
    found = heartbeats.read_all()
    assert sorted(found.by_path) == [path("a"), path("c")]
    assert list(missing(found)) == [three[1].address]
    assert "refused" in missing(found)[three[1].address]
    assert found.coverage[three[1].address].horizon_secs is None
    until(lambda: three[1].restart() or True)
    send(three[1], path("new"), b"x")
    found = until(lambda: not missing(again := heartbeats.read_all()) and again)
    assert sorted(found.by_path) == [path("a"), path("c"), path("new")]


def test_the_newest_copy_counts_and_values_come_on_request(three, heartbeats):
    send(three[1], path("a"), b"older")
    time.sleep(APART_SECS)
    heartbeats.beat(path("a"), b"newer")
    send(three[2], path("a", port=1), b"another's")
    found = heartbeats.read_all("/workerbeats/a", values=True)
    assert {where: one.value for where, one in found.by_path.items()} == {
        path("a"): b"newer",
        path("a", port=1): b"another's",
    }
    assert heartbeats.read(path("a"))[2:] == (5, 1, b"newer")
    assert heartbeats.read(path("b")) is None


@pytest.mark.slow
def test_a_read_leaves_the_collection_of_garbage_as_it_was(three, heartbeats):
    assert gc.isenabled()
    heartbeats.read_all()
    assert gc.isenabled()
    gc.disable()
    try:
        heartbeats.read_all()
        assert not gc.isenabled()
    finally:
        gc.enable()
    for server in three:
        server.kill()
    with pytest.raises(PacemakerUnavailableError):
        heartbeats.read_all()
    assert gc.isenabled()


def test_a_removal_reaches_every_server(three, heartbeats):
    for server in three:
        send(server, path("a"), b"x")
        send(server, path("b"), b"x")
    assert heartbeats.names() == ["a", "b"]
    assert heartbeats.names("/workerbeats/a") == ["node-6700"]
    heartbeats.remove("/workerbeats/a")
    assert heartbeats.names() == ["b"]
    assert list(heartbeats.read_all().by_path) == [path("b")]


def test_a_java_pacemaker_has_neither_ages_nor_a_horizon():
    java = JavaPacemaker()
    java.store = {path("a"): b"1"}
    with ScriptedPacemaker(java) as server:
        address = server.address
        with PacemakerPool([Address.parse(address, 0)]) as pool:
            found = PacemakerHeartbeats(pool).read_all()
    assert found.by_path == {path("a"): (address, None, 1, None, None)}
    (coverage,) = found.coverage.values()
    assert coverage.is_reachable
    assert coverage.position.instance == WITHOUT_REVISIONS
    assert coverage.horizon_secs is None


def test_who_is_in_a_hurry_tries_once(three, heartbeats):
    heartbeats.read_all(hurried=True)
    for server in three:
        server.kill()
    with pytest.raises(PacemakerUnavailableError) as error:
        heartbeats.read_all(hurried=True)
    # A connection that is cut has a second chance.
    assert "(1 try" in str(error.value) or "(2 tries" in str(error.value)


def test_no_answer_at_all_is_an_error_and_so_is_what_is_no_path(three, heartbeats):
    for call in (heartbeats.read, heartbeats.read_all, heartbeats.names, heartbeats.remove):
        with pytest.raises(InvalidPathError):
            call("no/path")
    for server in three:
        server.kill()
    with pytest.raises(PacemakerUnavailableError):
        heartbeats.read_all()
    heartbeats.close()
    heartbeats.close()
    with pytest.raises(PacemakerClosedError):
        heartbeats.read_all()
