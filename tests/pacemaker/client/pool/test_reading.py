"""A pool reads from all servers, those that are down and Java Pacemakers among them."""

import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormkeeper.errors import NotAuthorizedError, PacemakerUnavailableError
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.wire.messages import MessageType
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import serialize
from support.pacemaker import nobody
from support.pools import TRY, address, timed
from support.scripted_pacemaker import (
    JavaPacemaker,
    ScriptedPacemaker,
    cut_at_the_request,
    refusing,
)
from support.waiting import DEADLINE_SECS, until

#: Between pulses whose order matters: two servers' ages are told by answers that may come late.
APART_SECS = 1.5


def heartbeat(time_secs):
    return serialize(
        ClusterWorkerHeartbeat(
            storm_id="wc-1", executor_stats={}, time_secs=time_secs, uptime_secs=1
        )
    )


def test_children_are_those_of_all_servers(daemons, pool_of, direct):
    one, other = map(direct, daemons)
    one.send_pulse("/w/a", b"")
    one.send_pulse("/w/b", b"")
    other.send_pulse("/w/b", b"")
    other.send_pulse("/w/c", b"")
    pool = pool_of(*daemons)
    assert pool.children("/w") == ["a", "b", "c"]
    assert pool.children("/nowhere") == []


def test_copy_received_last_counts_despite_workers_clock(daemons, pool_of, direct):
    older, newer = heartbeat(2_000_000_000), heartbeat(1_000_000_000)
    one, other = map(direct, daemons)
    pool = pool_of(*daemons)
    for first, second in ((one, other), (other, one)):
        first.send_pulse("/w/x", older)
        time.sleep(APART_SECS)
        second.send_pulse("/w/x", newer)
        assert pool.get_pulse("/w/x") == newer
        reading = pool.read("/w").by_path["/w/x"]
        assert (reading.value, reading.server) == (newer, str(second.address))
        assert 0.0 <= reading.age_secs < 10.0


def test_copy_older_than_deletion_elsewhere_is_hidden(daemons, pool_of, direct):
    one, other = map(direct, daemons)
    one.send_pulse("/w/zombie", b"old")
    one.send_pulse("/w/alive", b"old")
    time.sleep(APART_SECS)
    for path in ("/w/zombie", "/w/alive"):
        other.send_pulse(path, b"new")
        other.delete_pulse(path)
    time.sleep(APART_SECS)
    one.send_pulse("/w/alive", b"newest")
    readings = pool_of(*daemons).read("/w").by_path
    assert {path: reading.value for path, reading in readings.items()} == {"/w/alive": b"newest"}


def test_the_reading_of_one_path_has_its_age_and_its_server(daemons, pool_of, direct):
    one, other = map(direct, daemons)
    pool = pool_of(*daemons)
    assert pool.reading("/w/x") is None
    one.send_pulse("/w/x", b"older")
    time.sleep(APART_SECS)
    reading = pool.reading("/w/x")
    assert (reading.value, reading.server) == (b"older", str(one.address))
    assert APART_SECS * 0.9 <= reading.age_secs < 10.0
    other.send_pulse("/w/x", b"newer")
    reading = pool.reading("/w/x")
    assert (reading.value, reading.server) == (b"newer", str(other.address))
    assert reading.age_secs < 10.0
    assert pool.silent == frozenset()


def test_ages_are_read_without_values_and_with_who_answered(daemons, pool_of, direct):
    one, other = map(direct, daemons)
    one.send_pulse("/w/moved", b"older")
    one.send_pulse("/w/zombie", b"old")
    time.sleep(APART_SECS)
    other.send_pulse("/w/moved", b"newest")
    other.send_pulse("/w/zombie", b"new")
    other.delete_pulse("/w/zombie")
    missing = nobody()
    pool = pool_of(*daemons, missing)
    found = pool.read("/w", values=False)
    (reading,) = found.by_path.values()
    assert found.by_path.keys() == {"/w/moved"}
    assert (reading.value, reading.size, reading.server) == (None, 6, str(other.address))
    assert 0.0 <= reading.age_secs < 10.0
    columns = other.changes("/w").columns
    assert reading.revision == columns.revisions[columns.sizes.index(6)]
    assert list(found.servers) == [one.address, other.address, address(missing)]
    assert found.servers[other.address].instance == other.server_info().instance
    assert found.servers[other.address].horizon_ms >= 0
    assert isinstance(found.servers[address(missing)], PacemakerUnavailableError)
    with_values = pool.read("/w")
    assert with_values.by_path["/w/moved"].value == b"newest"
    assert with_values.servers.keys() == found.servers.keys()


