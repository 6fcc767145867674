"""Stores of heartbeats at ``/workerbeats/<storm id>/<node>-<port>``.

Workers send and may not read, others read and remove. A heartbeat goes to one Pacemaker, a removal
to all. A reading asks all at once, and the newest copy wins; the coverage of each server says how
long a silence a missing heartbeat proves.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from stormkeeper import paths
from stormkeeper.heartbeats.coverage import Coverage, Heartbeats
from stormkeeper.heartbeats.follower import HeartbeatFollower
from stormkeeper.pacemaker.client.pool import PacemakerPool, connect
from stormkeeper.pacemaker.client.server_reads import Heartbeat
from stormkeeper.paths import WORKERBEATS

if TYPE_CHECKING:
    from stormkeeper.conf import Conf
    from stormkeeper.pacemaker.client.client_settings import Role

__all__ = ["Heartbeat", "HeartbeatSender", "HeartbeatStore", "Heartbeats"]

Value = TypeVar("Value")


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend Python's garbage collection.

    Cycle searches over 72,000 workers take more than half of a reading of ages.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class HeartbeatSender(Protocol):
    """Sends heartbeats. Safe for many threads."""

    def beat(self, path: str, value: bytes) -> None:
        """Set the heartbeat of the worker at `path`.

        Raises `PacemakerError` or `StateError` if no server accepts the heartbeat.
        """
        ...

    def close(self) -> None: ...


class HeartbeatStore(HeartbeatSender, Protocol):
    """Sends, reads and removes heartbeats. Safe for many threads.

    If only some servers answer, returns their heartbeats. All calls raise `PacemakerError` if no
    Pacemaker answered, or `StateError` if ZooKeeper has the heartbeats and did not answer.
    """

    def read(self, path: str) -> Heartbeat | None:
        """Return the heartbeat of exactly `path`, with the value."""
        ...

    def read_all(
        self, path: str = WORKERBEATS, *, values: bool = False, hurried: bool = False
    ) -> Heartbeats:
        """Return the heartbeats at and below a path, with `values` or only ages.

        `hurried`: do not try again for some seconds, and not at all if every Pacemaker failed just
        before.
        """
        ...

    def follower(
        self, decode: Callable[[bytes], Value] | None = None, *, values: bool = True
    ) -> HeartbeatFollower[Value]:
        """Return a mirror of all heartbeats, with values as `decode` makes them, or only ages.

        Without `values` only those are decoded that a Java Pacemaker sends instead of ages.
        """
        ...

    def names(self, path: str = WORKERBEATS) -> list[str]:
        """Return the sorted names directly below a path: topologies, or their workers."""
        ...

    def remove(self, path: str) -> None: ...


class PacemakerHeartbeats:
    """A `HeartbeatStore` in Pacemakers; closes the pool. Safe for many threads."""

    def __init__(self, pool: PacemakerPool) -> None:
        self._pool = pool
        self._sender = pool.sender

    def beat(self, path: str, value: bytes) -> None:
        self._sender.send_pulse(paths.check(path), value)

    def read(self, path: str) -> Heartbeat | None:
        return self._pool.reading(paths.check(path))

    def read_all(
        self, path: str = WORKERBEATS, *, values: bool = False, hurried: bool = False
    ) -> Heartbeats:
        with uncollected():
            began = time.monotonic()
            found = self._pool.read(paths.check(path), values=values, hurried=hurried)
            took = time.monotonic() - began
            coverage = {
                str(server): Coverage.of(answer, seconds_ago=took)
                for server, answer in found.servers.items()
            }
            return Heartbeats(found.by_path, coverage)

    def follower(
        self, decode: Callable[[bytes], Value] | None = None, *, values: bool = True
    ) -> HeartbeatFollower[Value]:
        return HeartbeatFollower(
            self.read_all, self._pool, path=WORKERBEATS, decode=decode, values=values
        )

    def names(self, path: str = WORKERBEATS) -> list[str]:
        return self._pool.children(paths.check(path))

    def remove(self, path: str) -> None:
        """Delete on all servers that answer; on the others the heartbeats expire."""
        self._pool.delete_path(paths.check(path))

    def close(self) -> None:
        self._pool.close()


def connect_heartbeats(conf: Conf, role: Role = "reader") -> PacemakerHeartbeats:
    """Return the heartbeats in the configured Pacemakers, as `pool.connect`."""
    return PacemakerHeartbeats(connect(conf, role=role))
