"""Looks at all Pacemakers at once, by what changed on each since the look before."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from stormkeeper.cli.top.ledger import Change, Look, State, Told
from stormkeeper.errors import (
    NotAuthorizedError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.paths import WORKERBEATS


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
        self._readers = [_Reader(client, clock) for client in clients]
        self._threads = ThreadPoolExecutor(len(self._readers), "storm-heartbeats-top")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for reader in self._readers:
            reader.client.close()  # whoever waits for an answer ends at once
        self._threads.shutdown()

    def look(self) -> list[Look]:
        """Look at all servers; costs the slowest, or the clients' deadline."""
        return list(self._threads.map(_Reader.look, self._readers))


class _Reader:
    def __init__(self, client: PacemakerClient, clock: Callable[[], float]) -> None:
        self.client = client
        self._clock = clock
        self._instance: str | None = None
        self._after = 0

    def look(self) -> Look:
        server = str(self.client.address)
        try:
            return self._read(server)
        except UnsupportedExtensionError:
            problem = "it is not one of ours and tells no changes; its pulses are not shown"
            return Look(server, self._clock(), State.PLAIN, problem)
        except NotAuthorizedError as error:
            return Look(server, self._clock(), State.REFUSED, str(error))
        except StormkeeperError as error:
            return Look(server, self._clock(), State.DOWN, str(error))

    def _read(self, server: str) -> Look:
        instance, after = self._instance, self._after
        is_anew = instance is None
        changes: list[Change] = []
        more = True
        while more:
            page = self.client.changes(WORKERBEATS, after, 0, instance)
            if page.reset or (instance is not None and page.instance != instance):
                is_anew = True
                changes.clear()
            now = self._clock()
            # The details themselves are let go at once: a page is a megabyte, all may be hundreds.
            changes.extend(
                Change(
                    change.path,
                    None if change.details is None else len(change.details),
                    now - change.age_ms / 1000,
                )
                for change in page.changes
            )
            instance, after, more = page.instance, page.next, page.more
        info = self.client.server_info()
        if info is None or info.instance != instance:
            # Started again between the two: the next look reads it anew.
            self._instance = None
            return Look(server, self._clock(), State.DOWN, f"{server} is starting")
        # Only a look that is complete moves the place: what an error cut off is read again.
        self._instance, self._after = instance, after
        told = Told(
            info.instance,
            info.version,
            info.uptime_ms / 1000,
            info.horizon_ms / 1000,
            info.keys,
            info.pulses_received,
            info.connections,
        )
        return Look(server, self._clock(), told=told, changes=changes, is_anew=is_anew)
