"""A connection without its socket: calls out of bytes, however they are cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.rpc.connection import CallStream
from stormkeeper.rpc.message_frames import Kind, ThriftMessage, frame
from support.rpc import call_bytes, example

METHODS = example.Example.methods
MAX = 200
CALLS = st.lists(
    st.builds(
        ThriftMessage,
        st.just(Kind.CALL),
        st.sampled_from(["echo", "nothing", "no such method"]),
        st.integers(0, 99),
        st.binary(max_size=20),
    ),
    max_size=8,
)


def connection():
    return CallStream(METHODS, MAX)


def calls_of(connection):
    """All calls that are there."""
    calls = []
    while (call := connection.next_call()) is not None:
        calls.append(call)
    return calls


def chopped(data, cuts):
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(CALLS, st.lists(st.integers(0, 2000)))
def test_the_calls_are_the_same_however_the_bytes_are_chopped(calls, cuts):
    ours = connection()
    got = []
    for piece in chopped(b"".join(frame(*call) for call in calls), cuts):
        assert ours.accept(piece) == b""
        got += calls_of(ours)
    assert got == calls
    assert ours.fault is None
    assert (ours.frames, ours.held_bytes) == (len(calls), 0)
    assert not ours.has_partial


def test_a_client_of_sasl_learns_how_to_reach_this_server():
    ours = connection()
    sent = ours.accept(b"\x01\x00\x00\x00\x06GSSAPI\x02\x00\x00\x00\x00")
    # Thrift's SASL transport shows the text of a message with the status ERROR.
    assert sent[0] == 4
    assert int.from_bytes(sent[1:5], "big") == len(sent[5:])
    assert b"org.apache.storm.security.auth.SimpleTransportPlugin" in sent
    assert ours.next_call() is None
    assert "SASL: this Nimbus authenticates no client" in str(ours.fault)
    later = connection()
    later.accept(frame(Kind.CALL, "nothing", 1, b""))
    assert later.accept(b"\x01\x00\x00\x00\x06GSSAPI") == b""


@given(CALLS, st.lists(st.integers(0, 2000)), st.binary(min_size=1, max_size=30))
def test_calls_before_bad_bytes_are_returned(calls, cuts, tail):
    ours = connection()
    got = []
    for piece in chopped(b"".join(frame(*call) for call in calls) + tail, cuts):
        ours.accept(piece)
        got += calls_of(ours)
    assert got[: len(calls)] == calls
    assert ours.held_bytes <= len(tail)


def test_a_second_call_waits_for_its_turn():
    ours = connection()
    ours.accept(call_bytes("echo") + call_bytes("nothing", sequence=2))
    assert ours.next_call().name == "echo"
    assert ours.has_waiting
    assert ours.next_call().sequence == 2
    assert not ours.has_waiting


def test_long_frame_ends_the_stream_after_earlier_calls():
    ours = connection()
    ours.accept(call_bytes("echo") + (MAX + 1).to_bytes(4, "big") + b"x")
    assert [call.name for call in calls_of(ours)] == ["echo"]
    assert not ours.has_waiting
    assert "nimbus.thrift.max_buffer_size" in str(ours.fault)
    ours.accept(call_bytes("echo"))
    assert calls_of(ours) == []
    assert ours.held_bytes == 0


def test_message_other_than_a_call_ends_the_stream():
    for kind in (Kind.REPLY, Kind.EXCEPTION):
        ours = connection()
        ours.accept(call_bytes("echo", kind=kind) + call_bytes("echo"))
        assert calls_of(ours) == []
        assert kind.name in str(ours.fault)


def test_only_a_method_without_an_answer_is_called_one_way():
    ours = connection()
    ours.accept(call_bytes("tell", kind=Kind.ONEWAY) + call_bytes("tell", kind=Kind.CALL))
    assert len(calls_of(ours)) == 2
    ours.accept(call_bytes("none such", kind=Kind.ONEWAY))
    assert len(calls_of(ours)) == 1
    ours.accept(call_bytes("echo", kind=Kind.ONEWAY))
    assert calls_of(ours) == []
    assert "echo called one-way, but it has an answer" in str(ours.fault)
