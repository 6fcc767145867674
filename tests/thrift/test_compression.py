"""Gzip and zstd as Java's streams read them, and what would blow up if it were let."""

import gzip
import importlib
import io
import time
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import ConfigError, SerializationError
from stormkeeper.thrift.serialization import (
    GZIP_MAGIC,
    ZSTD_MAGIC,
    Compression,
    compress,
    compression_for,
    decompress,
    zstd_library,
)

MIB = 2**20
TEXT = b"every good boy deserves favour " * 50


@pytest.fixture(scope="module", params=["zlib", "zlib_ng.zlib_ng"], autouse=True)
def library(request):
    """What gunzips: Python's own, and what the extra `spark` brings."""
    found = importlib.import_module(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stormkeeper.thrift.serialization._zlib", lambda: found)
        yield


def zstd(data):
    return zstd_library().compress(data)


@given(st.binary(max_size=5000), st.sampled_from(Compression))
def test_compressed_data_come_back(data, compression):
    data = b"\x0b" + data  # as a record begins, never with a magic number
    assert decompress(compress(data, compression)) == data


def test_the_magic_numbers_are_where_readers_look():
    assert compress(TEXT, Compression.GZIP).startswith(GZIP_MAGIC)
    assert compress(TEXT, Compression.ZSTD).startswith(ZSTD_MAGIC)
    assert compress(TEXT, Compression.PLAIN) == TEXT


def test_gzip_has_no_time_in_it():
    assert compress(TEXT, Compression.GZIP)[4:8] == bytes(4)


def test_large_records_come_back():
    data = b"\x0b" + zlib.crc32(b"seed").to_bytes(4, "big") * (3 * MIB)
    for compression in Compression:
        assert decompress(compress(data, compression)) == data


def gzip_bomb(size):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb") as stream:
        for _ in range(size // MIB):
            stream.write(bytes(MIB))
    return out.getvalue()


def zstd_bomb(size):
    stream = zstd_library().ZstdCompressor()
    return b"".join(stream.compress(bytes(MIB)) for _ in range(size // MIB)) + stream.flush()


@pytest.mark.parametrize("bomb", [gzip_bomb, zstd_bomb])
def test_a_bomb_is_refused_before_it_goes_off(bomb):
    data = bomb(128 * MIB)
    assert len(data) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(SerializationError, match=r"more than 1048576 bytes from \d+; refused"):
            decompress(data, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 * MIB


def test_limit_applies_to_decompressed_bytes():
    data = bytes(MIB)
    for compression in Compression:
        assert decompress(compress(data, compression), MIB) == data
        with pytest.raises(SerializationError, match=str(MIB - 1)):
            decompress(compress(data, compression), MIB - 1)


def test_a_zstd_frame_may_not_ask_for_a_large_window():
    frame = ZSTD_MAGIC + bytes([0x00, (27 - 10) << 3]) + b"\x01\x00\x00"
    with pytest.raises(SerializationError, match=r"damaged zstd data .*memory"):
        decompress(frame)


def test_gzip_members_follow_each_other():
    assert decompress(gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


def test_bytes_after_gzip_are_ignored_as_in_java():
    assert decompress(gzip.compress(b"one") + b"and more") == b"one"


def test_a_second_gzip_member_has_to_be_whole():
    with pytest.raises(SerializationError, match="gzip data that end too early"):
        decompress(gzip.compress(b"one") + gzip.compress(b"two")[:-1])


def test_zstd_frames_follow_each_other():
    skippable = bytes.fromhex("502a4d18") + (3).to_bytes(4, "little") + b"xyz"
    assert decompress(zstd(b"one ") + skippable + zstd(b"two")) == b"one two"


def test_bytes_after_zstd_are_an_error_as_in_java():
    with pytest.raises(SerializationError, match="damaged zstd data"):
        decompress(zstd(b"one") + b"and more")


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_data_cut_at_any_byte_are_an_error(compression):
    data = compress(TEXT, compression)
    magic = len(GZIP_MAGIC) if compression is Compression.GZIP else len(ZSTD_MAGIC)
    for end in range(magic, len(data)):
        with pytest.raises(SerializationError, match=r"end too early|damaged"):
            decompress(data[:end])


def test_damage_to_gzip_is_found_by_its_checksum():
    data = bytearray(gzip.compress(TEXT))
    data[-5] ^= 1
    with pytest.raises(SerializationError, match="damaged gzip data"):
        decompress(bytes(data))


@pytest.mark.parametrize("empty", [gzip.compress(b"", mtime=0), zstd(b"")], ids=["gzip", "zstd"])
def test_many_small_streams_take_linear_time(empty):
    def work(count):
        start = time.process_time()
        decompress(empty * count)
        return time.process_time() - start

    work(100)
    assert work(32_000) < 100 * max(work(2_000), 0.001)


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("ThriftSerializationDelegate", Compression.PLAIN),
        ("GzipThriftSerializationDelegate", Compression.GZIP),
        ("GzipBridgeThriftSerializationDelegate", Compression.GZIP),
        ("ZstdThriftSerializationDelegate", Compression.ZSTD),
        ("ZstdBridgeThriftSerializationDelegate", Compression.ZSTD),
    ],
)
def test_the_delegates_of_storm(name, compression):
    assert compression_for(f"org.apache.storm.serialization.{name}") is compression


@pytest.mark.parametrize(
    "name", ["", "gzip", "org.apache.storm.serialization.GzipSerializationDelegate"]
)
def test_other_delegates_are_refused_with_those_that_are_allowed(name):
    with pytest.raises(ConfigError) as error:
        compression_for(name)
    assert str(error.value).startswith(f"storm.meta.serialization.delegate is {name!r}; ")
    assert "org.apache.storm.serialization.GzipThriftSerializationDelegate" in str(error.value)
