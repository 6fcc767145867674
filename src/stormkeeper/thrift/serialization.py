"""Records to and from the bytes of a znode's value or a pulse's details.

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

#: What Storm stores in a znode that is only a directory.
_DIRECTORY = b"\x07"

#: The first field of a heartbeat behind its statistics that every release writes as i32.
_UPTIME: Final = 4

Record = TypeVar("Record", bound=TPayload)


def serialize(
    record: TPayload,
    compression: Compression = Compression.GZIP,
    *,
    release: Release | None = None,
) -> bytes:
    """Return a record as Storm stores it.

    Parameters
    ----------
    record : object
        An instance of a class of `stormkeeper.thrift.records` or `stormkeeper.thrift.pacemaker`.
    compression : Compression, optional
        What `compression_for` says of the configured delegate; Storm 2's default, gzip, if left
        out.
    release : Release, optional
        Which Storm is to read it, by `release_for` if left out. It matters to
        `ClusterWorkerHeartbeat` alone, whose ``time_secs`` Storm 2 wants as i32 and Storm 3 as
        i64, however it is compressed; everything of ours reads both.

    Raises
    ------
    SerializationError
        If the record does not fit its schema: a required field that is None, a value of a wrong
        type or out of range, a union without exactly one member.
    """
    return compress(encode(record, release or release_for(compression)), compression)


def release_for(compression: Compression) -> Release:
    """Return the release of Storm that usually writes records with this compression.

    Only Storm 3 reads zstd. Gzip and plain records it reads as well, but they are what Storm 2
    writes: a cluster of Storm 3 that is set to them must say so.
    """
    return Release.STORM_3 if compression is Compression.ZSTD else Release.STORM_2


def heartbeat_release(data: bytes) -> Release:
    """Return the release of Storm that a heartbeat was written for.

    Parameters
    ----------
    data : bytes
        What `deserialize` reads as a `ClusterWorkerHeartbeat`.
    """
    field = next(f for f in schema_of(ClusterWorkerHeartbeat).fields if f.name == "time_secs")
    narrow = field_kind(decompress(data), field.id) == I32
    return Release.STORM_2 if narrow else Release.STORM_3


def deserialize(
    cls: type[Record], data: bytes | bytearray | memoryview, *, limit: int = DEFAULT_LIMIT
) -> Record:
    """Read a record that any release of Storm, or we, stored, compressed or not.

    Parameters
    ----------
    cls : type
        The record's class.
    data : bytes
        A znode's value, or a pulse's details.
    limit : int, optional
        The bytes that the record may decompress to, 100 MiB as in Storm if left out. A record in
        memory can be some forty times as large as its bytes: where anyone may write, ask for less.

    Returns
    -------
    Record
        An instance of `cls`. Optional fields that are absent are None.

    Raises
    ------
    SerializationError
        If the bytes are not such a record, or decompress to more than `limit`. Nothing else is
        raised whatever the bytes are, and the time is linear in what they decompress to.
    """
    return decode(cls, uncompressed(cls, bytes(data), limit))


def activity_of(data: bytes) -> WorkerActivity:
    """Return what a heartbeat says beside its statistics, as `deserialize` reads it.

    Raises
    ------
    SerializationError
        If the bytes are not a heartbeat.
    """
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
    """Return the bytes of a record that was stored as one of `cls`, decompressed.

    Raises
    ------
    SerializationError
        If there is no record, or it decompresses to more than `limit` bytes, or the compressed data
        are damaged.
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