@pytest.mark.parametrize(("its", "ours", "counts"), [(5, 4, "java"), (4, 5, "ours")])
def test_beside_a_java_pacemaker_values_are_read_to_compare_them(
    stack, daemons, pool_of, direct, its, ours, counts
):
    java = JavaPacemaker()
    peer = stack.enter_context(ScriptedPacemaker(java))
    java.store["/w/x"] = heartbeat(its)
    one = direct(daemons[0])
    one.send_pulse("/w/x", heartbeat(ours))
    found = pool_of(daemons[0], peer).read("/w", values=False)
    server = address(peer) if counts == "java" else one.address
    assert found.by_path["/w/x"].server == str(server)
    assert found.by_path["/w/x"].value is None
    assert found.servers[address(peer)] is None
    assert found.servers[one.address] is not None


def children_by(readings, path):
    """Return the names below a path that the bulk read has something of."""
    below = path.rstrip("/") + "/"
    found = (there[len(below) :] for there in readings if there.startswith(below))
    return sorted({rest.split("/")[0] for rest in found})


def test_newer_deletion_hides_copy_in_every_read(stack, daemons, pool_of, direct):
    one, other = map(direct, daemons)
    java = JavaPacemaker()
    peer = stack.enter_context(ScriptedPacemaker(java))
    # Both have an old pulse of a topology, and each deleted the one that the other has.
    older = ("/w/zombie/a", "/w/wakes/a", "/w/some/a", "/w/java/a", "/w/both/a", "/w/leaf")
    newer = (*older[:-2], "/w/beside/b", "/w/both/b", "/w/leaf")
    for path in older:
        one.send_pulse(path, b"old")
    one.send_pulse("/w/beside/a", b"old")
    other.send_pulse("/w/both/b", b"old")
    other.send_pulse("/w/kept/a", b"1")
    time.sleep(APART_SECS)
    for path in newer:
        server = one if path == "/w/both/b" else other
        server.send_pulse(path, b"new")
        server.delete_pulse(path)
    other.send_pulse("/w/both/a", b"new")
    other.delete_pulse("/w/both/a")
    one.send_pulse("/w/some/b", b"1")
    java.store["/w/java/a"] = b"its own"
    time.sleep(APART_SECS)
    one.send_pulse("/w/wakes/a", b"newest")

    pool = pool_of(*daemons, peer)
    readings = pool.read("/").by_path
    assert sorted(readings) == [
        *("/w/beside/a", "/w/java/a", "/w/kept/a", "/w/some/b", "/w/wakes/a"),
    ]
    for path in {*older, *newer, "/w/kept/a", "/w/some/b", "/w/beside/a", "/w", "/none"}:
        there = readings.get(path)
        value = there and there.value
        reading = pool.reading(path)
        assert (reading and (reading.value, reading.server)) == (
            there and (there.value, there.server)
        )
        assert pool.get_pulse(path) == value
    for path in ("/", "/w", "/w/", "/w/zombie", "/w/both", "/w/some", "/w/wakes", "/w/leaf"):
        assert pool.children(path) == children_by(readings, path), path


@pytest.fixture
def asked(monkeypatch):
    """The types of all requests, in the order in which they are made."""
    kinds = []
    submit = PacemakerClient.submit

    def counted(self, message, **options):
        kinds.append(message.type)
        return submit(self, message, **options)

    monkeypatch.setattr(PacemakerClient, "submit", counted)
    return kinds


