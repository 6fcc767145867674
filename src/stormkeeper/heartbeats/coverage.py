"""How far back each Pacemaker can vouch: which answered, why others did not, and their horizons.

A pulse that is missing says something only where the server would have it. So what is read of
heartbeats comes with the coverage of each server. All are asked at once and within one wait: a
server that hangs costs one timeout, whatever the number of servers, and the others nothing.
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
from stormkeeper.thrift.pacemaker import ServerInfo

#: Without authentication and TLS.
_PLAIN = ClientSettings()


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one server can vouch for at one moment, seen from here.

    Parameters
    ----------
    read_at
        The moment: seconds since the epoch, on this machine's clock.
    error
        Why it could not be read; None when it answered.
    position
        Its instance and newest revision; None when it did not answer.
    uptime_secs
        Since its start; None when it did not answer or does not tell.
    horizon_secs
        For how long a path without a pulse has been silent there, at least; likewise.
    keys
        How many pulses it holds; likewise.
    """

    read_at: float
    error: str | None = None
    position: Position | None = None
    uptime_secs: float | None = None
    horizon_secs: float | None = None
    keys: int | None = None

    @property
    def is_reachable(self) -> bool:
        """Whether it answered."""
        return self.error is None

    @classmethod
    def failed(cls, error: StormkeeperError) -> Coverage:
        """Return that of a server that could not be read."""
        return cls(time.time(), error=str(error) or type(error).__name__)

    @classmethod
    def of(
        cls, answer: ServerInfo | StormkeeperError | None, *, seconds_ago: float = 0.0
    ) -> Coverage:
        """Return what follows from a server's answer, which was received now.

        Parameters
        ----------
        answer
            What it told of itself; None from a Java Pacemaker; or why it could not be read.
        seconds_ago
            When reading its heartbeats began: what came since then may be missing in them.
        """
        if isinstance(answer, StormkeeperError):
            return cls.failed(answer)
        if answer is None or "changes" not in answer.extensions:
            return cls(time.time(), position=Position(WITHOUT_REVISIONS, 0))
        return cls(
            time.time(),
            position=Position(answer.instance, answer.revision),
            uptime_secs=answer.uptime_ms / 1000,
            horizon_secs=max(0.0, answer.horizon_ms / 1000 - seconds_ago),
            keys=answer.keys,
        )


def ask(
    servers: Sequence[Address],
    timeout_secs: float,
    settings: ClientSettings = _PLAIN,
    *,
    name: str = "coverage",
) -> Mapping[str, Coverage]:
    """Ask servers once; the answers by ``host:port``, in the order of `servers`.

    Parameters
    ----------
    timeout_secs
        How long an answer is waited for.
    settings
        How to talk to the servers.
    name
        Names the clients' threads.

    Raises
    ------
    ConfigError
        When the JAAS file, or what must stand in it, is missing or wrong. It never raises for what
        a server does or does not do.
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
    """Return the servers on which nothing says that a worker is gone if its pulse is not there.

    Parameters
    ----------
    infos
        What each server says of itself. A Java Pacemaker says nothing, and is believed.
    since_secs
        How long ago the pulse was seen: a server that was there already has let it go.
    timeout_secs
        After so much service a server has a pulse of every living worker that writes to it.
    """
    return {
        server: info
        for server, info in infos.items()
        if not (info is None or isinstance(info, StormkeeperError))
        and info.uptime_ms < since_secs * 1000
        and info.horizon_ms < timeout_secs * 1000
    }
