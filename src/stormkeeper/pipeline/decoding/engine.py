"""Which of the two engines decodes: the compiled one where it was built, or else plain Python."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from stormkeeper.pipeline.decoding import plain

log = logging.getLogger(__name__)

_MODULE: Final = "stormkeeper.pipeline.decoding._compiled"


class Builder(Protocol):
    """What both engines have; `plain.Builder` says what each of these does."""

    @property
    def weight(self) -> int:
        """Bytes of heartbeats, and of names in their rows, that are in it."""

    def __len__(self) -> int:
        """Return the number of heartbeats, and of rows without one."""

    def add(self, data: bytes) -> bool:
        """Add a heartbeat; return whether it was taken."""

    def refuse(self, reason: str | None) -> None:
        """Add a row without a heartbeat."""

    def finish(self) -> dict[str, pa.Array]:
        """Return the columns."""


class Engine(NamedTuple):
    """What heartbeats are decoded with."""

    #: ``compiled`` or ``interpreted``.
    name: str
    builder: type[Builder]


INTERPRETED: Final = Engine("interpreted", plain.Builder)


def load() -> Engine:
    """Return the compiled engine, or the interpreted one where it was not built."""
    try:
        return Engine("compiled", import_module(_MODULE).Builder)
    except ImportError:
        return INTERPRETED


def warn_if_interpreted() -> None:
    """Log why the compiled engine does not run, if it does not, and what to do."""
    try:
        import_module(_MODULE)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == _MODULE
        log.warning(
            "heartbeats are decoded in plain Python, which takes some fifteen times the CPU: %s;"
            " install a C compiler and Python's headers (Debian: apt-get install gcc python3-dev),"
            " then stormkeeper anew",
            "no C compiler was there when stormkeeper was installed"
            if is_absent
            else f"the compiled module cannot be loaded: {error}",
        )
