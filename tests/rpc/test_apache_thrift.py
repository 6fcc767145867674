"""Every method of Nimbus against Apache Thrift's own library, as client and as server.

What is said over the wire comes from a table that is not our IDL (`support.nimbus_ids`).
"""

import pytest
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TTransportException

from stormkeeper.conf.address import Address
from stormkeeper.rpc.leader_client import LeaderClient
from stormkeeper.rpc.service_client import Calls, ServiceClient
from stormkeeper.thrift.idl import schema_of
from stormkeeper.thrift.nimbus import Nimbus
from support import nimbus_ids
from support.apache_thrift import ApacheClient, DeclaredError, apache_nimbus
from support.nimbus_values import Samples, cls_of, in_order, ours
from support.rpc import served
from support.waiting import DEADLINE_SECS, until

METHODS = pytest.mark.parametrize("name", nimbus_ids.METHODS)
FULL = pytest.mark.parametrize("full", [True, False], ids=["full", "least"])


class Recorder:
    """A handler that notes each call and returns, or raises, what it was told to."""

    def __init__(self):
        self.calls = []
        self.answer = None

    def __getattr__(self, name):
        if name not in nimbus_ids.METHODS:
            raise AttributeError(name)

        def method(*arguments):
            self.calls.append((name, arguments))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return method


@pytest.fixture(scope="module")
def nimbus():
    """Yield a server's handler and Apache's client of it; both serve the whole file."""
    handler = Recorder()
    with served(handler, service=Nimbus) as (_, (_, port)), ApacheClient(port) as client:
        yield handler, client


@pytest.fixture
def handler(nimbus):
    handler, _ = nimbus
    handler.calls.clear()
    handler.answer = None
    return handler


@pytest.fixture
def client(nimbus):
    return nimbus[1]


def arguments_of(method, samples):
    return {field.name: samples.of(field.type) for field in method.arguments}


def as_ours(name, arguments):
    """What the handler gets; Apache's client does not know the arguments that are ours alone."""
    storms = [ours(f.type, arguments[f.name]) for f in nimbus_ids.METHODS[name].arguments]
    return storms + [None] * (len(schema_of(Nimbus.methods[name].arguments).fields) - len(storms))


@METHODS
@FULL
def test_apaches_client_calls_the_handler(handler, client, name, full):
    method, samples = nimbus_ids.METHODS[name], Samples(full=full)
    arguments = arguments_of(method, samples)
    returned = None
    if method.returns != "void":
        returned = samples.of(method.returns)
        handler.answer = ours(method.returns, returned)
    answer = client.call(name, arguments)
    assert in_order(method.returns, answer) == in_order(method.returns, returned)
    [(called, given)] = handler.calls
    assert (called, list(given)) == (name, as_ours(name, arguments))


@METHODS
def test_declared_exception_reaches_apaches_client(handler, client, name):
    method = nimbus_ids.METHODS[name]
    arguments = arguments_of(method, Samples(full=False))
    for declared in method.throws.values():
        handler.answer = cls_of(declared)("no ü")
        with pytest.raises(DeclaredError) as error:
            client.call(name, arguments)
        assert error.value.args == (declared, {"msg": "no ü"})
    handler.answer = ValueError("SECRET")
    with pytest.raises(TApplicationException) as fault:
        client.call(name, arguments)
    assert fault.value.type == TApplicationException.INTERNAL_ERROR
    assert fault.value.message == f"Internal error processing {name}"


@METHODS
def test_missing_result_reaches_apaches_client(handler, client, name):
    arguments = arguments_of(nimbus_ids.METHODS[name], Samples(full=False))
    if nimbus_ids.METHODS[name].returns == "void":
        assert client.call(name, arguments) is None
        return
    with pytest.raises(TApplicationException) as fault:
        client.call(name, arguments)
    assert fault.value.type == TApplicationException.MISSING_RESULT
    assert len(handler.calls) == 1


def test_an_undeclared_exception_of_the_idl_is_an_internal_error(handler, client):
    handler.answer = cls_of("KeyNotFoundException")("k")
    with pytest.raises(TApplicationException, match="Internal error processing killTopology"):
        client.call("killTopology", {"name": "wc"})


