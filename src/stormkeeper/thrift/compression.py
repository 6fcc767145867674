"""How Storm compresses its records: not at all, with gzip, or with zstd.

Storm calls this a serialization delegate (``storm.meta.serialization.delegate``). What is read
says itself how it is compressed, since neither magic number can begin a Thrift record; what is
written is compressed as configured, by default as Storm 2 does, with gzip. (Storm 3: zstd.)

Reading follows Java's streams: gzip members and zstd frames may follow each other; after the last
member of a gzip stream anything is ignored, after the last zstd frame nothing is allowed.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, Final, Protocol

from stormkeeper.errors import ConfigError, SerializationError

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

#: What a record may decompress to by default, in bytes: Storm's own limit for both formats.
DEFAULT_LIMIT: Final = 100 * 1024 * 1024

# A bomb has to be seen before it has gone off. Neither library can be told to stop at a number of
# bytes and also tell whether the stream was complete, so they are fed little by little: a byte of
# gzip gives at most 1032 (RFC 1951's longest match, 258 bytes, in two bits), so a piece at most
# 4 MiB; a zstd block is at least four bytes and at most 128 KiB (RFC 8878 §3.1.1.2), a piece at
# most 8 MiB.
_GZIP_PIECE: Final = 4096
_ZSTD_PIECE: Final = 256

#: Largest window of a zstd frame, as a power of two in bytes: 8 MiB. Every reader should support
#: that (RFC 8878 §3.1.1.1.2), and level 19, the highest that Storm allows, uses it.
_ZSTD_WINDOW_LOG: Final = 23

_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3


class Compression(Enum):
    """How a record is compressed."""

    PLAIN = "plain"
    GZIP = "gzip"
    ZSTD = "zstd"


_DELEGATES = {
    "org.apache.storm.serialization.ThriftSerializationDelegate": Compression.PLAIN,
    "org.apache.storm.serialization.GzipThriftSerializationDelegate": Compression.GZIP,
    "org.apache.storm.serialization.GzipBridgeThriftSerializationDelegate": Compression.GZIP,
    "org.apache.storm.serialization.ZstdThriftSerializationDelegate": Compression.ZSTD,
    "org.apache.storm.serialization.ZstdBridgeThriftSerializationDelegate": Compression.ZSTD,
}


def compression_for(delegate_class_name: str) -> Compression:
    """Return how a serialization delegate of Storm's compresses what it writes.

    Parameters
    ----------
    delegate_class_name : str
        The value of ``storm.meta.serialization.delegate``. The "bridge" delegates read more than
        they write; we always read everything.

    Raises
    ------
    ConfigError
        If it is not one of Storm's Thrift delegates.
    """
    try:
        return _DELEGATES[delegate_class_name]
    except KeyError:
        allowed = ", ".join(_DELEGATES)
        raise ConfigError(
            f"storm.meta.serialization.delegate is {delegate_class_name!r}; it must be one of"
            f" {allowed}"
        ) from None


def compress(data: bytes, compression: Compression) -> bytes:
    """Compress a record; the same bytes always give the same result.

    Notes
    -----
    The levels are Storm's (6 for gzip, 3 for zstd), and gzip's time stamp is zero as in Java.
    """
    if compression is Compression.GZIP:
        return zlib.compress(data, _GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)
    if compression is Compression.ZSTD:
        compressed: bytes = zstd_library().compress(data, _ZSTD_LEVEL)
        return compressed
    return data


def decompress(data: bytes, limit: int = DEFAULT_LIMIT) -> bytes:
    """Return what `data` holds, compressed or not.

    Parameters
    ----------
    data : bytes
        Bytes that may begin with gzip's or zstd's magic number; all else is not compressed.
    limit : int, optional
        The bytes that may come out.

    Raises
    ------
    SerializationError
        If the compressed data are damaged, truncated or, decompressed, larger than `limit`. A few
        MiB above the limit are all that is ever allocated.
    """
    if data.startswith(GZIP_MAGIC):
        return _gunzip(data, limit)
    if data.startswith(ZSTD_MAGIC):
        return _unzstd(data, limit)
    if len(data) > limit:
        raise SerializationError(f"{len(data)} bytes, more than the limit of {limit}")
    return data


class _Stream(Protocol):
    """One gzip member or zstd frame that is being decompressed."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


@cache
def zstd_library() -> Any:
    """Return Python's module for zstd, or its backport; only clusters that use zstd load it."""
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd")
    from backports import zstd  # noqa: PLC0415

    return zstd


@cache
def _zlib() -> Any:
    """Return zlib-ng, which takes half the time, where it is installed, or else Python's zlib."""
    try:
        from zlib_ng import zlib_ng  # noqa: PLC0415  (of the extra `spark`)
    except ImportError:
        return zlib
    return zlib_ng


def _gunzip(data: bytes, limit: int) -> bytes:
    library = _zlib()
    try:
        return _inflate(
            data,
            lambda: library.decompressobj(wbits=zlib.MAX_WBITS | 16),
            piece=_GZIP_PIECE,
            limit=limit,
            follows=lambda rest: rest.startswith(GZIP_MAGIC),
        )
    except library.error as error:
        raise SerializationError(f"damaged gzip data ({error})") from error
    except EOFError:
        raise SerializationError(f"gzip data that end too early, after {len(data)} bytes") from None


def _unzstd(data: bytes, limit: int) -> bytes:
    library = zstd_library()
    options = {library.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    try:
        return _inflate(
            data,
            lambda: library.ZstdDecompressor(options=options),
            piece=_ZSTD_PIECE,
            limit=limit,
            follows=lambda _rest: True,
        )
    except library.ZstdError as error:
        raise SerializationError(f"damaged zstd data ({error})") from error
    except EOFError:
        raise SerializationError(f"zstd data that end too early, after {len(data)} bytes") from None


def _inflate(
    data: bytes,
    begin: Callable[[], _Stream],
    *,
    piece: int,
    limit: int,
    follows: Callable[[bytes], bool],
) -> bytes:
    """Decompress stream after stream, piece by piece.

    `follows` says of the bytes after one whether another begins there. Raises EOFError if the data
    end within one.
    """
    out: list[bytes] = []
    size = pos = 0
    while True:
        stream = begin()
        while not stream.eof:
            if pos == len(data):
                raise EOFError
            chunk = data[pos : pos + piece]
            pos += len(chunk)
            out.append(stream.decompress(chunk))
            size += len(out[-1])
            if size > limit:
                raise SerializationError(
                    f"decompresses to more than {limit} bytes from {len(data)}; refused as unsafe"
                )
        pos -= len(stream.unused_data)
        if pos == len(data) or not follows(data[pos : pos + piece]):
            return b"".join(out)