def test_what_a_single_read_asks_of_each_server(daemons, pool_of, direct, asked):
    one, other = map(direct, daemons)
    alone, pool = pool_of(daemons[0]), pool_of(*daemons)
    one.send_pulse("/asked/a", b"1")
    other.send_pulse("/asked/b", b"1")

    def asks(read, path):
        asked.clear()
        read(path)
        return sorted(asked)

    held, nodes, deleted = MessageType.HELD, MessageType.GET_ALL_NODES_FOR_PATH, MessageType.DELETED
    assert asks(alone.get_pulse, "/asked/a") == asks(alone.reading, "/asked/a") == [held]
    assert asks(alone.children, "/asked") == [nodes, deleted]
    for read in (pool.get_pulse, pool.reading):
        for path in ("/asked/a", "/none"):
            assert asks(read, path) == [held] * 2
    assert asks(pool.children, "/asked") == [nodes] * 2 + [deleted] * 2
    one.delete_pulse("/asked/a")
    assert asks(pool.children, "/asked") == [nodes] * 2 + [deleted] * 2
    other.send_pulse("/asked/a", b"2")  # beside a tombstone: ages are read
    read = [MessageType.GET_PULSE] * 2 + [MessageType.CHANGES] * 2
    assert asks(pool.children, "/asked") == [nodes] * 2 + read + [deleted] * 2


def test_the_servers_that_a_read_missed_are_told(own_daemons, pool_of, direct):
    direct(own_daemons[0]).send_pulse("/w/x", b"1")
    pool = pool_of(*own_daemons, retries=0)
    own_daemons[1].kill()
    assert pool.children("/w") == ["x"]
    assert pool.silent == {address(own_daemons[1])}
    own_daemons[1].start()
    assert until(lambda: pool.reading("/w/x") and not pool.silent)


def test_java_pacemakers_are_ranked_by_the_time_in_the_pulse(stack, pool_of):
    one, other = JavaPacemaker(), JavaPacemaker()
    peers = [stack.enter_context(ScriptedPacemaker(java)) for java in (one, other)]
    one.store["/w/x"], other.store["/w/x"] = heartbeat(5), heartbeat(6)
    one.store["/w/y"], other.store["/w/y"] = heartbeat(8), b"no heartbeat"
    pool = pool_of(*peers)
    assert pool.get_pulse("/w/x") == heartbeat(6)
    assert pool.get_pulse("/w/y") == heartbeat(8)
    readings = pool.read("/w").by_path
    assert readings["/w/x"].value == heartbeat(6)
    assert readings["/w/x"].age_secs is None
    assert pool.children("/w") == ["x", "y"]


def test_copies_of_java_are_ranked_by_time_in_pulse(stack, daemons, pool_of, direct):
    java = JavaPacemaker()
    peer = stack.enter_context(ScriptedPacemaker(java))
    client = direct(daemons[0])
    for path, here, there in (("/w/a", 5, 6), ("/w/b", 6, 5), ("/w/c", 5, 5)):
        client.send_pulse(path, heartbeat(here))
        java.store[path] = heartbeat(there)
    pool = pool_of(peer, daemons[0])
    assert pool.get_pulse("/w/a") == heartbeat(6)
    assert pool.get_pulse("/w/b") == heartbeat(6)
    servers = {path: reading.server for path, reading in pool.read("/w").by_path.items()}
    assert servers == {
        "/w/a": str(address(peer)),
        "/w/b": str(client.address),
        "/w/c": str(client.address),
    }


def test_readings_are_all_pulses_at_and_below_a_path(daemons, pool_of, direct):
    one, other = map(direct, daemons)
    expected = {}
    for number in range(500):
        path = f"/w/{number % 7}/{number}"
        (one if number % 2 else other).send_pulse(path, b"%d" % number)
        expected[path] = b"%d" % number
    one.send_pulse("/w", b"top")
    other.send_pulse("/wide", b"not below /w")
    pool = pool_of(*daemons)
    expected["/w"] = b"top"
    assert {path: reading.value for path, reading in pool.read("/w").by_path.items()} == expected
    assert pool.read("/nowhere").by_path == {}


