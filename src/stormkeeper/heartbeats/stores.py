"""What may be done with heartbeats: workers beat and may not read, others read.

A heartbeat's path is that of its worker, ``/workerbeats/<storm id>/<node>-<port>``. A read says,
beside the heartbeats, how far back each server can vouch: a heartbeat that is missing proves a
silence no longer than that (`stormkeeper.heartbeats.liveness`).
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
    """Heartbeats as they were read at one moment.

    Parameters
    ----------
    by_path
        The newest heartbeat of each worker.
    coverage
        Of every server, by name, those included that did not answer: what they hold is missing.
    """

    by_path: Mapping[str, Heartbeat]
    coverage: Mapping[str, Coverage]

    @property
    def missing(self) -> dict[str, str]:
        """The servers that did not answer, and why."""
        return {name: one.error for name, one in self.coverage.items() if one.error is not None}


class HeartbeatSender(Protocol):
    """Sends heartbeats. Safe for many threads."""

    def beat(self, path: str, value: bytes) -> None:
        """Make `value` the heartbeat of the worker at `path`.

        Raises
        ------
        PacemakerError, StateError
            No server took it.
        """
        ...

    def close(self) -> None:
        """End what was opened to send; a second time does nothing, and `beat` fails then."""
        ...


class HeartbeatReader(Protocol):
    """Reads and removes heartbeats. Safe for many threads.

    Notes
    -----
    Where some servers answer, what they say is returned. Every call raises a `PacemakerError` where
    no Pacemaker answered, or a `StateError` where ZooKeeper has the heartbeats and did not.
    """

    def read(self, path: str) -> Heartbeat | None:
        """Return the heartbeat of exactly `path`, with its value; None if there is none."""
        ...

    def read_all(
        self, path: str = WORKERBEATS, *, values: bool = False, hurried: bool = False
    ) -> Heartbeats:
        """Return the heartbeats at and below a path: all, those of a topology, or one.

        Parameters
        ----------
        values
            Whether to read the values too. Who is alive is told by the ages.
        hurried
            Whether Pacemakers are asked once: while none of them answers, it fails soon. Others
            try for some seconds.
        """
        ...

    def read_each(self, paths: Collection[str]) -> dict[str, Heartbeat]:
        """Return the heartbeats of some workers of one topology, with their values, by path."""
        ...

    def names(self, path: str = WORKERBEATS) -> list[str]:
        """Return the names directly below a path, sorted: of topologies, or of their workers."""
        ...

    def remove(self, path: str) -> None:
        """Delete the heartbeats at and below a path, on every server; none is fine."""
        ...

    def close(self) -> None:
        """End what was opened to read; a second time does nothing, and every other call fails."""
        ...


class HeartbeatStore(HeartbeatReader, HeartbeatSender, Protocol):
    """Does both, as daemons may. Safe for many threads."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python from looking for unreachable objects meanwhile.

    A read makes a few objects for each worker, which refer to nothing that refers to them. Python
    would look through all of them again and again: of 72,000 ages that is more than half of the
    time, and of judging so many workers a quarter.
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
    """A `HeartbeatReader` and a `HeartbeatSender`. Safe for many threads.

    Parameters
    ----------
    pool
        The Pacemakers; closed with this.
    """

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
            return self._read_all(paths.check(path), values=values, hurried=hurried)

    def _read_all(self, path: str, *, values: bool, hurried: bool) -> Heartbeats:
        began = time.monotonic()
        found = self._pool.read(path, values=values, hurried=hurried)
        took = time.monotonic() - began
        coverage = {
            str(server): Coverage.of(answer, seconds_ago=took)
            for server, answer in found.servers.items()
        }
        return Heartbeats(found.by_path, coverage)

    def read_each(self, paths: Collection[str]) -> dict[str, Heartbeat]:
        """See `HeartbeatReader.read_each`; one request for the topology, not one for each."""
        if not paths:
            return {}
        (above,) = {path.rpartition("/")[0] for path in paths}
        found = self.read_all(above, values=True).by_path
        return {path: found[path] for path in paths if path in found}

    def names(self, path: str = WORKERBEATS) -> list[str]:
        """See `HeartbeatReader.names`."""
        return self._pool.children(paths.check(path))

    def remove(self, path: str) -> None:
        """See `HeartbeatReader.remove`; a server that does not answer now does so when it does."""
        self._pool.delete_path(paths.check(path))

    def close(self) -> None:
        """See `HeartbeatReader.close`."""
        self._pool.close()


def pacemaker_sender(conf: Conf) -> PacemakerHeartbeats:
    """Return the sender that the configuration describes; nothing is connected yet.

    It authenticates only where ``pacemaker.auth.writes`` is true, and may not read where a
    Pacemaker wants readers to authenticate.

    Raises
    ------
    ConfigError
        No Pacemaker is configured, or a file that authentication or TLS needs is missing or wrong.
    """
    return PacemakerHeartbeats(connect(conf, role="writer"))


def pacemaker_reader(conf: Conf) -> PacemakerHeartbeats:
    """Return the reader that the configuration describes; else as `sender`."""
    return PacemakerHeartbeats(connect(conf))
