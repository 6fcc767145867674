"""The client against the real daemon: its verbs, many threads, restarts, its end."""

import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import (
    LocalProtocolError,
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.wire.messages import Message, MessageType
from support.leaks import nothing_left_behind
from support.pacemaker import PacemakerProcess, nobody
from support.proxy import Proxy
from support.scripted_pacemaker import ScriptedPacemaker, hang, honest
from support.waiting import DEADLINE_SECS, until

THREADS = 64


@pytest.fixture(scope="module")
def daemon():
    with PacemakerProcess() as process:
        yield process


@pytest.fixture
def client(daemon):
    with PacemakerClient(daemon.address) as client:
        client.delete_path("/")
        yield client


def in_threads(work, threads=THREADS):
    """Run `work(number)` in many threads at once; return their results in order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(threads)))


# --- the verbs, against the real daemon -----------------------------------------------------------


def test_a_pulse_is_stored_found_listed_and_deleted(client):
    assert client.get_pulse("/a/b") is None
    assert not client.exists("/a/b")
    client.send_pulse("/a/b", b"one")
    client.send_pulse("/a/b", b"two")
    client.send_pulse("/a/c", b"")
    assert client.get_pulse("/a/b") == b"two"
    assert client.get_pulse("/a/c") == b""
    assert client.exists("/a/b")
    assert not client.exists("/a")
    assert client.children("/a") == ["b", "c"]
    assert client.children("/nowhere") == []
    client.delete_pulse("/a/b")
    assert client.children("/a") == ["c"]
    client.delete_path("/a")
    assert client.children("/") == []


def test_our_server_tells_of_itself_and_of_changes(client):
    info = client.server_info()
    assert "changes" in info.extensions
    before = client.changes("/", limit=1).revision
    client.send_pulse("/a", b"1")
    page = client.changes("/", after=before, instance=info.instance)
    assert (page.columns.paths, page.columns.details) == (["/a"], [b"1"])
    assert page.instance == info.instance


def test_a_refused_write_is_an_error(client):
    with pytest.raises(NotAuthorizedError, match=r"refused a request to store /\.stormkeeper/x"):
        client.send_pulse("/.stormkeeper/x", b"")
    with pytest.raises(
        NotAuthorizedError, match=r"refused a request to delete all below /\.stormkeeper"
    ):
        client.delete_path("/.stormkeeper")


def test_a_host_name_works_as_an_address_does(daemon):
    with PacemakerClient(f"localhost:{daemon.port}") as client:
        assert client.children("/nowhere") == []
        assert str(client.address) == f"localhost:{daemon.port}"


def test_a_pulse_of_megabytes_goes_both_ways(client):
    details = Random(1).randbytes(9_000_000)
    client.send_pulse("/large", details)
    assert client.get_pulse("/large") == details


def test_ask_ahead_keeps_order_across_cut_connection(daemon):
    began = time.time()
    with (
        Proxy(Address(daemon.host, daemon.port)) as proxy,
        PacemakerClient(proxy.address) as client,
    ):
        for key in range(30):
            client.send_pulse(f"/ahead/{key}", b"%d" % key)
        asked = []

        def questions():
            for key in range(30):
                asked.append(key)
                yield Message(MessageType.GET_PULSE, path=f"/ahead/{key}")

        found, under_way, times = [], [], []
        for answer, at in client.ask_ahead(questions(), 4):
            found.append(answer.pulse.details)
            under_way.append(len(asked) - len(found))
            times.append((at, time.time()))
            if len(found) == 10:
                proxy.cut()
                proxy.mend()
    assert found == [b"%d" % key for key in range(30)]
    assert max(under_way) == 4
    assert all(began < at <= taken for at, taken in times)
    assert len({at for at, _ in times}) == 30


def test_64_threads_get_their_own_answers(client):
    keys = 200
    for key in range(keys):
        client.send_pulse(f"/threads/{key}", b"value of %d" % key)

    def ask(number):
        random = Random(number)
        for turn in range(60):
            key = random.randrange(keys)
            assert client.get_pulse(f"/threads/{key}") == b"value of %d" % key
            if turn % 10 == 0:
                own = f"/own/{number}/{turn}"
                assert not client.exists(own)
                client.send_pulse(own, b"%d" % number)
                assert client.exists(own)
                assert client.children(f"/own/{number}") == [
                    str(other) for other in sorted(range(0, turn + 1, 10), key=str)
                ]
        return client.get_pulse(f"/nobody/{number}")

    connections = client.server_info().connections
    assert in_threads(ask) == [None] * THREADS
    assert client.server_info().connections == connections


def test_64_threads_get_their_own_answers_across_cuts(daemon):
    over = threading.Event()
    cuts, turns = [], []

    def beat(number):
        """Write and read back: what is read is what this thread wrote last."""
        path, value = f"/cut/{number}", None
        for turn in range(40):
            value = b"%d-%d" % (number, turn)
            client.send_pulse(path, value)
            assert client.get_pulse(path) == value
            assert client.get_pulse(f"{path}/nothing") is None
            turns.append(turn)
        client.delete_pulse(path)
        assert not client.exists(path)
        client.send_pulse(path, value)
        return value

    def cut_again_and_again():
        # However slow the machine is, something gets through in between.
        random, due = Random(5), 0
        while not over.wait(0.001):
            if len(turns) >= due:
                proxy.cut()
                proxy.mend()
                cuts.append(1)
                due = len(turns) + random.randint(20, 100)

    with (
        Proxy(Address(daemon.host, daemon.port)) as proxy,
        PacemakerClient(proxy.address, retries=100, deadline=60.0) as client,
    ):
        cutter = threading.Thread(target=cut_again_and_again)
        cutter.start()
        try:
            values = in_threads(beat)
        finally:
            over.set()
            cutter.join()
        assert len(cuts) > 5, "the line was hardly cut"
        assert [client.get_pulse(f"/cut/{number}") for number in range(THREADS)] == values


def test_64_threads_open_one_connection_and_open_it_once_again():
    def cut_the_first(connection):
        for _ in range(THREADS):
            connection.request()
        connection.reset()

    with ScriptedPacemaker(cut_the_first, honest) as peer, PacemakerClient(peer.address) as client:
        assert in_threads(lambda number: client.exists(f"/{number}")) == [False] * THREADS
        assert peer.connections == 2


def test_answers_come_to_callbacks_which_may_ask_again(client):
    client.send_pulse("/a", b"1")
    done = threading.Event()
    answers = []

    def second(future):
        answers.append(future.result().boolval)
        done.set()

    def first(future):
        answers.append(future.result().pulse.details)
        question = Message(MessageType.EXISTS, path="/b")
        client.submit(question).add_done_callback(second)

    client.submit(Message(MessageType.GET_PULSE, path="/a")).add_done_callback(first)
    assert done.wait(DEADLINE_SECS)
    assert answers == [b"1", False]


def test_waiting_in_a_callback_is_refused_not_a_deadlock(client):
    errors = []
    done = threading.Event()

    def wait_there(_):
        try:
            client.exists("/a")
        except LocalProtocolError as error:
            errors.append(str(error))
        done.set()

    client.submit(Message(MessageType.GET_PULSE, path="/a")).add_done_callback(wait_there)
    # Should the answer come before the callback is set, this thread runs it, and may well wait.
    assert done.wait(DEADLINE_SECS)
    assert all("callback" in error for error in errors)


# --- a real daemon that goes away -----------------------------------------------------------------


def test_a_restart_between_two_calls_is_not_noticed():
    with PacemakerProcess() as daemon, PacemakerClient(daemon.address) as client:
        client.send_pulse("/a", b"1")
        daemon.restart()
        client.send_pulse("/a", b"2")
        assert client.get_pulse("/a") == b"2"


def test_a_frozen_daemon_costs_tries_until_it_goes_on():
    with (
        PacemakerProcess() as daemon,
        PacemakerClient(daemon.address, try_timeout=1.0) as client,
    ):
        client.send_pulse("/a", b"1")
        daemon.suspend()
        with ThreadPoolExecutor(10) as threads:
            reads = [threads.submit(client.get_pulse, "/a") for _ in range(10)]
            until(lambda: client.suspect)
            daemon.resume()
            assert [read.result(DEADLINE_SECS) for read in reads] == [b"1"] * 10


def test_calls_to_dead_daemon_end_and_first_after_succeeds():
    with (
        PacemakerProcess() as daemon,
        PacemakerClient(daemon.address, retries=3) as client,
    ):
        client.send_pulse("/a", b"1")
        daemon.kill()
        for _ in range(3):
            with pytest.raises(PacemakerUnavailableError) as raised:
                client.get_pulse("/a")
        text = str(raised.value)
        assert daemon.address in text
        assert "a request to read /a" in text
        assert "4 tries" in text
        assert "connection refused" in text
        daemon.start()
        client.send_pulse("/a", b"2")
        assert client.get_pulse("/a") == b"2"


# --- limits ---------------------------------------------------------------------------------------


def test_a_frame_above_the_limit_is_refused_before_it_is_sent():
    with (
        ScriptedPacemaker(honest) as peer,
        PacemakerClient(peer.address, max_message_size=1000) as client,
    ):
        with pytest.raises(LocalProtocolError, match="1000"):
            client.send_pulse("/a", bytes(1000))
        assert peer.connections == 0
        client.send_pulse("/a", bytes(900))


@pytest.mark.parametrize("kind", [None, 1, 16, 17, 18, 101, 200])
def test_what_is_no_request_is_not_sent(kind):
    with PacemakerClient("127.0.0.1:1") as client, pytest.raises(LocalProtocolError):
        client.submit(Message(kind, path="/a"))


# --- the end --------------------------------------------------------------------------------------


def test_closing_wakes_everybody_who_waits():
    with ScriptedPacemaker(hang) as peer:
        client = PacemakerClient(peer.address)
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(client.get_pulse, f"/{number}") for number in range(8)]
            until(lambda: peer.connections == 1)
            client.close()
            for call in waiting:
                with pytest.raises(PacemakerClosedError, match="closed"):
                    call.result(DEADLINE_SECS)
        client.close()
        with pytest.raises(PacemakerClosedError, match=f"client of {peer.address} is closed"):
            client.get_pulse("/a")


def test_close_in_back_off_or_connecting_ends_calls():
    with ThreadPoolExecutor(1) as thread:
        with PacemakerClient(nobody(), retries=1000) as client:
            refused = thread.submit(client.exists, "/a")
            until(lambda: client.suspect)
        with pytest.raises(PacemakerClosedError):
            refused.result(DEADLINE_SECS)


def test_a_client_may_be_closed_in_a_callback(daemon):
    client = PacemakerClient(daemon.address)
    future = client.submit(Message(MessageType.EXISTS, path="/a"))
    closed = threading.Event()

    def close(_):
        client.close()
        closed.set()

    future.add_done_callback(close)
    assert closed.wait(DEADLINE_SECS)
    with pytest.raises(PacemakerClosedError):
        client.exists("/a")


def test_threads_and_descriptors_are_gone_at_the_end(daemon):
    gc.collect()
    with nothing_left_behind(), ScriptedPacemaker(hang) as peer:
        for number in range(5):
            with PacemakerClient(daemon.address, name="leaky") as client:
                in_threads(lambda _, client=client: client.exists("/a"), 8)
                if number == 0:
                    names = [thread.name for thread in threading.enumerate()]
                    assert names.count(f"leaky {daemon.address}") == 1
        with (
            Proxy(Address(daemon.host, daemon.port)) as proxy,
            PacemakerClient(proxy.address) as client,
        ):
            for _ in range(10):
                client.exists("/a")
                proxy.cut()
                proxy.mend()
        for address in (peer.address, nobody()):
            with (
                PacemakerClient(address, try_timeout=0.05, retries=2) as client,
                pytest.raises(PacemakerUnavailableError),
            ):
                client.exists("/a")
        PacemakerClient(daemon.address).close()


def test_a_fork_is_told_to_make_its_own_client(client, daemon):
    assert client.exists("/a") is False
    child = os.fork()
    if child == 0:
        code = 1
        try:
            client.exists("/a")
        except PacemakerUnavailableError as error:
            assert client.retry_in() == 0.0
            client.close()
            with PacemakerClient(daemon.address) as own:
                code = 0 if "fork" in str(error) and own.exists("/a") is False else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + DEADLINE_SECS
    pid = code = 0
    while pid == 0 and time.monotonic() < deadline:
        pid, code = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if pid == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert (pid, code) == (child, 0)
    assert client.exists("/a") is False, "the parent's client is unharmed"
