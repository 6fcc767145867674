"""Encodes and decodes the bytes of a znode's value or a pulse's details.

::

    data = serialize(heartbeat, compression_for(conf["storm.meta.serialization.delegate"]))
    heartbeat = deserialize(ClusterWorkerHeartbeat, data)
"""

from __future__ import annotations

from typing import Final, TypeVar

from thriftpy2.thrift import TPayload

from stormkeeper.errors import SerializationError
from stormkeeper.thrift.compression import (
    DEFAULT_LIMIT,
    Compression,
    compress,
    compression_for,
    decompress,
)
from stormkeeper.thrift.idl import I32, schema_of
from stormkeeper.thrift.reader import decode, decode_end, field_kind, with_article
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, WorkerActivity
from stormkeeper.thrift.writer import Release, encode

__all__ = [
    "DEFAULT_LIMIT",
    "Compression",
    "Release",
    "activity_of",
    "compression_for",
    "deserialize",
    "heartbeat_release",
    "release_for",
    "serialize",
    "uncompressed",
]

#: Storm's value of a znode that is only a directory.
_DIRECTORY = b"\x07"

#: The first field of a heartbeat after the statistics that every release writes as i32.
_UPTIME: Final = 4

Record = TypeVar("Record", bound=TPayload)


def serialize(
    record: TPayload,
    compression: Compression = Compression.GZIP,
    *,
    release: Release | None = None,
) -> bytes:
    """Return a record as Storm stores it.

    `release` matters only for ``ClusterWorkerHeartbeat.time_secs``, i32 in Storm 2 and i64 in Storm
    3; our readers accept both. Raises `SerializationError` if the record does not fit its schema.
    """
    return compress(encode(record, release or release_for(compression)), compression)


def release_for(compression: Compression) -> Release:
    """Return the release of Storm that usually writes this compression.

    Only Storm 3 reads zstd. A cluster of Storm 3 configured for gzip or plain records must say so.
    """
    return Release.STORM_3 if compression is Compression.ZSTD else Release.STORM_2


def heartbeat_release(data: bytes) -> Release:
    """Return the release of Storm that a serialized `ClusterWorkerHeartbeat` was written for."""
    field = next(f for f in schema_of(ClusterWorkerHeartbeat).fields if f.name == "time_secs")
    narrow = field_kind(decompress(data), field.id) == I32
    return Release.STORM_2 if narrow else Release.STORM_3


def deserialize(
    cls: type[Record], data: bytes | bytearray | memoryview, *, limit: int = DEFAULT_LIMIT
) -> Record:
    """Read a record that any release of Storm, or Stormkeeper, has stored, compressed or not.

    A record in memory can take forty times its bytes, so use a lower `limit` for those of untrusted
    writers. Raises only `SerializationError`, in time linear in the decompressed size.
    """
    return decode(cls, uncompressed(cls, bytes(data), limit))


def activity_of(data: bytes) -> WorkerActivity:
    """Return a heartbeat's fields after the statistics; raise `SerializationError`."""
    plain = uncompressed(ClusterWorkerHeartbeat, data)
    found = decode_end(WorkerActivity, plain, _UPTIME)
    if found is not None:
        return found
    beat = decode(ClusterWorkerHeartbeat, plain)
    return WorkerActivity(
        uptime_secs=beat.uptime_secs,
        completed=beat.completed,
        inactive=beat.inactive,
        queries=beat.queries,
        jvm_silent_ms=beat.jvm_silent_ms,
        waiting=beat.waiting,
    )


def uncompressed(cls: type[TPayload], data: bytes, limit: int = DEFAULT_LIMIT) -> bytes:
    """Return the decompressed bytes of a record that was stored as one of `cls`.

    Raises `SerializationError` if there is no record, or as `decompress`.
    """
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
