"""What the Pacemakers say of themselves when a batch is planned.

All are asked at once and within one wait, so a server that hangs costs a trigger one timeout,
whatever the number of servers, and the others nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stormkeeper.conf import Address
from stormkeeper.errors import StormkeeperError
from stormkeeper.pacemaker.client.settings import ClientSettings
from stormkeeper.pipeline.offsets import WITHOUT_REVISIONS, Position

CLIENT_NAME = "spark-pacemaker"

#: Without authentication and TLS.
_PLAIN = ClientSettings()


@dataclass(frozen=True, slots=True)
class Health:
    """One server at one moment, seen from here.

    Parameters
    ----------
    read_at
        The moment: seconds since the epoch, on this machine's clock.
    error
        Why it could not be used; None when it answered.
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


def look(server: Address, timeout_secs: float, settings: ClientSettings = _PLAIN) -> Health:
    """Ask one server how it is; never raises for what the server does or does not do.

    Raises
    ------
    ConfigError
        When the JAAS file, or what must stand in it, is missing or wrong.
    """
    client = settings.client(
        server, name=CLIENT_NAME, try_timeout=timeout_secs, retries=0, deadline=timeout_secs
    )
    try:
        with client:
            info = client.server_info()
    except StormkeeperError as error:
        return Health(time.time(), error=str(error) or type(error).__name__)
    if info is None or "changes" not in info.extensions:
        return Health(time.time(), position=Position(WITHOUT_REVISIONS, 0))
    return Health(
        time.time(),
        position=Position(info.instance, info.revision),
        uptime_secs=info.uptime_ms / 1000,
        horizon_secs=info.horizon_ms / 1000,
        keys=info.keys,
    )


def look_at_all(
    servers: Sequence[Address], timeout_secs: float, settings: ClientSettings = _PLAIN
) -> Mapping[str, Health]:
    """Ask every server at once; the answers by ``host:port``, in the order of `servers`."""
    with ThreadPoolExecutor(len(servers), thread_name_prefix="pacemaker-health") as threads:
        answers = threads.map(lambda server: look(server, timeout_secs, settings), servers)
        return {str(server): health for server, health in zip(servers, answers, strict=True)}
