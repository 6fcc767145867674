"""A peer that is not ours: Apache Thrift's own Python library, driven by ``nimbus_ids``.

Its compiler would generate code from an IDL; here the table says what to write and what to read.
Values are plain: a struct is a dict of its fields, a map a list of pairs, a set a list, an enum its
number.
"""

import threading
from contextlib import contextmanager

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TSocket import TServerSocket, TSocket
from thrift.transport.TTransport import TFramedTransport, TTransportException

from support import nimbus_ids
from support.waiting import DEADLINE_SECS

_SCALARS = {
    "bool": (TType.BOOL, "Bool"),
    "i32": (TType.I32, "I32"),
    "i64": (TType.I64, "I64"),
    "double": (TType.DOUBLE, "Double"),
    "string": (TType.STRING, "String"),
    "binary": (TType.STRING, "Binary"),
}
_CONTAINERS = {"list": TType.LIST, "set": TType.SET, "map": TType.MAP}


class DeclaredError(Exception):
    """An exception of the IDL: its name and its fields."""


def _wire(of):
    if isinstance(of, tuple):
        return _CONTAINERS[of[0]]
    if of in nimbus_ids.ENUMS:
        return TType.I32
    return _SCALARS[of][0] if of in _SCALARS else TType.STRUCT


def write(protocol, of, value):
    """Write a value of a type."""
    if of in nimbus_ids.ENUMS:
        protocol.writeI32(value)
    elif of in _SCALARS:
        getattr(protocol, f"write{_SCALARS[of][1]}")(value)
    elif isinstance(of, str):
        write_struct(protocol, nimbus_ids.STRUCTS[of].fields, value)
    elif of[0] == "map":
        protocol.writeMapBegin(_wire(of[1]), _wire(of[2]), len(value))
        for key, item in value:
            write(protocol, of[1], key)
            write(protocol, of[2], item)
        protocol.writeMapEnd()
    else:
        kind = of[0].capitalize()
        getattr(protocol, f"write{kind}Begin")(_wire(of[1]), len(value))
        for item in value:
            write(protocol, of[1], item)
        getattr(protocol, f"write{kind}End")()


def write_struct(protocol, fields, values):
    """Write the fields of a struct that have values."""
    protocol.writeStructBegin("")
    for field in fields:
        if field.name in values:
            protocol.writeFieldBegin(field.name, _wire(field.type), field.id)
            write(protocol, field.type, values[field.name])
            protocol.writeFieldEnd()
    protocol.writeFieldStop()
    protocol.writeStructEnd()


def read(protocol, of):
    """Read a value of a type."""
    if of in nimbus_ids.ENUMS:
        return protocol.readI32()
    if of in _SCALARS:
        return getattr(protocol, f"read{_SCALARS[of][1]}")()
    if isinstance(of, str):
        return read_struct(protocol, nimbus_ids.STRUCTS[of].fields)
    kind = of[0].capitalize()
    *found, size = getattr(protocol, f"read{kind}Begin")()
    assert not size or found == [_wire(part) for part in of[1:]]
    if kind == "Map":
        value = [(read(protocol, of[1]), read(protocol, of[2])) for _ in range(size)]
    else:
        value = [read(protocol, of[1]) for _ in range(size)]
    getattr(protocol, f"read{kind}End")()
    return value


def read_struct(protocol, fields):
    """Read a struct: the fields that it has; any of Storm's that the table lacks is an error.

    Those of ours, from 1000 up, are skipped, as Storm's readers skip them.
    """
    known = {field.id: field for field in fields}
    values = {}
    protocol.readStructBegin()
    while True:
        _, kind, number = protocol.readFieldBegin()
        if kind == TType.STOP:
            break
        if number >= 1000:
            protocol.skip(kind)
            continue
        field = known[number]
        assert kind == _wire(field.type)
        values[field.name] = read(protocol, field.type)
        protocol.readFieldEnd()
    protocol.readStructEnd()
    return values


def _answer_fields(method):
    returns = () if method.returns == "void" else (("success", 0, method.returns),)
    throws = tuple((name, number, name) for number, name in method.throws.items())
    return [nimbus_ids.Field(number, name, "", of) for name, number, of in (*returns, *throws)]


class ApacheClient:
    """Calls a Nimbus as code that Apache's compiler generated does."""

    def __init__(self, port, *, strict=True):
        self._socket = TSocket("127.0.0.1", port)
        self._socket.setTimeout(int(DEADLINE_SECS * 1000))
        self.protocol = TBinaryProtocol(
            TFramedTransport(self._socket), strictRead=False, strictWrite=strict
        )
        self._socket.open()
        self._calls = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def call(self, name, arguments, kind=TMessageType.CALL):
        """Return what a method returns, or raise what it is answered instead."""
        protocol, method = self.protocol, nimbus_ids.METHODS[name]
        self._calls += 1
        protocol.writeMessageBegin(name, kind, self._calls)
        write_struct(protocol, method.arguments, arguments)
        protocol.writeMessageEnd()
        protocol.trans.flush()
        answered, kind, number = protocol.readMessageBegin()
        assert (answered, number) == (name, self._calls)
        if kind == TMessageType.EXCEPTION:
            fault = TApplicationException()
            fault.read(protocol)
            protocol.readMessageEnd()
            raise fault
        assert kind == TMessageType.REPLY
        answer = read_struct(protocol, _answer_fields(method))
        protocol.readMessageEnd()
        for what, value in answer.items():
            if what == "success":
                return value
            raise DeclaredError(what, value)
        if method.returns != "void":
            raise TApplicationException(
                TApplicationException.MISSING_RESULT, f"{name} failed: unknown result"
            )
        return None


@contextmanager
def apache_nimbus(answer):
    """Yield the port of a Nimbus on Apache's library, for one client after the other.

    `answer` is called with a method's name and its arguments, and returns what is answered: a dict
    of what is in the answer, such as ``{"success": 1}``.
    """
    listener = TServerSocket("127.0.0.1", 0)
    listener.listen()
    port = listener.handle.getsockname()[1]
    has_ended = threading.Event()

    def serve():
        while not has_ended.is_set():
            accepted = listener.accept()
            protocol = TBinaryProtocol(TFramedTransport(accepted))
            try:
                while not has_ended.is_set():
                    name, _, number = protocol.readMessageBegin()
                    method = nimbus_ids.METHODS[name]
                    arguments = read_struct(protocol, method.arguments)
                    protocol.readMessageEnd()
                    protocol.writeMessageBegin(name, TMessageType.REPLY, number)
                    write_struct(protocol, _answer_fields(method), answer(name, arguments))
                    protocol.writeMessageEnd()
                    protocol.trans.flush()
            except TTransportException:
                pass  # the client has left
            finally:
                accepted.close()

    thread = threading.Thread(target=serve, name="apache-nimbus", daemon=True)
    thread.start()
    try:
        yield port
    finally:
        has_ended.set()
        last = TSocket("127.0.0.1", port)  # for which it waits
        last.open()
        last.close()
        thread.join(DEADLINE_SECS)
        listener.close()
