"""The pool over real daemons that are killed, frozen and started again, and Java Pacemakers."""

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from random import Random

import pytest

from stormkeeper import conf
from stormkeeper.conf import Address
from stormkeeper.errors import (
    ConfigError,
    LocalProtocolError,
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.pool import PacemakerPool, connect
from stormkeeper.pacemaker.client.settings import ClientSettings
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import serialize
from support.leaks import nothing_left_behind
from support.pacemaker import PacemakerProcess
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, refusing
from support.waiting import until

TRY = 0.5
#: Between pulses whose order matters: two servers' ages are told by answers that may come late.
APART_SECS = 0.3


@pytest.fixture(scope="module")
def running():
    """Two daemons for the tests that do them no harm."""
    with PacemakerProcess() as one, PacemakerProcess() as other:
        yield one, other


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


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
    """Make a pool over daemons and scripted peers."""

    def make(*servers, **options):
        return stack.enter_context(
            PacemakerPool([address(server) for server in servers], try_timeout=TRY, **options)
        )

    return make


@pytest.fixture
def direct(stack):
    """Make a client of one server alone."""
    return lambda server: stack.enter_context(PacemakerClient(server.address))


def address(server):
    return Address.parse(str(getattr(server, "address", server)), 6699)


def nobody():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Address("127.0.0.1", listener.getsockname()[1])


def timed(work, *arguments):
    started = time.monotonic()
    return work(*arguments), time.monotonic() - started


def heartbeat(time_secs):
    return serialize(
        ClusterWorkerHeartbeat(
            storm_id="wc-1", executor_stats={}, time_secs=time_secs, uptime_secs=1
        )
    )


# --- writing to one -------------------------------------------------------------------------------


def test_no_server_is_a_mistake_in_the_configuration():
    with pytest.raises(ConfigError, match=r"-c pacemaker\.servers=HOST:PORT"):
        PacemakerPool([])
    with pytest.raises(ConfigError, match="b:1"):
        PacemakerPool([Address("a", 1)], write_to=Address("b", 1))


def test_a_pulse_is_written_to_one_server_and_read_from_all(daemons, pool_of, direct):
    pool = pool_of(*daemons)
    pool.create_path("/a")
    pool.send_pulse("/a/b", b"1")
    assert pool.get_pulse("/a/b") == b"1"
    assert pool.exists("/a/b")
    assert pool.get_pulse("/a/c") is None
    assert not pool.exists("/a/c")
    held = [daemon for daemon in daemons if direct(daemon).exists("/a/b")]
    assert [address(daemon) for daemon in held] == [pool.write_server]


def test_the_server_to_write_to_is_chosen_at_random():
    servers = [Address("a", number) for number in range(1, 4)]
    chosen = [PacemakerPool(servers, random=Random(seed)).write_server for seed in range(60)]
    for server in servers:
        assert chosen.count(server) > 5
    assert PacemakerPool(servers, write_to=servers[1]).write_server == servers[1]


@pytest.mark.parametrize("how", ["kill", "suspend"])
def test_a_worker_whose_server_dies_beats_at_the_other_within_a_try_or_two(
    how, own_daemons, pool_of, direct
):
    first, second = own_daemons
    pool = pool_of(first, second, write_to=address(first))
    pool.send_pulse("/w", b"1")
    getattr(first, how)()
    _, took = timed(pool.send_pulse, "/w", b"2")
    assert took < 3 * TRY
    assert pool.write_server == address(second)
    assert direct(second).get_pulse("/w") == b"2"
    _, took = timed(pool.send_pulse, "/w", b"3")
    assert took < TRY, "it stays with the server that took the pulse"


@pytest.mark.parametrize("how", ["kill", "suspend"])
def test_a_worker_goes_back_to_its_server_when_that_is_back(how, own_daemons, pool_of, direct):
    first, second = own_daemons
    pool = pool_of(first, second, write_to=address(first), look_secs=0.3)
    pool.send_pulse("/w", b"1")
    getattr(first, how)()
    pool.send_pulse("/w", b"2")
    assert pool.write_server == address(second)

    def beats_at(server):
        """Beat, and say where that went; no beat waits for the server that is down."""
        _, took = timed(pool.send_pulse, "/w", b"3")
        assert took < TRY
        time.sleep(0.05)
        return pool.write_server == address(server)

    for _ in range(20):
        assert not beats_at(first)
    first.resume() if how == "suspend" else first.start()
    until(lambda: beats_at(first))
    looking = direct(second)
    pool.send_pulse("/w", b"4")
    until(lambda: looking.server_info().connections == 1)  # its own: the pool's is let go
    assert direct(first).get_pulse("/w") == b"4"
    assert pool.get_pulse("/w") == b"4"


def test_the_writers_of_a_server_come_back_to_it_and_the_spread_is_as_before(stack):
    daemons = [stack.enter_context(PacemakerProcess()) for _ in range(3)]
    servers = [address(daemon) for daemon in daemons]
    writers = [
        stack.enter_context(
            PacemakerPool(servers, try_timeout=TRY, look_secs=0.5, random=Random(seed))
        )
        for seed in range(24)
    ]

    def beat():
        for number, writer in enumerate(writers):
            writer.send_pulse(f"/w/{number}", b"x")
        return [writer.write_server for writer in writers]

    at_first = beat()
    assert set(at_first) == set(servers)
    daemons[0].kill()
    away = beat()
    assert set(away) == set(servers[1:]), "not all to the same one"
    assert all(now == before for now, before in zip(away, at_first, strict=True) if before in away)
    daemons[0].start()
    until(lambda: beat() == at_first)


def test_with_the_patience_of_a_real_worker_a_pulse_is_elsewhere_within_two_seconds(
    own_daemons, stack
):
    first, second = map(address, own_daemons)
    pool = stack.enter_context(PacemakerPool([first, second], write_to=first))
    pool.send_pulse("/w", b"1")
    own_daemons[0].suspend()
    _, took = timed(pool.send_pulse, "/w", b"2")
    assert pool.write_server == second
    assert took < 2.0


def test_all_down_is_an_error_in_bounded_time_and_the_first_beat_after_a_return_succeeds(
    own_daemons, pool_of
):
    first, second = own_daemons
    pool = pool_of(first, second, write_to=address(first), write_deadline=1.0)
    pool.send_pulse("/w", b"1")
    for daemon in own_daemons:
        daemon.kill()
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises(PacemakerUnavailableError, match="no Pacemaker took the write") as error:
            pool.send_pulse("/w", b"2")
        assert time.monotonic() - started < 2.0
        assert first.address in str(error.value)
        assert second.address in str(error.value)
    second.start()
    _, took = timed(pool.send_pulse, "/w", b"3")
    assert took < 2.0
    assert pool.get_pulse("/w") == b"3"


def test_all_frozen_is_an_error_in_bounded_time(own_daemons, pool_of):
    pool = pool_of(*own_daemons, write_deadline=2.0)
    pool.send_pulse("/w", b"1")
    for daemon in own_daemons:
        daemon.suspend()
    started = time.monotonic()
    with pytest.raises(PacemakerUnavailableError):
        pool.send_pulse("/w", b"2")
    assert time.monotonic() - started < 3.0
    for daemon in own_daemons:
        daemon.resume()
    pool.send_pulse("/w", b"3")


def test_64_threads_lose_no_pulse_when_a_server_is_killed(own_daemons, pool_of):
    first, second = own_daemons
    pool = pool_of(first, second, write_to=address(first))
    written = []
    killed = threading.Event()

    def beat(number):
        """Beat at least once after the server was killed; return the last pulse."""
        for turn in range(1000):
            was_killed = killed.is_set()
            pulse = b"%d-%d" % (number, turn)
            pool.send_pulse(f"/w/{number}", pulse)
            written.append(pulse)
            if was_killed:
                return pulse
        raise AssertionError("the server was not killed")

    with ThreadPoolExecutor(64) as threads:
        beats = [threads.submit(beat, number) for number in range(64)]
        until(lambda: len(written) > 64 * 10)
        first.kill()
        killed.set()
        last = {f"/w/{number}": done.result(20.0) for number, done in enumerate(beats)}
    assert {path: reading.details for path, reading in pool.readings("/w").items()} == last


def test_a_refused_write_goes_to_the_next_server(stack, daemons, pool_of):
    refuses = stack.enter_context(ScriptedPacemaker(refusing))
    pool = pool_of(refuses, daemons[0], write_to=address(refuses))
    pool.send_pulse("/w", b"1")
    assert pool.write_server == address(daemons[0])


def test_a_write_that_all_refuse_is_refused(daemons, pool_of):
    pool = pool_of(*daemons)
    with pytest.raises(NotAuthorizedError, match=r"\.stormkeeper"):
        pool.send_pulse("/.stormkeeper", b"")
    pool = pool_of(nobody(), *daemons)
    with pytest.raises(NotAuthorizedError):
        pool.send_pulse("/.stormkeeper/x", b"")


def test_a_pulse_that_fits_no_frame_is_nobodys_fault_but_ours(daemons, pool_of):
    pool = pool_of(*daemons, settings=ClientSettings(max_message_size=1000))
    with pytest.raises(LocalProtocolError, match="1000"):
        pool.send_pulse("/w", bytes(1000))


# --- reading from all -----------------------------------------------------------------------------


def test_children_are_those_of_all_servers(daemons, pool_of, direct):
    one, other = map(direct, daemons)
    one.send_pulse("/w/a", b"")
    one.send_pulse("/w/b", b"")
    other.send_pulse("/w/b", b"")
    other.send_pulse("/w/c", b"")
    pool = pool_of(*daemons)
    assert pool.children("/w") == ["a", "b", "c"]
    assert pool.children("/nowhere") == []


def test_of_two_copies_the_one_received_last_counts_whatever_the_workers_clock_says(
    daemons, pool_of, direct
):
    older, newer = heartbeat(2_000_000_000), heartbeat(1_000_000_000)
    one, other = map(direct, daemons)
    pool = pool_of(*daemons)
    for first, second in ((one, other), (other, one)):
        first.send_pulse("/w/x", older)
        time.sleep(APART_SECS)
        second.send_pulse("/w/x", newer)
        assert pool.get_pulse("/w/x") == newer
        reading = pool.readings("/w")["/w/x"]
        assert (reading.details, reading.server) == (newer, second.address)
        assert 0.0 <= reading.age_secs < 10.0


def test_a_copy_that_is_older_than_its_deletion_elsewhere_does_not_count(daemons, pool_of, direct):
    one, other = map(direct, daemons)
    one.send_pulse("/w/zombie", b"old")
    one.send_pulse("/w/alive", b"old")
    time.sleep(APART_SECS)
    for path in ("/w/zombie", "/w/alive"):
        other.send_pulse(path, b"new")
        other.delete_pulse(path)
    time.sleep(APART_SECS)
    one.send_pulse("/w/alive", b"newest")
    readings = pool_of(*daemons).readings("/w")
    assert {path: reading.details for path, reading in readings.items()} == {"/w/alive": b"newest"}


def test_java_pacemakers_are_ranked_by_the_time_in_the_pulse(stack, pool_of):
    one, other = JavaPacemaker(), JavaPacemaker()
    peers = [stack.enter_context(ScriptedPacemaker(java)) for java in (one, other)]
    one.store["/w/x"], other.store["/w/x"] = heartbeat(5), heartbeat(6)
    one.store["/w/y"], other.store["/w/y"] = heartbeat(8), b"no heartbeat"
    pool = pool_of(*peers)
    assert pool.get_pulse("/w/x") == heartbeat(6)
    assert pool.get_pulse("/w/y") == heartbeat(8)
    readings = pool.readings("/w")
    assert readings["/w/x"].details == heartbeat(6)
    assert readings["/w/x"].age_secs is None
    assert pool.children("/w") == ["x", "y"]


def test_ours_and_a_java_pacemaker_are_ranked_by_the_time_in_the_pulse(
    stack, daemons, pool_of, direct
):
    java = JavaPacemaker()
    peer = stack.enter_context(ScriptedPacemaker(java))
    client = direct(daemons[0])
    for path, here, there in (("/w/a", 5, 6), ("/w/b", 6, 5), ("/w/c", 5, 5)):
        client.send_pulse(path, heartbeat(here))
        java.store[path] = heartbeat(there)
    pool = pool_of(peer, daemons[0])
    assert pool.get_pulse("/w/a") == heartbeat(6)
    assert pool.get_pulse("/w/b") == heartbeat(6)
    servers = {path: reading.server for path, reading in pool.readings("/w").items()}
    assert servers == {
        "/w/a": address(peer),
        "/w/b": client.address,
        "/w/c": client.address,
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
    assert dict(pool.all_pulses("/w")) == expected
    assert {path: reading.details for path, reading in pool.readings("/w").items()} == expected
    assert pool.readings("/nowhere") == {}


def test_a_dead_server_is_missing_in_what_is_read_and_that_is_said(own_daemons, pool_of, caplog):
    caplog.set_level(logging.INFO, "stormkeeper.pacemaker.client.pool")
    first, second = own_daemons
    pool = pool_of(first, second, write_to=address(first))
    pool.send_pulse("/w/a", b"1")
    second.kill()
    for _ in range(5):
        assert pool.children("/w") == ["a"]
        assert pool.get_pulse("/w/a") == b"1"
        assert pool.exists("/w/a")
        assert list(pool.readings("/w")) == ["/w/a"]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, "once, and not at every read"
    assert "1 of 2 Pacemakers are missing" in warnings[0].getMessage()
    assert second.address in warnings[0].getMessage()
    second.start()
    until(lambda: pool.children("/w") and "Every Pacemaker answers again" in caplog.text, 10.0)


def test_a_frozen_server_costs_readers_one_try_and_then_next_to_nothing(own_daemons, pool_of):
    first, second = own_daemons
    pool = pool_of(first, second, write_to=address(first))
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
    until(lambda: not pool.clients[address(second)].suspect or pool.children("/w") is None, 10.0)


def test_nobody_to_read_from_is_an_error(pool_of):
    pool = pool_of(nobody(), nobody(), retries=1)
    for read in (pool.children, pool.get_pulse, pool.exists, pool.readings, pool.all_pulses):
        with pytest.raises(PacemakerUnavailableError, match="no Pacemaker answered"):
            read("/w")


def test_readers_try_again_while_nobody_answers(own_daemons, pool_of):
    pool = pool_of(own_daemons[0])
    own_daemons[0].kill()
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(pool.children, "/w")
        until(lambda: pool.clients[address(own_daemons[0])].suspect)
        own_daemons[0].start()
        assert reading.result(20.0) == []


def test_a_refusal_counts_only_where_nobody_answers(stack, daemons, pool_of):
    refuses = stack.enter_context(ScriptedPacemaker(refusing))
    for pool in (pool_of(refuses), pool_of(refuses, nobody())):
        for read in (pool.children, pool.get_pulse, pool.exists, pool.readings):
            with pytest.raises(NotAuthorizedError, match="refused"):
                read("/w")
    pool = pool_of(refuses, daemons[0], write_to=address(daemons[0]))
    pool.send_pulse("/w/a", b"1")
    assert pool.children("/w") == ["a"]


def test_every_server_is_asked_who_it_is(stack, daemons, pool_of):
    java, gone = stack.enter_context(ScriptedPacemaker(JavaPacemaker())), nobody()
    pool = pool_of(daemons[0], java, gone)
    infos = pool.server_infos()
    assert list(infos) == [address(daemons[0]), address(java), gone]
    assert "changes" in infos[address(daemons[0])].extensions
    assert infos[address(java)] is None
    assert isinstance(infos[gone], PacemakerUnavailableError)


# --- deleting from all ----------------------------------------------------------------------------


def test_a_delete_reaches_every_server(daemons, pool_of, direct):
    clients = [direct(daemon) for daemon in daemons]
    pool = pool_of(*daemons)
    for client in clients:
        for path in ("/w/a", "/w/b", "/v"):
            client.send_pulse(path, b"")
    pool.delete_pulse("/w/a")
    assert [client.children("/w") for client in clients] == [["b"], ["b"]]
    pool.delete_path("/w")
    assert [client.children("/") for client in clients] == [["v"], ["v"]]


def test_a_delete_that_any_server_refuses_is_refused(stack, daemons, pool_of, direct):
    refuses = stack.enter_context(ScriptedPacemaker(refusing))
    direct(daemons[0]).send_pulse("/w", b"")
    with pytest.raises(NotAuthorizedError):
        pool_of(refuses, daemons[0]).delete_path("/w")
    assert not direct(daemons[0]).exists("/w"), "the others have done it"


def test_a_delete_that_a_frozen_server_missed_is_made_good_when_it_goes_on(
    own_daemons, pool_of, direct
):
    first, second = own_daemons
    held = direct(second)
    pool = pool_of(first, second, write_to=address(first))
    for number in range(3):
        held.send_pulse(f"/w-{number}/x", b"")
    second.suspend()
    for number in range(3):
        pool.delete_path(f"/w-{number}")
    second.resume()
    until(lambda: held.children("/") == [], 10.0)


def test_a_server_that_is_back_gives_readers_nothing_that_was_deleted(own_daemons, pool_of, direct):
    first, second = own_daemons
    pool = pool_of(first, second, write_to=address(first))
    second.kill()
    pool.delete_path("/w")
    pool.delete_pulse("/v")
    second.start()
    client = direct(second)
    for path in ("/w/late", "/v"):  # a worker that had not heard of the end of its topology
        client.send_pulse(path, b"")
    client.send_pulse("/kept", b"")
    names = until(lambda: pool.children("/"), 10.0)
    assert names == ["kept"]
    assert client.children("/") == ["kept"]


def test_a_delete_that_nobody_remembers_any_more_is_made_good_by_expiry(stack, direct):
    """The pool that deleted is gone; the server that missed it forgets the pulse by its age."""
    first = stack.enter_context(PacemakerProcess())
    second = stack.enter_context(PacemakerProcess(conf={"pacemaker.pulse.ttl.secs": 2}))
    held = direct(second)
    held.send_pulse("/w/a", b"")
    second.suspend()
    with PacemakerPool([address(first), address(second)], try_timeout=TRY) as pool:
        pool.delete_path("/w")
    second.resume()
    assert held.children("/w") == ["a"], "nobody makes it good"
    until(lambda: held.children("/") == [], 10.0)


def test_a_newer_pulse_is_not_deleted_by_what_is_made_good(own_daemons, pool_of, direct):
    first, second = own_daemons
    pool = pool_of(first, second, write_to=address(second))
    direct(second).send_pulse("/w/old", b"old")
    second.suspend()
    pool.delete_path("/w")
    second.resume()
    until(lambda: pool.clients[address(second)].retry_in() == 0.0)
    pool.send_pulse("/w/new", b"new")
    assert pool.write_server == address(second)
    until(lambda: not [t for t in threading.enumerate() if t.name.endswith("repair")], 10.0)
    assert direct(second).children("/w") == ["new"]


def test_a_delete_that_nobody_gets_is_an_error_and_made_good_nevertheless(own_daemons, pool_of):
    daemon = own_daemons[0]
    pool = pool_of(daemon, retries=1)
    pool.send_pulse("/w", b"1")
    daemon.suspend()
    with pytest.raises(PacemakerUnavailableError):
        pool.delete_pulse("/w")
    daemon.resume()
    with PacemakerClient(daemon.address) as client:
        until(lambda: not client.exists("/w"), 10.0)


# --- configuration, cost, end ---------------------------------------------------------------------


def test_the_configuration_makes_a_pool(daemons):
    servers = [daemon.address for daemon in daemons]
    settings = conf.defaults().with_values(
        {"pacemaker.servers": servers, "pacemaker.thrift.message.size.max": 2000}
    )
    with connect(settings, name="mine") as pool:
        assert [str(server) for server in pool.clients] == servers
        pool.send_pulse("/w", b"1")
        assert f"mine {pool.write_server}" in [thread.name for thread in threading.enumerate()]
        with pytest.raises(LocalProtocolError, match="2000"):
            pool.send_pulse("/w", bytes(2000))
    with pytest.raises(ConfigError, match=r"pacemaker\.servers"):
        connect(conf.defaults().with_values({"pacemaker.servers": []}))


def test_listing_loads_no_heavy_library(daemons):
    program = """
import json, sys
from stormkeeper.conf import Address
from stormkeeper.pacemaker.client.pool import PacemakerPool
servers = [Address.parse(server, 6699) for server in sys.argv[1:]]
with PacemakerPool(servers) as pool:
    pool.send_pulse("/w/a", b"1")
    names = pool.children("/w")
print(json.dumps([names, sorted({"thriftpy2", "pyspark", "zstandard"} & set(sys.modules))]))
"""
    run = subprocess.run(
        [sys.executable, "-c", program, *(daemon.address for daemon in daemons)],
        capture_output=True,
        timeout=30.0,
        check=True,
    )
    assert json.loads(run.stdout) == [["a"], []]


def test_a_closed_pool_says_so_and_wakes_who_waits(own_daemons, pool_of):
    pool = pool_of(*own_daemons)
    pool.send_pulse("/w", b"1")
    for daemon in own_daemons:
        daemon.suspend()
    with ThreadPoolExecutor(2) as threads:
        waiting = [
            threads.submit(pool.children, "/w"),
            threads.submit(pool.send_pulse, "/w", b"2"),
        ]
        time.sleep(0.1)
        pool.close()
        for call in waiting:
            with pytest.raises(PacemakerClosedError, match="closed"):
                call.result(5.0)
    pool.close()
    for verb in (pool.children, pool.delete_path, pool.readings):
        with pytest.raises(PacemakerClosedError, match="closed"):
            verb("/w")
    with pytest.raises(PacemakerClosedError, match="closed"):
        pool.send_pulse("/w", b"3")


def test_threads_and_descriptors_are_gone_at_the_end(daemons):
    with nothing_left_behind():
        for _ in range(3):
            servers = [address(daemon) for daemon in daemons]
            with PacemakerPool([*servers, nobody()], try_timeout=TRY) as pool:
                pool.send_pulse("/w", b"1")
                assert pool.children("/") == ["w"]
                pool.delete_path("/w")  # missed by one: the repair's thread runs
                names = [thread.name for thread in threading.enumerate()]
                assert any(name.endswith("repair") for name in names)
