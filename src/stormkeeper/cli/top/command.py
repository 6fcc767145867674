"""Looks at all Pacemakers again and again, by what changed on each; until Ctrl-C, or once."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from stormkeeper.cli.top.statistics import PulseChange, ServerLook, State, Statistics, Told
from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerUnavailableError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.heartbeats import following
from stormkeeper.heartbeats.following import Position
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.settings import ClientSettings

if TYPE_CHECKING:
    from stormkeeper.conf import Conf

#: Seconds without a sign of life of a server after which it counts as down, and after which a look
#: at it is over: a large store takes seconds to read for the first time.
_TRY_SECS: Final = 1.0
_LOOK_SECS: Final = 15.0

#: The oldest pulses that are looked for: as many as any screen shows.
_OLDEST: Final = 50
#: And as many as are told as JSON.
_OLDEST_TOLD: Final = 5

#: Columns outside a terminal, where nothing is cut or left out: more than any line has.
_UNBOUNDED: Final = 10_000

_PERIOD: Final = "task.heartbeat.frequency.secs"
_TIMEOUT: Final = "nimbus.task.timeout.secs"


def run(conf: "Conf", *, interval: float, once: bool, as_json: bool) -> None:
    """Show what the Pacemakers of `conf` hold and receive.

    Parameters
    ----------
    interval
        Seconds from one look to the next.
    once
        Show one picture, after two looks, and return.
    as_json
        One JSON object a line in place of tables.

    Raises
    ------
    ConfigError
        If authentication or TLS is not configured as it must be.
    PacemakerError
        If at the first look no server could be read.
    """
    settings = ClientSettings.of(conf)
    servers = list(dict.fromkeys(conf.pacemaker_servers()))
    statistics = Statistics(
        map(str, servers), period_secs=conf[_PERIOD], timeout_secs=conf[_TIMEOUT]
    )
    clients = [
        settings.client(
            server,
            name="storm-heartbeats-top",
            try_timeout=_TRY_SECS,
            retries=0,
            deadline=_LOOK_SECS,
        )
        for server in servers
    ]
    with ExitStack() as stack:
        watcher = stack.enter_context(Watcher(clients))
        looks = watcher.look()
        _check(looks)
        statistics.take(looks, time.monotonic())
        show = _JsonScreen() if as_json else _Screen(conf[_TIMEOUT], once=once)
        stack.enter_context(show)
        if not once:
            show(statistics)
        while True:
            time.sleep(interval)
            statistics.take(watcher.look(), time.monotonic())
            show(statistics)
            if once:
                return


def _check(looks: Sequence[ServerLook]) -> None:
    """Raise unless a server could be read: a mistyped name does not become right later."""
    if any(look.told is not None for look in looks):
        return
    problems = "; ".join(
        look.problem if look.server in look.problem else f"{look.server}: {look.problem}"
        for look in looks
    )
    if all(look.state is State.DOWN for look in looks):
        raise PacemakerUnavailableError(problems)
    raise StormkeeperError(problems)


class _JsonScreen(ExitStack):
    """One object a line."""

    def __call__(self, statistics: Statistics) -> None:
        summary = statistics.summary(time.monotonic(), _OLDEST_TOLD)
        shown = {"time": datetime.now(UTC).isoformat()} | _rounded(dataclasses.asdict(summary))
        sys.stdout.write(f"{json.dumps(shown)}\n")
        sys.stdout.flush()


class _Screen(ExitStack):
    """Tables: redrawn in place in a terminal, one below the other elsewhere."""

    def __init__(self, timeout_secs: float, *, once: bool) -> None:
        super().__init__()
        # Quick commands do without.
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = _UNBOUNDED
        self._timeout = timeout_secs
        self._live: Live | None = None
        self._is_first = True
        if self._console.is_terminal and not once:
            self._live = Live(console=self._console, auto_refresh=False, screen=True)
            self.enter_context(self._live)

    def __call__(self, statistics: Statistics) -> None:
        from stormkeeper.cli.top.view import render

        drawn = render(
            statistics.summary(time.monotonic(), _OLDEST),
            width=self._console.width,
            height=None if self._live is None else self._console.height,
            timeout_secs=self._timeout,
            title=time.strftime("%H:%M:%S") + (" · Ctrl-C ends" if self._live else ""),
        )
        if self._live is not None:
            self._live.update(drawn, refresh=True)
            return
        if not self._is_first:
            self._console.print()
        self._is_first = False
        self._console.print(drawn)


def _rounded(value: Any) -> Any:
    """Round to the digits that mean something."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


class Watcher(ExitStack):
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
        super().__init__()
        self._clock = clock
        #: Where the next look at each server begins.
        self._positions: dict[PacemakerClient, Position | None] = dict.fromkeys(clients)
        self._threads = self.enter_context(
            ThreadPoolExecutor(len(self._positions), "storm-heartbeats-top")
        )
        for client in self._positions:
            self.callback(client.close)  # before the threads, whose calls then end at once

    def look(self) -> list[ServerLook]:
        """Look at all servers at once; takes as long as the slowest, or the clients' deadline."""
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
