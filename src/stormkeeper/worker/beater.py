"""Sends a worker's heartbeats on a fixed schedule, whatever the Pacemakers do.

A heartbeat that cannot be sent is dropped: the next one says more. A series of failures is logged
when it begins and when it ends. It never ends the worker.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from stormkeeper.errors import StormkeeperError
from stormkeeper.heartbeats.protocols import HeartbeatSender

log = logging.getLogger(__name__)


def next_due(due: float, period: float, now: float) -> float:
    """Return when the beat after the one of `due` is due: always later than `now`.

    The schedule is `due` plus whole periods. A beat whose time has passed, because a call took long
    or the machine slept, is left out. So there is no burst afterwards.
    """
    return due + period * max(1, math.floor((now - due) / period) + 1)


class Beater:
    """A thread that sends a heartbeat at once and then every `period_secs`, until it is closed.

    Parameters
    ----------
    connect
        Returns what sends them; called again after it raised.
    path
        Where a heartbeat goes.
    heartbeat
        Returns the heartbeat of this moment, serialised.
    period_secs
        Time between two heartbeats.
    on_first
        Called once, after the first heartbeat was taken.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        connect: Callable[[], HeartbeatSender],
        path: str,
        heartbeat: Callable[[], bytes],
        *,
        period_secs: float,
        on_first: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._path = path
        self._heartbeat = heartbeat
        self._period = period_secs
        self._on_first: Callable[[], None] | None = on_first
        self._clock = clock
        self._sender: HeartbeatSender | None = None
        self._failing_since: float | None = None
        #: When a beat last came round, taken or not; None before the first one has.
        self.beaten_at: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-heartbeat", daemon=True)

    def start(self) -> None:
        """Send the first heartbeat now, in the thread."""
        self._thread.start()

    def close(self, timeout_secs: float) -> None:
        """Send one last heartbeat and end, within `timeout_secs`; what takes longer is left."""
        self._closing.set()
        if self._thread.ident is None:  # it never began
            return
        self._thread.join(timeout_secs)
        if self._thread.is_alive():
            log.warning("the last heartbeat was not taken within %.1f s", timeout_secs)

    def _run(self) -> None:
        due = self._clock()
        while not self._closing.is_set():
            self._beat()
            due = next_due(due, self._period, self._clock())
            self._closing.wait(max(0.0, due - self._clock()))
        self._beat()
        if self._sender is not None:
            self._sender.close()

    def _beat(self) -> None:
        try:
            if self._sender is None:
                self._sender = self._connect()
            self._sender.beat(self._path, self._heartbeat())
        except StormkeeperError as error:
            if self._failing_since is None:
                self._failing_since = self._clock()
                log.warning("heartbeats do not go out, the worker goes on without: %s", error)
        except Exception:
            # A fault of ours: said once, and no reason to end a worker that works.
            if self._failing_since is None:
                self._failing_since = self._clock()
                log.exception("heartbeats do not go out, the worker goes on without")
        else:
            self._taken()
        self.beaten_at = self._clock()

    def _taken(self) -> None:
        if self._failing_since is not None:
            log.info("heartbeats go out again after %.1f s", self._clock() - self._failing_since)
            self._failing_since = None
        if self._on_first is not None:
            on_first, self._on_first = self._on_first, None
            try:
                on_first()
            except Exception:
                # Such as a stdout that nobody reads any more: no reason to stop beating.
                log.exception("the first heartbeat was taken, and telling so failed")
