"""A pool writes to one server, and to another while that is killed or frozen."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import LocalProtocolError, NotAuthorizedError, PacemakerUnavailableError
from stormkeeper.pacemaker.client import pool_writes
from stormkeeper.pacemaker.client.client_settings import ClientSettings
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.pacemaker.wire.messages import MessageType
from support.pacemaker import PacemakerProcess, nobody
from support.pools import TRY, InOrder, address, timed
from support.scripted_pacemaker import (
    JavaPacemaker,
    ScriptedPacemaker,
    cut_at_the_request,
    refusing,
)
from support.waiting import DEADLINE_SECS, until


def test_a_pulse_is_written_to_one_server_and_read_from_all(daemons, pool_of, direct):
    pool = pool_of(*daemons)
    pool.send_pulse("/a/b", b"1")
    assert pool.get_pulse("/a/b") == b"1"
    assert pool.get_pulse("/a/b") is not None
    assert pool.get_pulse("/a/c") is None
    assert pool.get_pulse("/a/c") is None
    held = [daemon for daemon in daemons if direct(daemon).exists("/a/b")]
    assert [address(daemon) for daemon in held] == [pool.sender.placement.current]


def test_the_server_to_write_to_is_chosen_at_random():
    servers = [Address("a", number) for number in range(1, 4)]
    chosen = [
        PacemakerPool(servers, random=Random(seed)).sender.placement.current for seed in range(60)
    ]
    for server in servers:
        assert chosen.count(server) > 5


@pytest.mark.parametrize("how", ["kill", "suspend"])
def test_pulse_moves_from_dead_server_within_two_tries(how, own_daemons, pool_of, direct):
    first, second = own_daemons
    pool = pool_of(first, second)
    pool.send_pulse("/w", b"1")
    getattr(first, how)()
    _, took = timed(pool.send_pulse, "/w", b"2")
    assert took < 3 * TRY
    assert pool.sender.placement.current == address(second)
    assert direct(second).get_pulse("/w") == b"2"
    _, took = timed(pool.send_pulse, "/w", b"3")
    assert took < TRY, "it stays with the server that took the pulse"


@pytest.mark.parametrize("how", ["kill", "suspend"])
def test_a_worker_goes_back_to_its_server_when_that_is_back(
    how, own_daemons, pool_of, direct, monkeypatch
):
    monkeypatch.setattr(pool_writes, "LOOK_SECS", 0.3)
    first, second = own_daemons
    pool = pool_of(first, second)
    pool.send_pulse("/w", b"1")
    getattr(first, how)()
    pool.send_pulse("/w", b"2")
    assert pool.sender.placement.current == address(second)

    def beats_at(server):
        """Beat, and say where that went; no beat waits for the server that is down."""
        _, took = timed(pool.send_pulse, "/w", b"3")
        assert took < TRY
        time.sleep(0.05)
        return pool.sender.placement.current == address(server)

    for _ in range(20):
        assert not beats_at(first)
    first.resume() if how == "suspend" else first.start()
    until(lambda: beats_at(first))
    looking = direct(second)
    pool.send_pulse("/w", b"4")
    until(lambda: looking.server_info().connections == 1)  # its own: the pool's is let go
    assert direct(first).get_pulse("/w") == b"4"
    assert pool.get_pulse("/w") == b"4"


def test_writers_return_to_a_revived_server(stack, monkeypatch):
    monkeypatch.setattr(pool_writes, "LOOK_SECS", 0.5)
    daemons = [stack.enter_context(PacemakerProcess()) for _ in range(3)]
    servers = [address(daemon) for daemon in daemons]
    writers = [
        stack.enter_context(PacemakerPool(servers, try_timeout=5.0, random=Random(seed)))
        for seed in range(24)
    ]

    def beat():
        for number, writer in enumerate(writers):
            writer.send_pulse(f"/w/{number}", b"x")
        return [writer.sender.placement.current for writer in writers]

    at_first = beat()
    assert set(at_first) == set(servers)
    daemons[0].kill()
    away = beat()
    assert set(away) == set(servers[1:]), "not all to the same one"
    assert all(now == before for now, before in zip(away, at_first, strict=True) if before in away)
    daemons[0].start()
    until(lambda: beat() == at_first)


def test_check_of_home_without_thread_costs_no_write(stack, pool_of, monkeypatch):
    def lack(message, **_):
        asked.append(message.type)
        raise PacemakerUnavailableError("no thread")

    def has_looked():
        pool.send_pulse("/w", b"1")
        return MessageType.CREATE_PATH in asked

    asked = []
    servers = [stack.enter_context(ScriptedPacemaker(JavaPacemaker())) for _ in range(2)]
    home, other = map(address, servers)
    monkeypatch.setattr(pool_writes, "LOOK_SECS", 0.01)
    pool = pool_of(*servers)
    monkeypatch.setattr(pool.clients[home], "submit", lack)
    until(has_looked)
    assert pool.sender.placement.current == other


def test_real_workers_pulse_moves_within_two_seconds(own_daemons, stack):
    first, second = map(address, own_daemons)

    def is_soon_elsewhere():
        own_daemons[0].resume()
        pool = stack.enter_context(PacemakerPool([first, second], random=InOrder()))
        pool.send_pulse("/w", b"1")
        own_daemons[0].suspend()
        _, took = timed(pool.send_pulse, "/w", b"2")
        assert pool.sender.placement.current == second
        return took < 2.0

    # Always, but for what else the machine has to do.
    until(is_soon_elsewhere)


class NoDelay(InOrder):
    """Draws the least of every range, so that a server that failed is left alone for no time."""

    def uniform(self, a, b):  # noqa: ARG002
        return a


def test_a_server_that_hangs_is_tried_once_while_another_is_left(own_daemons, pool_of, caplog):
    first, second = own_daemons
    pool = pool_of(first, second, random=NoDelay(1))
    pool.send_pulse("/w", b"1")
    first.suspend()
    pool.send_pulse("/w", b"2")
    assert pool.sender.placement.current == address(second)
    assert f"{first.address} did not answer a request to store /w (1 try in " in caplog.text


def test_all_down_is_a_bounded_error_until_one_returns(own_daemons, pool_of):
    first, second = own_daemons
    pool = pool_of(first, second)
    pool.send_pulse("/w", b"1")
    for daemon in own_daemons:
        daemon.kill()
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises(PacemakerUnavailableError, match="no Pacemaker took the write") as error:
            pool.send_pulse("/w", b"2")
        assert time.monotonic() - started < 2 * 5.0
        assert first.address in str(error.value)
        assert second.address in str(error.value)
    second.start()
    pool.send_pulse("/w", b"3")
    assert pool.get_pulse("/w") == b"3"


def test_every_try_of_a_write_is_counted(stack, pool_of):
    peers = [stack.enter_context(ScriptedPacemaker(cut_at_the_request)) for _ in range(2)]
    for retries, tries in ((0, "1 try and"), (4, "5 tries and")):
        pool = pool_of(*peers, retries=retries)
        before = [peer.connections for peer in peers]
        with pytest.raises(PacemakerUnavailableError, match=tries) as failure:
            pool.send_pulse("/w", b"1")
        for peer, earlier in zip(peers, before, strict=True):
            made = peer.connections - earlier
            counted = f"a request to store /w ({made} tr{'y' if made == 1 else 'ies'} in"
            assert f"{peer.address} did not answer {counted}" in str(failure.value) or not made


def test_all_frozen_is_an_error_in_bounded_time(own_daemons, pool_of):
    pool = pool_of(*own_daemons)
    pool.send_pulse("/w", b"1")
    for daemon in own_daemons:
        daemon.suspend()
    started = time.monotonic()
    with pytest.raises(PacemakerUnavailableError):
        pool.send_pulse("/w", b"2")
    assert time.monotonic() - started < 2 * 5.0
    for daemon in own_daemons:
        daemon.resume()
    pool.send_pulse("/w", b"3")


def test_64_threads_lose_no_pulse_when_a_server_is_killed(own_daemons, pool_of):
    first, second = own_daemons
    pool = pool_of(first, second, try_timeout=5.0)
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
        last = {f"/w/{number}": done.result(DEADLINE_SECS) for number, done in enumerate(beats)}
    assert {path: reading.value for path, reading in pool.read("/w").by_path.items()} == last


def test_a_refused_write_goes_to_the_next_server(stack, daemons, pool_of):
    refuses = stack.enter_context(ScriptedPacemaker(refusing))
    pool = pool_of(refuses, daemons[0])
    pool.send_pulse("/w", b"1")
    assert pool.sender.placement.current == address(daemons[0])


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
