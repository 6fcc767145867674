"""Frames come out whole, however the stream is chopped."""

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def test_every_split_of_a_stream_gives_the_same_payloads():
    payloads = [b"", b"a", b"bc" * 9, b"", b"\x00\x00\x00\x01", b"end"]
    stream = b"".join(map(frame, payloads))
    for cut in range(len(stream) + 1):
        splitter = PacemakerFrameSplitter()
        assert splitter.feed(stream[:cut]) + splitter.feed(stream[cut:]) == payloads
    splitter = PacemakerFrameSplitter()
    assert [p for byte in stream for p in splitter.feed(bytes([byte]))] == payloads


@given(st.lists(st.binary(max_size=40), max_size=20), st.data())
def test_random_chunks_give_the_same_payloads(payloads, data):
    stream = b"".join(map(frame, payloads))
    splitter = PacemakerFrameSplitter()
    got = []
    pos = 0
    while pos < len(stream):
        size = data.draw(st.integers(1, len(stream) - pos))
        got += splitter.feed(stream[pos : pos + size])
        pos += size
    assert got == payloads


def test_frame_of_maximum_size_passes_and_larger_fails():
    splitter = PacemakerFrameSplitter(max_size=8)
    assert splitter.feed(frame(b"12345678")) == [b"12345678"]
    with pytest.raises(RemoteProtocolError, match="9 bytes announced"):
        splitter.feed(b"\x00\x00\x00\x09")


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"GET ", b"\x16\x03"])
def test_a_bad_length_is_a_fault_whole_or_in_pieces(length):
    length = length.ljust(4, b"\x01")
    with pytest.raises(RemoteProtocolError, match="announced"):
        PacemakerFrameSplitter().feed(length + b"rest")
    splitter = PacemakerFrameSplitter()
    assert splitter.feed(length[:1]) == []
    with pytest.raises(RemoteProtocolError, match="announced"):
        splitter.feed(length[1:])


@pytest.mark.parametrize("verb", [b"GET /metrics", b"HEAD /", b"POST /"])
def test_http_request_names_the_metrics_port(verb):
    with pytest.raises(RemoteProtocolError, match=r"HTTP.*pacemaker\.metrics\.port"):
        PacemakerFrameSplitter().feed(verb)


def test_http_answer_is_named():
    with pytest.raises(RemoteProtocolError, match=r"this is HTTP: .*pacemaker\.metrics\.port.*"):
        PacemakerFrameSplitter().feed(b"HTTP/1.0 400 Bad Request\r\n")


def test_frames_before_a_bad_length_pass_and_fault_stays():
    for cut in range(8):
        splitter = PacemakerFrameSplitter()
        stream = frame(b"good") + b"\xff\xff\xff\xff" + frame(b"never")
        assert splitter.feed(stream[:cut]) + splitter.feed(stream[cut:]) == [b"good"]
        assert splitter.fault is not None
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="-1 bytes"):
                splitter.feed(frame(b"never"))


def test_memory_grows_with_received_bytes_only():
    splitters = [PacemakerFrameSplitter() for _ in range(100)]
    tracemalloc.start()
    try:
        for splitter in splitters:
            assert splitter.feed((10_000_000).to_bytes(4, "big") + b"x") == []
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[pos : pos + size] for pos in range(0, len(stream), size)]


def seconds(chunks) -> float:
    splitter = PacemakerFrameSplitter()
    started = time.process_time()
    for chunk in chunks:
        splitter.feed(chunk)
    return time.process_time() - started


def test_time_grows_with_the_bytes_alone():
    # Quadratic copying would make the eightfold stream cost sixty-four times as much.
    small, large = 500_000, 4_000_000
    one_in_pieces = {n: pieces(frame(bytes(n)), 64) for n in (small, large)}
    many_in_one_piece = {n: [frame(b"1234") * (n // 8)] for n in (small, large)}
    for streams in (one_in_pieces, many_in_one_piece):
        fast = min(seconds(streams[small]) for _ in range(3))
        assert min(seconds(streams[large]) for _ in range(3)) < 24 * fast
