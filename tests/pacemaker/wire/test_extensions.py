import contextlib

import pytest
import thriftpy2.protocol.binary as binary
from hypothesis import given
from hypothesis import strategies as st
from thriftpy2.transport import TMemoryBuffer

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire.decoder import read_extensions
from stormkeeper.thrift.pacemaker import ServerInfo


def written(names):
    info = ServerInfo(
        instance="8a6f",
        uptime_ms=1,
        horizon_ms=2,
        extensions=names,
        version="0.1.0",
        revision=3,
        keys=4,
        pulses_received=5,
        connections=6,
    )
    buffer = TMemoryBuffer()
    binary.TBinaryProtocol(buffer).write_struct(info)
    return buffer.getvalue()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=10), max_size=5))
def test_reader_reads_bytes_of_thrift(names):
    assert read_extensions(written(names)) == set(names)


def test_a_server_that_says_nothing_has_no_extension():
    assert read_extensions(None) == frozenset()
    assert read_extensions(b"\x00") == frozenset()


@pytest.mark.parametrize("garbage", [b"", b"hello", b"\x0f\x00\x04\x0b\x00\x00\x00\x02", b"\x7f"])
def test_garbage_is_the_servers_fault(garbage):
    with pytest.raises(RemoteProtocolError):
        read_extensions(garbage)


def test_a_list_of_something_else_is_passed_over():
    numbers = b"\x0f\x00\x04\x08\x00\x00\x00\x02" + b"\x00\x00\x00\x01" * 2 + b"\x00"
    assert read_extensions(numbers) == frozenset()


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(read_extensions(data), frozenset)
