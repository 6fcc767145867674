"""Heartbeats in Pacemakers.

A heartbeat goes to one of them. What is read is asked of all at once, and the newest copy counts
(`stormkeeper.pacemaker.client.pool_reads`). A removal goes to all.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from stormkeeper import paths
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.protocols import Heartbeat, Heartbeats
from stormkeeper.heartbeats.uncollected import uncollected
from stormkeeper.pacemaker.client.pool import PacemakerPool, connect
from stormkeeper.paths import WORKERBEATS

if TYPE_CHECKING:
    from stormkeeper.conf import Conf


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


def sender(conf: Conf) -> PacemakerHeartbeats:
    """Return the sender that the configuration describes; nothing is connected yet.

    It authenticates only where ``pacemaker.auth.writes`` is true, and may not read where a
    Pacemaker wants readers to authenticate.

    Raises
    ------
    ConfigError
        No Pacemaker is configured, or a file that authentication or TLS needs is missing or wrong.
    """
    return PacemakerHeartbeats(connect(conf, role="writer"))


def reader(conf: Conf) -> PacemakerHeartbeats:
    """Return the reader that the configuration describes; else as `sender`."""
    return PacemakerHeartbeats(connect(conf))
