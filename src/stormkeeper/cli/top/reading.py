"""Looks at all Pacemakers at once, by what changed on each since the look before."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from stormkeeper.cli.top.statistics import PulseChange, ServerLook, State, Told
from stormkeeper.errors import (
    NotAuthorizedError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.heartbeats import following
from stormkeeper.heartbeats.following import Position
from stormkeeper.pacemaker.client import PacemakerClient


class Watcher:
    """Reads every server's changes, each from where the look before ended.

    Parameters
    ----------
    clients
        One of each server; they are closed with the watcher.
    clock
        Returns monotonic seconds.
    """

    def __init__(
        self, clients: Iterable[PacemakerClient], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        #: Where the next look at each server begins.
        self._positions: dict[PacemakerClient, Position | None] = dict.fromkeys(clients)
        self._threads = ThreadPoolExecutor(len(self._positions), "storm-heartbeats-top")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._positions:
            client.close()  # whoever waits for an answer ends at once
        self._threads.shutdown()

    def look(self) -> list[ServerLook]:
        """ServerLook at all servers; costs the slowest, or the clients' deadline."""
        return list(self._threads.map(self._look, self._positions))

    def _look(self, client: PacemakerClient) -> ServerLook:
        server = str(client.address)
        try:
            # Ages and sizes are all that is shown.
            look = following.look(
                client, position=self._positions[client], values=False, clock=self._clock
            )
        except UnsupportedExtensionError:
            problem = "it is not one of ours and tells no changes; its pulses are not shown"
            return ServerLook(server, self._clock(), State.PLAIN, problem)
        except NotAuthorizedError as error:
            return ServerLook(server, self._clock(), State.REFUSED, str(error))
        except StormkeeperError as error:
            return ServerLook(server, self._clock(), State.DOWN, str(error))
        self._positions[client] = look.position
        info = look.info
        told = Told(
            info.instance,
            info.version,
            info.uptime_ms / 1000,
            info.horizon_ms / 1000,
            info.keys,
            info.pulses_received,
            info.connections,
        )
        changes = [
            PulseChange(change.path, change.size, page.read_at - (change.age_secs or 0.0))
            for page in look.pages
            for change in page.changes
        ]
        return ServerLook(server, self._clock(), told=told, changes=changes, is_anew=look.is_anew)
