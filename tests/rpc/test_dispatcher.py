"""What a client is told of what a handler does."""

import logging
import threading

import pytest

from stormkeeper.errors import CallerError, CallRefusedError, StateUnavailableError
from stormkeeper.rpc import dispatcher as dispatchers
from stormkeeper.rpc.dispatcher import Dispatcher
from stormkeeper.rpc.message_frames import (
    NO_ZOOKEEPER,
    Kind,
    ThriftMessage,
    read_fault,
    read_message,
)
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.writer import encode
from support.rpc import Handler, example, number_body, text_body
from support.waiting import DEADLINE_SECS, until

SOMEBODY = "10.0.0.1:5"
METHODS = example.Example.methods


@pytest.fixture
def handler():
    return Handler()


@pytest.fixture
def dispatcher(handler):
    return Dispatcher(example.Example, handler)


def told(dispatcher, name, body=b"\0", kind=Kind.CALL):
    """The answer as a record, or the fault."""
    answer = dispatcher.carry_out(ThriftMessage(kind, name, 9, body), SOMEBODY)
    if answer is None:
        return None
    message = read_message(answer[4:])
    assert (message.name, message.sequence) == (name, 9)
    if message.kind is Kind.EXCEPTION:
        return read_fault(message.body)
    assert message.kind is Kind.REPLY
    return decode(METHODS[name].answer, message.body)


def test_a_value_is_answered(dispatcher):
    assert told(dispatcher, "echo", text_body("a")).success == "a"
    assert told(dispatcher, "blob", number_body(3)).success == b"xxx"
    assert dispatcher.calls == {("echo", "answered"): 1, ("blob", "answered"): 1}
    assert dispatcher.seconds["echo"] >= 0


def test_method_without_result_has_an_empty_answer(dispatcher, handler):
    assert encode(told(dispatcher, "nothing")) == b"\0"
    assert handler.told == ["nothing"]


def test_none_for_a_result_is_an_empty_answer(dispatcher, handler):
    handler.let_go.set()
    assert encode(told(dispatcher, "held")) == b"\0"


def test_a_declared_exception_is_answered(dispatcher):
    answer = told(dispatcher, "fails", text_body("declared"))
    assert answer.missing == example.Missing("wc is not alive")
    assert dispatcher.calls == {("fails", "declared"): 1}


@pytest.mark.parametrize("how", ["undeclared", "ours", "unfit", "no such key"])
def test_other_exceptions_are_internal_errors(dispatcher, how, caplog):
    assert told(dispatcher, "fails", text_body(how)) == (6, "Internal error processing fails")
    assert dispatcher.calls == {("fails", "failed"): 1}
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.exc_info
    assert SOMEBODY in line.getMessage()


def test_own_error_is_one_log_line(dispatcher, handler, caplog):
    def unreachable(_):
        raise StateUnavailableError("no ZooKeeper")

    handler.echo = unreachable
    told(dispatcher, "echo", text_body("a"))
    [line] = caplog.records
    assert (line.levelno, line.exc_info) == (logging.WARNING, None)
    assert line.getMessage() == "echo of 10.0.0.1:5 failed: no ZooKeeper"


def test_caller_gets_the_reason_of_a_refusal(dispatcher, handler):
    def refuse(_):
        raise CallRefusedError("not a leader")

    handler.echo = refuse
    text = "Internal error processing echo: not a leader"
    assert told(dispatcher, "echo", text_body("a")) == (6, text)
    assert dispatcher.calls == {("echo", "failed"): 1}


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (CallerError("there is no a"), (0, "there is no a")),
        (
            StateUnavailableError("start one"),
            (6, f"Internal error processing echo: {NO_ZOOKEEPER}: start one"),
        ),
    ],
)
def test_a_mistake_of_the_callers_is_no_internal_error(dispatcher, handler, error, answer):
    def refuse(_):
        raise error

    handler.echo = refuse
    assert told(dispatcher, "echo", text_body("a")) == answer


def test_frequent_failures_do_not_fill_the_log(dispatcher, caplog):
    for _ in range(100):
        told(dispatcher, "fails", text_body("ours"))
    assert len(caplog.records) <= 10
    assert dispatcher.calls["fails", "failed"] == 100


def test_a_value_of_another_type_is_an_internal_error(dispatcher, handler, caplog):
    handler.echo = lambda _: 5
    assert told(dispatcher, "echo", text_body("a")) == (6, "Internal error processing echo")
    assert "must be a str" in caplog.text


def test_unknown_method_is_answered_as_such(dispatcher):
    assert told(dispatcher, "drop") == (1, "Invalid method name: 'drop'")
    assert told(dispatcher, "__class__") == (1, "Invalid method name: '__class__'")
    assert told(dispatcher, "drop", kind=Kind.ONEWAY) is None
    assert dispatcher.calls == {("?", "unknown"): 3}


@pytest.mark.parametrize(
    "body", [b"", b"\0", b"\x0b\0\x01\0\0\0\x09a\0", b"\x08\0\x01\0\0\0\x01\0"]
)
def test_arguments_that_cannot_be_read_are_a_protocol_error(dispatcher, body):
    kind, text = told(dispatcher, "echo", body)
    assert kind == 7
    assert "echo_args" in text
    assert dispatcher.calls == {("echo", "malformed"): 1}


def test_one_way_call_is_carried_out(dispatcher, handler):
    assert told(dispatcher, "tell", text_body("a"), Kind.ONEWAY) is None
    assert told(dispatcher, "tell", b"", Kind.ONEWAY) is None
    assert told(dispatcher, "tell", text_body("b")) is None
    assert handler.told == ["a", "b"]


def test_an_absent_argument_is_none(dispatcher, handler):
    told(dispatcher, "tell", b"\0", Kind.ONEWAY)
    assert handler.told == [None]


def test_a_handler_without_a_method_is_refused_at_once():
    class Half:
        def echo(self, text):
            return text

    with pytest.raises(TypeError, match="Half has no blob, nothing, fails, held, tell"):
        Dispatcher(example.Example, Half())


def test_long_messages_are_read_one_at_a_time(dispatcher, monkeypatch):
    reading, may_go_on = [], threading.Event()

    def watched(cls, data):
        reading.append(len(data))
        assert len(data) < 1_000 or may_go_on.wait(DEADLINE_SECS)
        return decode(cls, data)

    monkeypatch.setattr(dispatchers, "decode", watched)
    monkeypatch.setattr(dispatchers, "_LONG", 1_000)
    long = text_body("a" * 2_000)
    threads = [threading.Thread(target=told, args=[dispatcher, "echo", long]) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: reading)
    assert told(dispatcher, "echo", text_body("b")).success == "b"
    assert sorted(reading) == [len(text_body("b")), len(long)]
    may_go_on.set()
    for thread in threads:
        thread.join(DEADLINE_SECS)
    assert dispatcher.calls == {("echo", "answered"): 4}
