"""The client: what each end of a call is to its caller."""

import socket
import threading

import pytest

from stormkeeper.conf.address import Address
from stormkeeper.errors import (
    CallRefusedError,
    LocalProtocolError,
    RemoteProtocolError,
    RpcOutcomeUnknownError,
    RpcRefusedError,
    RpcUnavailableError,
    SerializationError,
)
from stormkeeper.rpc.message_frames import FaultKind, Kind, fault_frame, frame
from stormkeeper.rpc.service_client import Calls, ServiceClient
from support.rpc import Handler, answer_of, example, received, scripted, served, text_body
from support.waiting import DEADLINE_SECS, until

ANSWER = b"\x0b\0\0" + text_body("a")[3:]


@pytest.fixture
def handler():
    return Handler()


@pytest.fixture
def pair(handler):
    with served(handler) as (server, place), client_of(place) as client:
        yield server, client


def client_of(place, *, max_frame=1 << 20, timeout=DEADLINE_SECS):
    return ServiceClient(example.Example, Address(*place), max_frame=max_frame, timeout=timeout)


def take_call(connected):
    """Read one call and return its number."""
    return answer_of(connected)[2]


def test_a_call_returns_its_value(pair):
    server, client = pair
    assert client.call("echo", "ü") == "ü"
    assert client.call("blob", 100_000) == b"x" * 100_000
    assert client.call("nothing") is None
    assert server.counts.accepted == 1


def test_methods_are_called_as_methods(pair):
    calls = Calls(example.Example, pair[1].call)
    assert calls.echo("a") == "a"
    with pytest.raises(AttributeError, match="Example has no method drop"):
        _ = calls.drop


def test_one_way_call_returns_at_once(pair, handler):
    assert pair[1].call("tell", "a") is None
    assert pair[1].call("echo", "b") == "b"
    until(lambda: handler.told == ["a"])


def test_a_declared_exception_is_raised(pair):
    with pytest.raises(example.Missing, match="wc is not alive"):
        pair[1].call("fails", "declared")
    assert pair[1].call("echo", "a") == "a"


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "words"),
    [
        ("fails", ["ours"], FaultKind.INTERNAL_ERROR, "error processing fails; its log says why"),
        ("held", ["a"], FaultKind.MISSING_RESULT, "answered without a result"),
    ],
)
def test_a_refusal_says_which_and_where_to_look(pair, handler, name, arguments, kind, words):
    handler.let_go.set()
    with pytest.raises(RpcRefusedError, match=words) as refused:
        pair[1].call(name, *arguments)
    assert refused.value.kind == kind
    assert pair[1].call("echo", "a") == "a"


def test_refusal_with_a_reason_does_not_name_the_log(pair, handler):
    def refuse(_):
        raise CallRefusedError("not a leader")

    handler.echo = refuse
    with pytest.raises(RpcRefusedError, match=r": echo: not a leader$"):
        pair[1].call("echo", "a")


def test_an_argument_that_does_not_fit_is_not_sent(pair):
    server, client = pair
    with pytest.raises(SerializationError, match="must be a str"):
        client.call("echo", 5)
    with pytest.raises(SerializationError, match="is required"):
        client.call("echo")
    assert server.counts.accepted == 0


def test_more_than_a_message_holds_is_not_sent(handler):
    with served(handler) as (server, place), client_of(place, max_frame=100) as client:
        with pytest.raises(LocalProtocolError, match=r"nimbus\.thrift\.max_buffer_size"):
            client.call("echo", "a" * 100)
        assert server.counts.accepted == 0


def test_an_answer_longer_than_a_message_may_be_names_the_key(handler):
    with served(handler) as (_, place), client_of(place, max_frame=100) as client:
        with pytest.raises(RemoteProtocolError, match=r"nimbus\.thrift\.max_buffer_size"):
            client.call("blob", 1_000)
        assert client.call("echo", "a") == "a"


def test_unreachable_server_is_described():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
    with (
        client_of(place) as client,
        pytest.raises(RpcUnavailableError, match="nothing listens there") as error,
    ):
        client.call("echo", "a")
    assert not isinstance(error.value, RpcOutcomeUnknownError)
    assert f"127.0.0.1:{place[1]}" in str(error.value)


def test_a_name_that_is_none_is_said_in_words():
    client = ServiceClient(example.Example, Address("a..b", 1), max_frame=1, timeout=DEADLINE_SECS)
    with pytest.raises(
        RpcUnavailableError, match=r"a\.\.b:1: .* could not be looked up: no host name"
    ):
        client.connect(DEADLINE_SECS)


def test_a_call_without_an_answer_may_have_been_carried_out(pair, handler):
    pair[1].connect(DEADLINE_SECS)
    with pytest.raises(RpcOutcomeUnknownError, match=r"no answer in time.*look before you try"):
        pair[1].call("held", "a", timeout=0.5)
    until(lambda: handler.holding == ["a"])
    handler.let_go.set()
    # The answer that comes after all is no other call's.
    assert pair[1].call("echo", "b") == "b"


