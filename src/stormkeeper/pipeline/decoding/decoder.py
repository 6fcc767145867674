"""Decoding of pulses' values into columns, by the compiled engine if built, or in Python."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from stormkeeper.errors import SerializationError
from stormkeeper.pipeline.decoding import plain
from stormkeeper.pipeline.decoding.layout import HEARTBEAT_BYTES
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import uncompressed

log = logging.getLogger(__name__)

_MODULE: Final = "stormkeeper.pipeline.decoding._compiled"


#: Values that become columns together, and the limit of their bytes and names.
_MOST: Final = 512

_MOST_BYTES: Final = 32 * 1024 * 1024


class Builder(Protocol):
    """The interface of both engines, documented in `plain.Builder`."""

    @property
    def weight(self) -> int:
        """Bytes of the heartbeats added, and of the names in their rows."""

    def __len__(self) -> int:
        """Return the number of rows, with and without a heartbeat."""

    def add(self, data: bytes) -> bool:
        """Add a heartbeat; return False if the engine does not take such heartbeats."""

    def refuse(self, reason: str | None) -> None:
        """Add a row without a heartbeat."""

    def finish(self) -> dict[str, pa.Array]:
        """Return the columns."""


class Engine(NamedTuple):
    """An engine that decodes heartbeats."""

    #: ``compiled`` or ``interpreted``.
    name: str
    builder: type[Builder]


INTERPRETED: Final = Engine("interpreted", plain.Builder)


def load() -> Engine:
    """Return the compiled engine if built, else the interpreted engine."""
    try:
        return Engine("compiled", import_module(_MODULE).Builder)
    except ImportError:
        return INTERPRETED


def warn_if_interpreted() -> None:
    """Log why the compiled engine does not run, and the remedy."""
    try:
        import_module(_MODULE)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == _MODULE
        log.warning(
            "heartbeats are decoded in plain Python, with about fifteen times the CPU: %s;"
            " install a C compiler and Python's headers (Debian: apt-get install gcc python3-dev),"
            " then stormkeeper anew",
            "no C compiler was there when stormkeeper was installed"
            if is_absent
            else f"the compiled module cannot be loaded: {error}",
        )


def decode(
    values: Iterable[bytes | None], engine: Engine | None = None
) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Decode pulses' values (None for none) into the columns `layout.HEARTBEAT`.

    Yields the number of the next values, and their columns. Never raises for a value: the column
    ``error`` has the reason.
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
    """Add a value; return another builder with the value if this engine does not take it."""
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
