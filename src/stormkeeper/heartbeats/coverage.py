"""Coverage: which Pacemakers answered, and for how long each can vouch for silence.

A missing pulse is evidence only if its server would have it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stormkeeper.conf import Address
from stormkeeper.errors import StormkeeperError
from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS, Position
from stormkeeper.pacemaker.client.client_settings import ClientSettings
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.pacemaker.client.server_reads import Heartbeat
from stormkeeper.thrift.pacemaker import ServerInfo


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of a server at `read_at`, seconds since the epoch on this machine's clock.

    Without an answer only `error` is set. `horizon_secs` is the shortest proven silence of a path
    without a pulse, `keys` the number of pulses; a Java Pacemaker has neither, nor an uptime.
    """

    read_at: float
    error: str | None = None
    position: Position | None = None
    uptime_secs: float | None = None
    horizon_secs: float | None = None
    keys: int | None = None

    @property
    def is_reachable(self) -> bool:
        return self.error is None

    @classmethod
    def failed(cls, error: StormkeeperError) -> Coverage:
        return cls(time.time(), error=str(error) or type(error).__name__)

    @classmethod
    def of(
        cls, answer: ServerInfo | StormkeeperError | None, *, seconds_ago: float = 0.0
    ) -> Coverage:
        """Return the coverage for an answer received now, None from a Java Pacemaker.

        The reading of heartbeats began `seconds_ago`: later heartbeats may be missing.
        """
        if isinstance(answer, StormkeeperError):
            return cls.failed(answer)
        if answer is None:
            return cls(time.time(), position=Position(WITHOUT_REVISIONS, 0))
        return cls(
            time.time(),
            position=Position(answer.instance, answer.revision),
            uptime_secs=answer.uptime_ms / 1000,
            horizon_secs=max(0.0, answer.horizon_ms / 1000 - seconds_ago),
            keys=answer.keys,
        )


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """A reading: workers' newest heartbeats on servers that answered, and all coverage."""

    by_path: Mapping[str, Heartbeat]
    coverage: Mapping[str, Coverage]


def ask(
    servers: Sequence[Address],
    timeout_secs: float,
    settings: ClientSettings,
    *,
    name: str = "coverage",
) -> Mapping[str, Coverage]:
    """Ask all servers at once, without retries; return coverage by ``host:port``, in order.

    Raises only `ConfigError`, for an invalid JAAS file.
    """
    with PacemakerPool(
        servers,
        name=name,
        settings=settings,
        try_timeout=timeout_secs,
        retries=0,
        deadline=timeout_secs,
    ) as pool:
        return {str(server): Coverage.of(answer) for server, answer in pool.server_infos().items()}


def unproven_on(
    infos: Mapping[Address, ServerInfo | StormkeeperError | None],
    since_secs: float,
    timeout_secs: float,
) -> dict[Address, ServerInfo]:
    """Return the servers on which a missing pulse does not prove that the worker is gone.

    Proof is an uptime from before the pulse was seen, `since_secs` ago, or a horizon of
    `timeout_secs`, after which every live worker has a pulse. A Java Pacemaker is trusted.
    """
    return {
        server: info
        for server, info in infos.items()
        if not (info is None or isinstance(info, StormkeeperError))
        and info.uptime_ms < since_secs * 1000
        and info.horizon_ms < timeout_secs * 1000
    }
