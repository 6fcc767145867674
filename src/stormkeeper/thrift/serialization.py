"""The bytes of a znode's value or a pulse's details: records, encoded and compressed.

Readers recognise gzip and zstd by the magic number, which cannot begin a Thrift record. Writers use
Storm's serialization delegate: by default gzip, as Storm 2 (Storm 3: zstd). As in Java's streams,
gzip members and zstd frames may follow each other; bytes after the last gzip member are ignored,
after the last zstd frame an error.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, Self, TypeVar

from thriftpy2.thrift import TPayload

from stormkeeper.errors import ConfigError, SerializationError
from stormkeeper.thrift.idl import I32, schema_of
from stormkeeper.thrift.reader import decode, find_end, find_field, with_article
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, WorkerActivity
from stormkeeper.thrift.writer import Release, encode

#: Storm's value of a znode that is only a directory.
_DIRECTORY = b"\x07"

#: The first field after the statistics that every release writes as i32.
_UPTIME: Final = 4

Record = TypeVar("Record", bound=TPayload)

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

DEFAULT_LIMIT: Final = 100 * 1024 * 1024

# Bytes decompressed at once, against bombs: neither library can stop at a size and also tell
# whether the stream was complete. A byte of gzip gives at most 1032 (RFC 1951: 258 bytes in two
# bits), so a piece 4 MiB; a zstd block of four bytes gives at most 128 KiB (RFC 8878 §3.1.1.2), so
# a piece 8 MiB.
_GZIP_PIECE: Final = 4096
_ZSTD_PIECE: Final = 256

#: Largest window of a zstd frame, as a power of two: 8 MiB, which every reader should support (RFC
#: 8878 §3.1.1.1.2) and Storm's highest level, 19, uses.
_ZSTD_WINDOW_LOG: Final = 23

#: Records that this process has written and reads again.
_MOST_EXPECTED: Final = 500

_GZIP_LEVEL: Final = 5
_ZSTD_LEVEL: Final = 3


class Compression(Enum):
    """The compression of a record."""

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


def serialize(
    record: TPayload,
    compression: Compression = Compression.GZIP,
    *,
    release: Release | None = None,
) -> bytes:
    """Return a record in Storm's stored form; raise `SerializationError`."""
    return compress(encode(record, release or release_for(compression)), compression)


def release_for(compression: Compression) -> Release:
    """Return the release of Storm that usually writes this compression.

    Only Storm 3 reads zstd. A cluster of Storm 3 with gzip or plain records must say so.
    """
    return Release.STORM_3 if compression is Compression.ZSTD else Release.STORM_2


def heartbeat_release(data: bytes) -> Release:
    """Return the release of Storm for which a `ClusterWorkerHeartbeat` was written."""
    field = next(f for f in schema_of(ClusterWorkerHeartbeat).fields if f.name == "time_secs")
    kind, _ = find_field(decompress(data), field.id) or (None, 0)
    return Release.STORM_2 if kind == I32 else Release.STORM_3


def deserialize(
    cls: type[Record], data: bytes | bytearray | memoryview, *, limit: int = DEFAULT_LIMIT
) -> Record:
    """Read a record from any release of Storm, or Stormkeeper, compressed or not.

    A record in memory can take forty times its bytes: lower `limit` for untrusted writers. Raises
    only `SerializationError`.
    """
    return decode(cls, uncompressed(cls, bytes(data), limit))


def activity_of(data: bytes) -> bytes:
    """Return a heartbeat's `WorkerActivity`, encoded; raise `SerializationError`."""
    plain = uncompressed(ClusterWorkerHeartbeat, data)
    at = find_end(WorkerActivity, plain, _UPTIME)
    if at is not None:
        return plain[at:]
    return encode(activity_in(decode(ClusterWorkerHeartbeat, plain)))


def activity_in(beat: ClusterWorkerHeartbeat) -> WorkerActivity:
    return WorkerActivity(
        uptime_secs=beat.uptime_secs,
        completed=beat.completed,
        inactive=beat.inactive,
        queries=beat.queries,
        jvm_silent_ms=beat.jvm_silent_ms,
        waiting=beat.waiting,
    )


def uncompressed(cls: type[TPayload], data: bytes, limit: int = DEFAULT_LIMIT) -> bytes:
    """Return a record's decompressed bytes; raise `SerializationError`."""
    if data == _DIRECTORY:
        raise SerializationError(
            f"not {with_article(cls)}: the single byte 07, which Storm stores in a znode that is"
            " only a directory"
        )
    if not data:
        raise SerializationError(f"not {with_article(cls)}: no bytes at all")
    try:
        return decompress(data, limit)
    except SerializationError as error:
        raise SerializationError(f"not {with_article(cls)}: {error}") from error


def compression_for(delegate_class_name: str) -> Compression:
    """Return the compression of a serialization delegate of Storm.

    Raises `ConfigError` for another class. Older formats of "bridge" delegates are always read.
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
    """Compress with Storm's levels, deterministically."""
    if compression is Compression.GZIP:
        return zlib.compress(data, _GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)
    if compression is Compression.ZSTD:
        compressed: bytes = zstd_library().compress(data, _ZSTD_LEVEL)
        return compressed
    return data


def decompress(data: bytes, limit: int = DEFAULT_LIMIT) -> bytes:
    """Return the decompressed bytes; without a magic number, the bytes themselves.

    Raises `SerializationError` for damaged data, or for more than `limit` bytes, of which at most a
    few MiB are allocated.
    """
    if data.startswith(GZIP_MAGIC):
        return _gunzip(data, limit)
    if data.startswith(ZSTD_MAGIC):
        return _unzstd(data, limit)
    if len(data) > limit:
        raise SerializationError(f"{len(data)} bytes, more than the limit of {limit}")
    return data


@cache
def zstd_library() -> Any:
    """Return Python's zstd module or the backport; loaded only if used."""
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd")
    from backports import zstd  # noqa: PLC0415

    return zstd


@cache
def _zlib() -> Any:
    """Return zlib-ng, which takes half the time, if installed, or else zlib."""
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
    begin: Callable[[], Any],
    *,
    piece: int,
    limit: int,
    follows: Callable[[bytes], bool],
) -> bytes:
    """Decompress streams in pieces; raise EOFError if the data end within a stream.

    `follows` tells from the bytes behind a stream whether another begins.
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


class Codec:
    """Encodes records for a release of Storm, decodes all forms; raises `SerializationError`."""

    def __init__(
        self, compression: Compression = Compression.GZIP, release: Release | None = None
    ) -> None:
        self._compression = compression
        #: The Storm that must read the records.
        self.release = release or release_for(compression)
        self._expected: dict[bytes, TPayload] = {}

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> Self:
        """Return the configured codec; `ConfigError` if unknown."""
        release = conf["storm.meta.serialization.release"]
        return cls(
            compression_for(conf["storm.meta.serialization.delegate"]),
            None if release is None else Release(release),
        )

    def read(self, cls: type[Record], data: bytes) -> Record:
        record = self._expected.pop(data, None) if self._expected else None
        return record if type(record) is cls else deserialize(cls, data)

    def expect(self, data: bytes, record: TPayload) -> None:
        """Let the next `read` of what `write` made of `record` return it, without decoding."""
        if len(self._expected) >= _MOST_EXPECTED:
            self._expected.clear()
        self._expected[data] = record

    def write(self, record: TPayload) -> bytes:
        return serialize(record, self._compression, release=self.release)