def test_dead_server_is_logged_as_missing(own_daemons, pool_of, caplog):
    caplog.set_level(logging.INFO, "stormkeeper.pacemaker.client.pool")
    first, second = own_daemons
    pool = pool_of(first, second)
    pool.send_pulse("/w/a", b"1")
    second.kill()
    for _ in range(5):
        assert pool.children("/w") == ["a"]
        assert pool.get_pulse("/w/a") == b"1"
        assert list(pool.read("/w").by_path) == ["/w/a"]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "once, and not at every read"
    assert "1 of 2 Pacemakers failed" in warnings[0].getMessage()
    assert second.address in warnings[0].getMessage()
    second.start()
    until(lambda: pool.children("/w") and "Every Pacemaker answers again" in caplog.text)


def test_frozen_server_costs_readers_one_try_once(own_daemons, pool_of):
    first, second = own_daemons
    pool = pool_of(first, second)
    pool.send_pulse("/w/a", b"1")
    second.suspend()
    children, took = timed(pool.children, "/w")
    assert children == ["a"]
    assert TRY <= took < 3 * TRY
    for _ in range(10):
        children, took = timed(pool.children, "/w")
        assert children == ["a"]
        assert took < 0.8 * TRY
    second.resume()
    until(lambda: not pool.clients[address(second)].suspect or pool.children("/w") is None)


def test_nobody_to_read_from_is_an_error(pool_of):
    pool = pool_of(nobody(), nobody(), retries=1)
    for read in (pool.children, pool.get_pulse, pool.read):
        with pytest.raises(PacemakerUnavailableError, match="no Pacemaker answered"):
            read("/w")


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("read", ["children", "read"])
def test_every_try_of_a_server_is_counted(stack, pool_of, read, retries):
    peer = stack.enter_context(ScriptedPacemaker(cut_at_the_request))
    pool = pool_of(peer, retries=retries)
    for _ in range(2):
        until(lambda: not pool.clients[address(peer)].retry_in())
        before = peer.connections
        with pytest.raises(PacemakerUnavailableError) as failure:
            getattr(pool, read)("/w")
        tries, seconds = re.search(r"\((\d+) tr(?:y|ies) in (.+?) s;", str(failure.value)).groups()
        assert int(tries) == peer.connections - before >= 1 + retries
        assert float(seconds) < 30


def test_readers_try_again_while_nobody_answers(own_daemons, pool_of):
    pool = pool_of(own_daemons[0], retries=1000)  # however long a daemon's start takes
    own_daemons[0].kill()
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(pool.children, "/w")
        until(lambda: pool.clients[address(own_daemons[0])].suspect)
        own_daemons[0].start()
        assert reading.result(DEADLINE_SECS) == []


def test_a_refusal_counts_only_where_nobody_answers(stack, daemons, pool_of):
    refuses = stack.enter_context(ScriptedPacemaker(refusing))
    for pool in (pool_of(refuses), pool_of(refuses, nobody())):
        for read in (pool.children, pool.get_pulse, pool.read):
            with pytest.raises(NotAuthorizedError, match="refused"):
                read("/w")
    pool = pool_of(daemons[0], refuses)
    pool.send_pulse("/w/a", b"1")
    assert pool.children("/w") == ["a"]


def test_every_server_that_refuses_or_does_not_answer_is_named(stack, pool_of):
    peers = [stack.enter_context(ScriptedPacemaker(refusing)) for _ in range(2)]
    absent = nobody()
    pool = pool_of(absent, *peers)
    for ask in (pool.children, pool.get_pulse, pool.read):
        with pytest.raises(NotAuthorizedError) as refusal:
            ask("/w")
        told = str(refusal.value)
        places = [told.index(str(server)) for server in (*map(address, peers), absent)]
        assert places == sorted(places)
    with pytest.raises(NotAuthorizedError) as refusal:
        pool.delete_path("/w")
    assert all(str(address(peer)) in str(refusal.value) for peer in peers)


def test_every_server_is_asked_who_it_is(stack, daemons, pool_of):
    java, gone = stack.enter_context(ScriptedPacemaker(JavaPacemaker())), nobody()
    pool = pool_of(daemons[0], java, gone)
    infos = pool.server_infos()
    assert list(infos) == [address(daemons[0]), address(java), gone]
    assert "changes" in infos[address(daemons[0])].extensions
    assert infos[address(java)] is None
    assert isinstance(infos[gone], PacemakerUnavailableError)