def test_a_server_that_takes_nothing_is_not_waited_for():
    """One that accepts, and reads nothing: the call is larger than what the system takes for it."""
    done = threading.Event()
    with scripted(lambda _: done.wait(DEADLINE_SECS)) as place:
        client = client_of(place, max_frame=1 << 26)
        with pytest.raises(RpcUnavailableError) as error:
            client.call("echo", "a" * (1 << 25), timeout=0.3)
        assert not isinstance(error.value, RpcOutcomeUnknownError)
        done.set()


def test_end_within_a_call_leaves_the_outcome_unknown():
    with (
        scripted(take_call) as place,
        client_of(place) as client,
        pytest.raises(RpcOutcomeUnknownError, match="the server c"),
    ):
        client.call("echo", "a")


def test_an_idle_connection_ended_by_the_server_is_replaced(pair):
    server, client = pair
    assert client.call("echo", "a") == "a"
    for channel in list(server._channels):
        server.loop.call_soon_threadsafe(channel.abort, "test")
    until(lambda: not server.open)
    assert client.call("echo", "b") == "b"
    assert server.counts.accepted == 2


def test_an_answer_in_pieces_is_read():
    def trickle(connected):
        for byte in frame(Kind.REPLY, "echo", take_call(connected), ANSWER):
            connected.sendall(bytes([byte]))

    with scripted(trickle) as place, client_of(place) as client:
        assert client.call("echo", "a") == "a"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda n: frame(Kind.REPLY, "echo", n + 1, ANSWER), "instead of call 1, echo"),
        (lambda n: frame(Kind.REPLY, "blob", n, ANSWER), "the answer to call 1, blob"),
        (lambda n: frame(Kind.CALL, "echo", n, ANSWER), "type CALL instead of an answer"),
        (lambda n: frame(Kind.REPLY, "echo", n, ANSWER) * 2, "more than one answer"),
        (lambda n: frame(Kind.REPLY, "echo", n, ANSWER) + b"\0", "more than one answer"),
        (lambda n: frame(Kind.REPLY, "echo", n, ANSWER) + b"\xff" * 4, "more than one answer"),
        (lambda n: frame(Kind.REPLY, "echo", n, b"\x0b\0"), "ends in the middle"),
        (lambda n: frame(Kind.EXCEPTION, "echo", n, b"\x0b\0"), "ends in the middle"),
        (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (lambda _: b"\0\0\0\x02ab", "within its head"),
        (lambda _: b"\xff\xff\xff\xff", r"nimbus\.thrift\.max_buffer_size"),
    ],
)
def test_bad_answer_is_a_protocol_error(answer, words):
    def play(connected):
        connected.sendall(answer(take_call(connected)))
        received(connected, 1)

    with (
        scripted(play) as place,
        client_of(place) as client,
        pytest.raises(RemoteProtocolError, match=words),
    ):
        client.call("echo", "a")


def test_a_fault_of_a_kind_of_its_own_is_a_refusal():
    def play(connected):
        connected.sendall(fault_frame("echo", take_call(connected), FaultKind.UNKNOWN, ""))

    with scripted(play) as place, client_of(place) as client:
        with pytest.raises(RpcRefusedError, match="echo: no reason given") as refused:
            client.call("echo", "a")
        assert refused.value.kind == 0


def test_threads_take_turns(pair):
    server, client = pair
    answers = {}

    def ask(number):
        answers[number] = [client.call("echo", f"{number}-{n}") for n in range(20)]

    threads = [threading.Thread(target=ask, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECS)
    assert answers == {number: [f"{number}-{n}" for n in range(20)] for number in range(8)}
    assert server.counts.accepted == 1


def test_waiting_call_has_a_deadline(pair, handler):
    client = pair[1]
    first = threading.Thread(target=client.call, args=["nothing"])
    handler.nothing = lambda: handler.held("a")
    first.start()
    until(lambda: handler.holding)
    with pytest.raises(RpcUnavailableError, match="an earlier call is still in progress"):
        client.call("echo", "a", timeout=0.1)
    handler.let_go.set()
    first.join(DEADLINE_SECS)
    assert client.call("echo", "a") == "a"


def test_closing_ends_the_call_under_way(pair, handler):
    client, ends = pair[1], []

    def ask():
        try:
            client.call("held", "a")
        except RpcOutcomeUnknownError as error:
            ends.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: handler.holding)
    client.close()
    asking.join(DEADLINE_SECS)
    assert len(ends) == 1
    with pytest.raises(RpcUnavailableError, match="this client was closed"):
        client.call("echo", "a")


def test_retiring_lets_the_call_under_way_end(pair, handler):
    server, client = pair
    ends = []
    asking = threading.Thread(target=lambda: ends.append(client.call("nothing")))
    handler.nothing = lambda: handler.held("a")
    asking.start()
    until(lambda: handler.holding)
    client.retire()
    handler.let_go.set()
    asking.join(DEADLINE_SECS)
    assert ends == [None]
    until(lambda: not server.open)
