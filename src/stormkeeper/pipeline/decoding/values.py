"""From pulses' values to columns, with either engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

import pyarrow as pa

from stormkeeper.errors import SerializationError
from stormkeeper.pipeline.decoding.engine import INTERPRETED, Builder, Engine, load
from stormkeeper.pipeline.decoding.layout import HEARTBEAT_BYTES
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import uncompressed

#: How many values, and how much of them and of the names in their rows (bytes), become columns
#: together: so many that the columns cost little each, and so little that they fit in memory.
_MOST: Final = 512
_MOST_BYTES: Final = 32 * 1024 * 1024


def decode(
    values: Iterable[bytes | None], engine: Engine | None = None
) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Decode the values of pulses.

    Parameters
    ----------
    values
        Heartbeats, plain or compressed; None where there is none.
    engine
        What to decode them with; the compiled engine where it was built, if left out.

    Yields
    ------
    For some of the values, in their order: how many these are, and the columns
    `layout.HEARTBEAT`. Whatever the values are, nothing is raised: the column ``error`` says why
    one could not be decoded. One that decompresses to more than `layout.HEARTBEAT_BYTES` is not.
    """
    engine = engine or _default()
    builder = engine.builder()
    for value in values:
        after = _add(builder, value)
        if after is not None:
            yield from _finished(builder)
            builder = engine.builder()
            yield from _finished(after)
        elif len(builder) >= _MOST or builder.weight >= _MOST_BYTES:
            yield from _finished(builder)
            builder = engine.builder()
    yield from _finished(builder)


_default = cache(load)


def _finished(builder: Builder) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    if len(builder):
        yield len(builder), builder.finish()


def _add(builder: Builder, value: bytes | None) -> Builder | None:
    """Add a value; return another builder that has it, if this one left it alone."""
    if value is None:
        builder.refuse(None)
        return None
    try:
        data = uncompressed(ClusterWorkerHeartbeat, value, HEARTBEAT_BYTES)
        if builder.add(data):
            return None
        other = INTERPRETED.builder()
        other.add(data)
    except SerializationError as error:
        builder.refuse(str(error))
        return None
    return other
