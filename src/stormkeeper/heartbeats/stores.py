"""Stores of heartbeats at ``/workerbeats/<storm id>/<node>-<port>``.

Workers send and may not read, others read and remove. A heartbeat goes to one Pacemaker. A reading
asks all at once, and the newest copy wins; it includes the coverage of each server, as a missing
heartbeat proves no longer silence. A removal goes to all.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stormkeeper import paths
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.pacemaker.client.pool import PacemakerPool, connect
from stormkeeper.pacemaker.client.server_reads import Heartbeat
from stormkeeper.paths import WORKERBEATS

if TYPE_CHECKING:
    from stormkeeper.conf import Conf


__all__ = ["Heartbeat", "HeartbeatReader", "HeartbeatSender", "HeartbeatStore", "Heartbeats"]


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """A reading: each worker's newest heartbeat on servers that answered, and all coverage."""

    by_path: Mapping[str, Heartbeat]
    coverage: Mapping[str, Coverage]

    @property
    def missing(self) -> dict[str, str]:
        """The servers that did not answer, with the reasons."""
        return {name: one.error for name, one in self.coverage.items() if one.error is not None}


class HeartbeatSender(Protocol):
    """Sends heartbeats. Safe for many threads."""

    def beat(self, path: str, value: bytes) -> None:
        """Set the heartbeat of the worker at `path`.

        Raises `PacemakerError` or `StateError` if no server accepts it.
        """
        ...

    def close(self) -> None:
        """Disconnect; `beat` fails afterwards."""
        ...


class HeartbeatReader(Protocol):
    """Reads and removes heartbeats. Safe for many threads.

    If only some servers answer, their heartbeats are returned. All calls raise `PacemakerError` if
    no Pacemaker answered, or `StateError` if ZooKeeper has the heartbeats and did not answer.
    """

    def read(self, path: str) -> Heartbeat | None:
        """Return the heartbeat of exactly `path`, with its value, or None."""
        ...

    def read_all(
        self, path: str = WORKERBEATS, *, values: bool = False, hurried: bool = False
    ) -> Heartbeats:
        """Return the heartbeats at and below a path, with `values` or only ages.

        `hurried`: ask each Pacemaker once, instead of trying for some seconds.
        """
        ...

    def read_each(self, paths: Collection[str]) -> dict[str, Heartbeat]:
        """Return the heartbeats of some workers of one topology, with values, by path."""
        ...

    def names(self, path: str = WORKERBEATS) -> list[str]:
        """Return the names directly below a path, sorted: topologies, or their workers."""
        ...

    def remove(self, path: str) -> None:
        """Delete the heartbeats at and below a path on every server."""
        ...

    def close(self) -> None:
        """Disconnect; all other calls fail afterwards."""
        ...


class HeartbeatStore(HeartbeatReader, HeartbeatSender, Protocol):
    """Sends, reads and removes heartbeats, as daemons may. Safe for many threads."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend Python's garbage collection.

    Searching the objects of 72,000 workers for cycles takes more than half of the time of reading
    their ages.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class PacemakerHeartbeats:
    """The heartbeats in Pacemakers, a `HeartbeatStore`; closes the pool. Safe for many threads."""

    def __init__(self, pool: PacemakerPool) -> None:
        self._pool = pool

    def beat(self, path: str, value: bytes) -> None:
        """See `HeartbeatSender.beat`."""
        self._pool.send_pulse(paths.check(path), value)

    def read(self, path: str) -> Heartbeat | None:
        """See `HeartbeatReader.read`."""
        return self._pool.reading(paths.check(path))

    def read_all(
        self, path: str = WORKERBEATS, *, values: bool = False, hurried: bool = False
    ) -> Heartbeats:
        """See `HeartbeatReader.read_all`."""
        with uncollected():
            began = time.monotonic()
            found = self._pool.read(paths.check(path), values=values, hurried=hurried)
            took = time.monotonic() - began
            coverage = {
                str(server): Coverage.of(answer, seconds_ago=took)
                for server, answer in found.servers.items()
            }
            return Heartbeats(found.by_path, coverage)

    def read_each(self, paths: Collection[str]) -> dict[str, Heartbeat]:
        """See `HeartbeatReader.read_each`; sends one request for the topology."""
        if not paths:
            return {}
        (above,) = {path.rpartition("/")[0] for path in paths}
        found = self.read_all(above, values=True).by_path
        return {path: found[path] for path in paths if path in found}

    def names(self, path: str = WORKERBEATS) -> list[str]:
        """See `HeartbeatReader.names`."""
        return self._pool.children(paths.check(path))

    def remove(self, path: str) -> None:
        """See `HeartbeatReader.remove`; a server that does not answer now deletes them later."""
        self._pool.delete_path(paths.check(path))

    def close(self) -> None:
        """See `HeartbeatReader.close`."""
        self._pool.close()


def pacemaker_sender(conf: Conf) -> PacemakerHeartbeats:
    """Return the sender of a configuration, not connected yet.

    It authenticates only with ``pacemaker.auth.writes``. Raises `ConfigError` without Pacemakers,
    or for a bad file of authentication or TLS.
    """
    return PacemakerHeartbeats(connect(conf, role="writer"))


def pacemaker_reader(conf: Conf) -> PacemakerHeartbeats:
    """Return the reader of a configuration; as `pacemaker_sender`."""
    return PacemakerHeartbeats(connect(conf))
