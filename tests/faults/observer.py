"""Follows the pulses of a fleet on several Pacemakers, and judges the workers as a reader does."""

import threading
import time
from collections.abc import Sequence
from typing import Final, Self

from stormkeeper import paths
from stormkeeper.conf import Address
from stormkeeper.errors import StormkeeperError
from stormkeeper.heartbeats import liveness
from stormkeeper.pacemaker.client import PacemakerClient
from support.liveness_steps import step
from support.messages import rows_of
from support.waiting import DEADLINE_SECS

_LOOK_SECS: Final = 0.5
#: Longest that a server may take to answer a look before it counts as silent, in seconds.
_PATIENCE_SECS: Final = 2.0


class Observer:
    """Looks at every server twice a second; use it as a context manager.

    The longest silence of each path is kept, by receipt at whichever server, and every worker that
    the liveness rules ever called dead.
    """

    def __init__(self, servers: Sequence[str], *, timeout_secs: float) -> None:
        self._servers = servers
        self._limits = liveness.LivenessLimits(timeout_secs / 2, timeout_secs)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._rows: list[liveness.WorkerLiveness] = []
        self._news: dict[str, tuple[list[liveness.WorkerBeat], liveness.ServerHorizon]] = {}
        self._last: dict[str, float] = {}
        #: Longest time between two receipts, by path, in seconds.
        self.silences: dict[str, float] = {}
        self.received = 0
        self.dead: set[paths.WorkerId] = set()

    def __enter__(self) -> Self:
        self._threads = [
            threading.Thread(target=self._follow, args=(server,), daemon=True)
            for server in self._servers
        ]
        self._threads.append(threading.Thread(target=self._judge, daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(DEADLINE_SECS)

    def seen_since(self, moment: float) -> set[str]:
        """Return the paths that a server received a pulse of after `moment` (monotonic)."""
        with self._lock:
            return {path for path, received in self._last.items() if received > moment}

    def longest_silence(self, now: float) -> float:
        """Return the longest silence of any path, those that last at `now` included."""
        with self._lock:
            running = [now - received for received in self._last.values()]
            return max([*self.silences.values(), *running])

    def _follow(self, server: str) -> None:
        instance, after = None, 0
        client = PacemakerClient(Address.parse(server, 6699), try_timeout=_PATIENCE_SECS, retries=0)
        with client:
            while not self._over.wait(_LOOK_SECS):
                try:
                    info = client.server_info()
                    changes, more = [], True
                    while more:
                        page = client.changes(paths.WORKERBEATS, after, 0, instance)
                        now, wall = time.monotonic(), time.time()
                        changes += [(change, now, wall) for change in rows_of(page.columns)]
                        instance, after, more = page.instance, page.next, page.more
                except StormkeeperError:
                    with self._lock:
                        beats, _ = self._news.get(server, ([], None))
                        self._news[server] = (beats, liveness.ServerHorizon(False, None))
                    continue
                assert info is not None
                with self._lock:
                    self.received += len(changes)
                    beats, _ = self._news.get(server, ([], None))
                    for change, now, wall in changes:
                        received = now - change.age_ms / 1000
                        before = self._last.get(change.path)
                        if before is None or received > before:
                            gap = received - before if before is not None else 0.0
                            self.silences[change.path] = max(
                                gap, self.silences.get(change.path, 0.0)
                            )
                            self._last[change.path] = received
                        where = paths.parse_workerbeat(change.path)
                        assert where is not None
                        beats.append(
                            liveness.WorkerBeat(
                                where,
                                server,
                                instance,
                                change.revision,
                                wall - change.age_ms / 1000,
                            )
                        )
                    self._news[server] = (
                        beats,
                        liveness.ServerHorizon(True, info.horizon_ms / 1000),
                    )

    def _judge(self) -> None:
        while not self._over.wait(2 * _LOOK_SECS):
            with self._lock:
                beats = [beat for found, _ in self._news.values() for beat in found]
                servers = {server: state for server, (_, state) in self._news.items()}
                self._news = {server: ([], state) for server, (_, state) in self._news.items()}
            self._rows = step(
                self._rows, beats, [], servers, now=time.time(), limits=self._limits
            ).rows
            self.dead |= {r.worker for r in self._rows if r.status is liveness.Status.DEAD}
