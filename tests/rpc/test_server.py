"""The server over real sockets: what clients get, and what slow or hostile ones cost the others."""

import random
import socket
from struct import pack

import pytest

from stormkeeper.rpc import server as rpc_server
from support.leaks import nothing_left_behind
from support.rpc import (
    Handler,
    answer_of,
    call_bytes,
    dial,
    is_ended,
    number_body,
    received,
    served,
    text_body,
)
from support.waiting import DEADLINE_SECS, until

REPLY, EXCEPTION = 2, 3


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Look at the time limits more often than once a second."""
    monkeypatch.setattr(rpc_server, "_TICK", 0.02)
    monkeypatch.setattr(rpc_server, "_LINGER", 0.2)


@pytest.fixture
def handler():
    return Handler()


def echoes(connected, text="still here"):
    """Whether a call is answered as it should be."""
    connected.sendall(call_bytes("echo", text_body(text), sequence=7))
    return answer_of(connected) == (REPLY, "echo", 7, b"\x0b\0\0" + text_body(text)[3:])


def test_a_call_is_answered(handler):
    with served(handler) as (server, place), dial(place) as client:
        assert echoes(client)
        assert echoes(client, "ü")
        client.sendall(call_bytes("nothing"))
        assert answer_of(client) == (REPLY, "nothing", 1, b"\0")
        assert (server.counts.accepted, server.open) == (1, 1)
        assert server.dispatcher.calls == {("echo", "answered"): 2, ("nothing", "answered"): 1}
        assert (server.counts.bytes_in, server.counts.bytes_out) == (92, 92)
    assert server.counts.ended["drain"] + server.counts.ended["client"] == 1


def test_calls_that_come_together_are_answered_in_their_order(handler):
    with served(handler, threads=4) as (_, place), dial(place) as client:
        client.sendall(
            b"".join(call_bytes("echo", text_body(str(n)), sequence=n) for n in range(500))
        )
        assert [answer_of(client)[2] for _ in range(500)] == list(range(500))


def test_a_call_that_trickles_in_is_answered(handler):
    with served(handler) as (_, place), dial(place) as client:
        for byte in call_bytes("echo", text_body("a")):
            client.sendall(bytes([byte]))
        assert answer_of(client)[0] == REPLY


@pytest.mark.parametrize("names", [["held"], ["held", "echo"]])
def test_half_closed_client_gets_its_answers(handler, names):
    with served(handler) as (server, place), dial(place) as client:
        client.sendall(b"".join(call_bytes(name, text_body("a")) for name in names))
        client.shutdown(socket.SHUT_WR)
        until(lambda: handler.holding)
        handler.let_go.set()
        assert [answer_of(client)[1] for _ in names] == names
        assert is_ended(client)
        until(lambda: not server.open)
        assert server.counts.ended == {"client": 1}


def test_one_way_calls_of_a_client_that_left_are_carried_out(handler):
    with served(handler, threads=1) as (server, place), dial(place) as other:
        other.sendall(call_bytes("held", text_body("a")))
        until(lambda: handler.holding)
        for waiting, (name, kind) in enumerate([("tell", 4), ("nothing", 1)], 1):
            with dial(place) as client:
                client.sendall(call_bytes(name, text_body(name), kind=kind))
                until(lambda waiting=waiting: server.workers.waiting == waiting)
                # Otherwise it may have closed its own half alone.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            until(lambda: server.open == 1)
        handler.let_go.set()
        until(lambda: server.dispatcher.calls["nothing", "dropped"] == 1)
        assert handler.told == ["tell"]


def test_waiting_handler_does_not_delay_others(handler):
    with served(handler, threads=3) as (server, place):
        waiting = [dial(place) for _ in range(2)]
        for client in waiting:
            client.sendall(call_bytes("held", text_body("a")))
        until(lambda: len(handler.holding) == 2)
        with dial(place) as other:
            assert echoes(other)
        until(lambda: server.workers.busy == 2)
        handler.let_go.set()
        for client in waiting:
            assert answer_of(client) == (REPLY, "held", 1, b"\0")
            client.close()


def test_too_many_calls_are_refused_and_the_connection_goes_on(handler, caplog):
    with served(handler, threads=1, max_waiting=2) as (server, place):
        held = []
        for number in range(3):
            held.append(dial(place))
            held[-1].sendall(call_bytes("held", text_body(str(number))))
            until(lambda number=number: len(handler.holding) + server.workers.waiting == number + 1)
        with dial(place) as client:
            many = 3_000  # so many would make the server call itself too deep, did it do that
            client.sendall(call_bytes("echo", text_body("a")) * many)
            answers = [answer_of(client) for _ in range(many)]
            assert {answer[0] for answer in answers} == {EXCEPTION}
            assert b"2 calls waiting already; try again later" in answers[0][3]
            assert server.counts.refused == many
            handler.let_go.set()
            until(lambda: not server.workers.waiting and not server.workers.busy)
            assert echoes(client)
        assert "refused echo" in caplog.text
        assert len(caplog.records) < 20
        for client in held:
            client.close()


def test_connections_beyond_the_limit_replace_idle_ones(handler, caplog):
    with served(handler, max_connections_per_address=2) as (server, place):
        first, second = dial(place), dial(place)
        assert echoes(second)
        assert echoes(first)
        with dial(place) as third:
            assert echoes(third)
            assert is_ended(second), "it was idle longer than the first"
            assert echoes(first)
        assert server.counts.ended["crowded"] == 1
        assert server.counts.turned_away == {}
        assert "another one needs its place: it has 2 connections open" in caplog.text
        first.close()
        second.close()


def test_connections_are_turned_away_where_none_is_idle(handler, caplog):
    limits = {"max_connections": 3, "max_connections_per_address": 2}
    with served(handler, **limits) as (server, place):
        busy = [dial(place) for _ in range(2)]
        for client in busy:
            client.sendall(call_bytes("held", text_body("a")))
        until(lambda: len(handler.holding) == 2)
        with dial(place) as third:
            assert is_ended(third)
        assert server.counts.turned_away == {"address": 1}
        assert "turned away 127.0.0.1: it has 2 connections open" in caplog.text
        # Otherwise it may have closed its own half alone.
        busy[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        busy[0].close()
        until(lambda: server.open == 1)
        with dial(place) as again:
            assert echoes(again)
        handler.let_go.set()
        busy[1].close()


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\x7f\xff\xff\xff", "nimbus.thrift.max_buffer_size"),
        (b"\xff\xff\xff\xff", "nimbus.thrift.max_buffer_size"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\0\x01", "TLS"),
        (pack(">i", 0), "ends within its head"),
        (call_bytes("echo", kind=REPLY), "a message of type REPLY from a client"),
    ],
)
def test_bad_bytes_end_the_connection_after_earlier_answers(handler, caplog, sent, words):
    with served(handler) as (server, place), dial(place) as client, dial(place) as other:
        client.sendall(call_bytes("echo", text_body("a")) + sent)
        assert answer_of(client)[0] == REPLY
        assert is_ended(client)
        until(lambda: server.counts.ended["protocol"] == 1)
        assert words in caplog.text
        assert echoes(other)


def test_answer_is_complete_despite_bytes_after_the_call(handler, monkeypatch):
    monkeypatch.setattr(rpc_server, "_LINGER", DEADLINE_SECS)
    size = 200_000
    with served(handler) as (server, place), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(place)
        client.settimeout(DEADLINE_SECS)
        client.sendall(call_bytes("blob", number_body(size)) + b"\x7f\xff\xff\xff")
        until(lambda: server.counts.ended["protocol"] == 1)
        client.sendall(b"x" * 10_000)
        assert len(answer_of(client)[3]) > size


def test_arguments_that_cannot_be_read_end_nothing(handler):
    with served(handler) as (_, place), dial(place) as client:
        client.sendall(call_bytes("echo", b"\x0b\0\x01\x7f\xff\xff\xff"))
        kind, _, _, body = answer_of(client)
        assert (kind, body[-8:]) == (EXCEPTION, b"\x08\0\x02\0\0\0\x07\0")
        assert echoes(client)


def test_fuzzed_frames_end_nothing_but_their_own_connection(handler):
    chance = random.Random(20261123)
    whole = call_bytes("echo", text_body("x" * 30))
    with served(handler) as (server, place), dial(place) as other:
        for _ in range(300):
            data = bytearray(whole * chance.randint(1, 3))
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            with dial(place) as client:
                client.sendall(data[: chance.randint(1, len(data))])
                client.shutdown(socket.SHUT_WR)
                while answer_of(client) is not None:
                    pass
        assert echoes(other)
        until(lambda: server.open == 1)
        until(lambda: server.held == 0)


def test_a_half_sent_frame_has_a_time_limit(handler, caplog):
    with served(handler, frame_timeout=0.1) as (server, place), dial(place) as client:
        client.sendall(call_bytes("echo", text_body("a")))
        assert answer_of(client)[0] == REPLY
        client.sendall(call_bytes("echo", text_body("a"))[:-1])
        assert is_ended(client)
        assert server.counts.ended == {"frame-timeout": 1}
        assert "a message was not whole 0.1 s after it began" in caplog.text


def test_an_idle_connection_is_ended_in_silence(handler, caplog):
    with served(handler, idle_timeout=0.1) as (server, place), dial(place) as client:
        assert is_ended(client)
        assert server.counts.ended == {"idle": 1}
        assert not caplog.records


def test_a_handler_that_takes_too_long_ends_the_connection(handler, caplog):
    limits = {"answer_timeout": 0.1, "threads": 1}
    with served(handler, **limits) as (server, place), dial(place) as client:
        client.sendall(call_bytes("held", text_body("a")))
        until(lambda: handler.holding)
        with dial(place) as second:
            second.sendall(call_bytes("echo", text_body("a")))
            assert is_ended(client)
            assert is_ended(second)
        assert server.counts.ended == {"answer-timeout": 2}
        assert "held was not answered within 0.1 s" in caplog.text
        handler.let_go.set()
        # The second call had not begun, and its client is gone.
        until(lambda: server.dispatcher.calls["echo", "dropped"] == 1)


def test_client_that_does_not_read_ends_and_delays_none(handler, caplog):
    limits = {"unread_timeout": 0.1, "max_frame": 1 << 20}
    with served(handler, **limits) as (server, place), dial(place) as other:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(place)
        with slow:
            for _ in range(8):
                slow.sendall(call_bytes("blob", number_body(16 << 20)))
            until(lambda: server.counts.ended["unread-timeout"] == 1)
            assert echoes(other)
        # It had one answer at most, whatever else it asked for.
        assert server.counts.bytes_out < 18 << 20
        assert "nothing of its answer was read for 0.1 s" in caplog.text
        until(lambda: server.held == 0)


def test_slow_reader_is_waited_for(handler):
    with served(handler, unread_timeout=30.0) as (_, place), dial(place) as client:
        client.sendall(call_bytes("blob", number_body(8 << 20)))
        size = len(received(client, 8 << 20))
        assert size == 8 << 20
        received(client, 4 + 4 + 4 + 4 + 4 + 3 + 4 + 1)
        assert echoes(client)


def test_too_long_answer_is_logged(handler, caplog):
    with served(handler, max_frame=1_000) as (_, place), dial(place) as client:
        client.sendall(call_bytes("blob", number_body(2_000)))
        assert answer_of(client)[0] == REPLY
        until(lambda: caplog.records)
        assert "the answer of blob to 127.0.0.1" in caplog.text
        assert "nimbus.thrift.max_buffer_size" in caplog.text


def test_all_connections_together_hold_so_much(handler, caplog):
    limits = {"max_held": 300_000, "max_frame": 1 << 20}
    with served(handler, **limits) as (server, place), dial(place) as small:
        small.sendall(call_bytes("echo", text_body("a" * 1_000))[:-1])
        clients = [dial(place) for _ in range(4)]
        for client in clients:
            client.sendall(pack(">i", 1 << 20) + b"x" * 100_000)
        until(lambda: server.counts.ended["memory"] >= 1)
        until(lambda: server.held <= 300_000)
        assert "all connections together hold as much as they may" in caplog.text
        small.sendall(b"\0")
        assert answer_of(small)[0] == REPLY
        for client in clients:
            client.close()


def test_client_with_unanswered_calls_is_not_read_from(handler):
    with served(handler, max_frame=100_000) as (server, place), dial(place) as client:
        client.sendall(call_bytes("held", text_body("a")))
        until(lambda: handler.holding)
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.sendall(call_bytes("echo", text_body("a" * 90_000)) * 1_000)
        assert server.held <= 100_000 + 2 * rpc_server.READ_BYTES


def test_stopping_server_answers_received_calls(handler):
    with served(handler, drain=60.0) as (server, place):
        idle, busy, half = dial(place), dial(place), dial(place)
        assert echoes(idle)
        assert echoes(half)
        half.sendall(b"\0\0")
        busy.sendall(call_bytes("held", text_body("a")) + call_bytes("echo", text_body("b")))
        until(lambda: handler.holding)
    # (The handler is let go when the server is told to stop.)
    assert is_ended(idle)
    assert [answer_of(busy)[1] for _ in range(2)] == ["held", "echo"]
    assert is_ended(busy)
    assert is_ended(half)
    with pytest.raises(ConnectionRefusedError):
        dial(place)
    assert server.open == 0
    for client in (idle, busy, half):
        client.close()


def test_a_server_leaves_nothing_behind(handler):
    with nothing_left_behind():
        with served(handler, drain=0.0) as (server, place), dial(place) as client:
            clients = [dial(place) for _ in range(20)]
            assert echoes(client)
            clients[0].sendall(call_bytes("held", text_body("a")))
            clients[1].sendall(call_bytes("echo")[:-1])
            clients[2].sendall(b"\xff" * 100)
            until(lambda: handler.holding and server.counts.ended["protocol"])
        for other in clients:
            other.close()


def test_a_server_that_stops_does_not_wait_for_ever(handler, caplog):
    listening = served(handler, drain=0.2)
    server, place = listening.__enter__()
    with dial(place) as client:
        client.sendall(call_bytes("held", text_body("a")))
        until(lambda: handler.holding)
        assert server.stop(0.2) == 1
        assert is_ended(client)
        assert "held of 127.0.0.1" in caplog.text
        assert "was not finished" in caplog.text
        assert server.stop(0.2) == 0
    handler.let_go.set()
    listening.__exit__(None, None, None)