@METHODS
def test_a_call_needs_all_required_arguments(handler, client, name):
    method, samples = nimbus_ids.METHODS[name], Samples(full=False)
    if method.returns != "void":
        handler.answer = ours(method.returns, samples.of(method.returns))
    fields = schema_of(Nimbus.methods[name].arguments).fields
    for place, field in enumerate(fields):
        arguments = arguments_of(method, samples)
        arguments.pop(field.name, None)
        handler.calls.clear()
        if not field.required:
            client.call(name, arguments)
            [(_, given)] = handler.calls
            assert given[place] is None
            continue
        with pytest.raises(TApplicationException, match=f"required field .* {field.name}") as fault:
            client.call(name, arguments)
        assert fault.value.type == TApplicationException.PROTOCOL_ERROR
        assert not handler.calls


def test_unknown_method_is_answered_as_such(handler, client, monkeypatch):
    method = nimbus_ids.METHODS["activate"]
    monkeypatch.setitem(nimbus_ids.METHODS, "beginTheEnd", method)
    with pytest.raises(TApplicationException) as fault:
        client.call("beginTheEnd", {"name": "wc"})
    assert fault.value.type == TApplicationException.UNKNOWN_METHOD
    assert client.call("activate", {"name": "wc"}) is None
    assert len(handler.calls) == 1


def test_the_old_form_of_a_message_is_understood(handler):
    handler.answer = True
    with (
        served(handler, service=Nimbus) as (_, (_, port)),
        ApacheClient(port, strict=False) as client,
    ):
        assert client.call("isTopologyNameAllowed", {"name": "wc"}) is True


def test_one_way_call_of_an_answered_method_ends_connection(handler, caplog):
    with served(handler, service=Nimbus) as (_, (_, port)), ApacheClient(port) as client:
        with pytest.raises((TTransportException, EOFError, OSError)):
            client.call("activate", {"name": "wc"}, kind=TMessageType.ONEWAY)
        until(lambda: "activate called one-way, but it has an answer" in caplog.text)
    assert not handler.calls


@METHODS
@FULL
def test_our_client_calls_apaches_server(apache, name, full):
    answers, client = apache
    method, samples = nimbus_ids.METHODS[name], Samples(full=full)
    arguments = arguments_of(method, samples)
    returned = None if method.returns == "void" else samples.of(method.returns)
    answers.next = {} if returned is None else {"success": returned}
    answer = getattr(Calls(Nimbus, client.call), name)(*as_ours(name, arguments))
    assert answer == (None if returned is None else ours(method.returns, returned))
    called, given = answers.calls.pop()
    assert called == name
    for field in method.arguments:
        expected = in_order(field.type, arguments[field.name])
        assert in_order(field.type, given[field.name]) == expected


@METHODS
def test_declared_exception_of_apaches_server_is_raised(apache, name):
    answers, client = apache
    method = nimbus_ids.METHODS[name]
    arguments = as_ours(name, arguments_of(method, Samples(full=False)))
    for declared in method.throws.values():
        answers.next = {declared: {"msg": "no ü"}}
        with pytest.raises(cls_of(declared), match="no ü"):
            client.call(name, *arguments)


def test_the_leader_is_found_among_apaches_servers():
    def summary(port):
        leader = {"host": "127.0.0.1", "port": port, "uptime_secs": 1, "isLeader": True}
        return {"success": {**leader, "version": "2.8.0"}}

    calls = []
    leading = {}

    def answer(name, arguments):
        calls.append((name, arguments))
        return summary(leading["port"]) if name == "getLeader" else {}

    with apache_nimbus(answer) as first, apache_nimbus(answer) as second:
        leading["port"] = second
        with LeaderClient(
            [f"127.0.0.1:{first}"], 6627, max_frame=1 << 20, timeout=DEADLINE_SECS
        ) as client:
            client.nimbus.activate("wc")
            assert client.address == Address("127.0.0.1", second)
    assert calls == [("getLeader", {}), ("activate", {"name": "wc"})]


class Answers:
    def __init__(self):
        self.calls = []
        self.next = {}

    def __call__(self, name, arguments):
        self.calls.append((name, arguments))
        return self.next


@pytest.fixture(scope="module")
def apache():
    """Yield what Apache's server answers, and our client of it."""
    answers = Answers()
    with (
        apache_nimbus(answers) as port,
        ServiceClient(
            Nimbus, Address("127.0.0.1", port), max_frame=1 << 24, timeout=DEADLINE_SECS
        ) as client,
    ):
        yield answers, client
