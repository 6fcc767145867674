"""``storm heartbeats top``: reads the changes of all Pacemakers, and draws or prints a summary."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stormkeeper.cli.pulse_statistics import (
    OTHER,
    PulseChange,
    PulseStatistics,
    ServerRead,
    ServerRow,
    ServerState,
    ServerStatus,
    Summary,
    TopologyRow,
    WorkerRow,
)
from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerUnavailableError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.heartbeats import change_pages
from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.names import printable
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.client_settings import ClientSettings

if TYPE_CHECKING:
    from stormkeeper.conf import Conf

#: Seconds of silence after which a server counts as down.
_TRY_SECS: Final = 1.0
#: Deadline of a read, in seconds: the first read of a large store takes several.
_READ_SECS: Final = 15.0

#: Oldest pulses in a summary: more than a screen shows, and those printed as JSON.
_OLDEST: Final = 50
_OLDEST_IN_JSON: Final = 5

#: Columns outside a terminal: more than any line has, so that nothing is cut off.
_UNBOUNDED: Final = 10_000

_PERIOD: Final = "task.heartbeat.frequency.secs"
_TIMEOUT: Final = "nimbus.task.timeout.secs"

#: Columns of a terminal below which less important columns are left out.
WIDE: Final = 100
NARROW: Final = 72

#: Topologies and pulses shown outside a terminal.
TOPOLOGIES: Final = 20
OLDEST: Final = 5

#: Lines that are not rows: title, headings, blank lines, and the count of hidden topologies.
_FRAME_LINES: Final = 9

_STATES: Final = {
    ServerState.SERVING: "green",
    ServerState.FILLING: "yellow",
    ServerState.PLAIN: "yellow",
    ServerState.REFUSED: "bold red",
    ServerState.DOWN: "bold red",
}

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def run(conf: "Conf", *, interval: float, once: bool, as_json: bool) -> None:
    """Show a summary every `interval` seconds until interrupted; with `once`, a single summary.

    Raises `ConfigError` if authentication or TLS is configured wrong, and `StormkeeperError` if the
    first read fails on all servers.
    """
    settings = ClientSettings.of(conf)
    servers = list(dict.fromkeys(conf.pacemaker_servers()))
    statistics = PulseStatistics(
        map(str, servers), period_secs=conf[_PERIOD], timeout_secs=conf[_TIMEOUT]
    )
    clients = [
        settings.client(
            server,
            name="storm-heartbeats-top",
            try_timeout=_TRY_SECS,
            retries=0,
            deadline=_READ_SECS,
        )
        for server in servers
    ]
    with ExitStack() as stack:
        reader = stack.enter_context(_ChangesReader(clients))
        reads = reader.read()
        _check(reads)
        statistics.record(reads, time.monotonic())
        show = _JsonScreen() if as_json else _Screen(conf[_TIMEOUT], once=once)
        stack.enter_context(show)
        if not once:
            show(statistics)
        while True:
            time.sleep(interval)
            statistics.record(reader.read(), time.monotonic())
            show(statistics)
            if once:
                return


def _check(reads: Sequence[ServerRead]) -> None:
    """Raise if all first reads failed: a mistyped address stays wrong."""
    if any(read.status is not None for read in reads):
        return
    problems = "; ".join(
        read.problem if read.server in read.problem else f"{read.server}: {read.problem}"
        for read in reads
    )
    if all(read.state is ServerState.DOWN for read in reads):
        raise PacemakerUnavailableError(problems)
    raise StormkeeperError(problems)


class _ChangesReader(ExitStack):
    """Reads all servers' changes at once, each from the position before; closes the clients."""

    def __init__(
        self, clients: Iterable[PacemakerClient], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._clock = clock
        self._positions: dict[PacemakerClient, Position | None] = dict.fromkeys(clients)
        self._threads = self.enter_context(
            ThreadPoolExecutor(len(self._positions), "storm-heartbeats-top")
        )
        for client in self._positions:
            self.callback(client.close)  # before the threads, whose calls then end at once

    def read(self) -> list[ServerRead]:
        """Read all servers; takes as long as the slowest, at most the clients' deadline."""
        return list(self._threads.map(self._read, self._positions))

    def _read(self, client: PacemakerClient) -> ServerRead:
        server = str(client.address)
        try:
            # Without values: only ages and sizes are shown.
            look = change_pages.look(
                client, position=self._positions[client], values=False, clock=self._clock
            )
        except UnsupportedExtensionError:
            problem = (
                "not a Pacemaker of Stormkeeper: it reports no changes, its pulses are missing"
            )
            return ServerRead(server, self._clock(), ServerState.PLAIN, problem)
        except NotAuthorizedError as error:
            return ServerRead(server, self._clock(), ServerState.REFUSED, str(error))
        except StormkeeperError as error:
            return ServerRead(server, self._clock(), ServerState.DOWN, str(error))
        self._positions[client] = look.position
        info = look.info
        status = ServerStatus(
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
        return ServerRead(
            server, self._clock(), status=status, changes=changes, is_anew=look.is_anew
        )


class _JsonScreen(ExitStack):
    """Prints a JSON object a line."""

    def __call__(self, statistics: PulseStatistics) -> None:
        summary = statistics.summary(time.monotonic(), _OLDEST_IN_JSON)
        shown = {"time": datetime.now(UTC).isoformat()} | _rounded(dataclasses.asdict(summary))
        sys.stdout.write(f"{json.dumps(shown)}\n")
        sys.stdout.flush()


class _Screen(ExitStack):
    """Draws tables: in place on a terminal, below each other elsewhere."""

    def __init__(self, timeout_secs: float, *, once: bool) -> None:
        super().__init__()
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = _UNBOUNDED
        self._timeout = timeout_secs
        self._live: Live | None = None
        self._is_first = True
        if self._console.is_terminal and not once:
            self._live = Live(console=self._console, auto_refresh=False, screen=True)
            self.enter_context(self._live)

    def __call__(self, statistics: PulseStatistics) -> None:
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
    """Round floats to milliseconds and the like."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def render(
    summary: Summary, *, width: int, height: int | None, timeout_secs: float, title: str
) -> RenderableType:
    """Draw a summary for a screen of `width` columns and `height` lines (None: no limit).

    `title` is the end of the first line, such as the time. Workers whose newest pulse is older than
    `timeout_secs` are silent.
    """
    parts: list[RenderableType] = [
        _title(summary, title),
        Text(),
        _servers(summary.servers, width),
    ]
    parts += [_problem(row) for row in summary.servers if row.problem]
    rows, oldest = _rows(summary, height)
    if not summary.topologies:
        parts += [Text(), Text("no pulses are held", style="dim")]
        return Group(*parts)
    parts += [Text(), _topologies(summary.topologies[:rows], width)]
    hidden = len(summary.topologies) - rows
    if hidden > 0:
        parts.append(Text(f"  and {hidden} more topologies", style="dim"))
    parts += [Text(), _oldest(summary.oldest[:oldest], width, timeout_secs)]
    return Group(*parts)


def _rows(summary: Summary, height: int | None) -> tuple[int, int]:
    """Return how many topologies and how many oldest pulses fit."""
    if height is None:
        return TOPOLOGIES, OLDEST
    problems = sum(bool(row.problem) for row in summary.servers)
    room = max(2, height - _FRAME_LINES - len(summary.servers) - 2 * problems)
    # A third of the lines, and those that topologies do not fill, is for the oldest pulses.
    topologies = max(1, min(len(summary.topologies), room - room // 3))
    return topologies, max(1, room - topologies)


def _title(summary: Summary, title: str) -> Text:
    serving = sum(
        row.state in (ServerState.SERVING, ServerState.FILLING) for row in summary.servers
    )
    text = Text(overflow="fold")
    text.append(_count(summary.workers, "worker", "workers"), style="bold")
    text.append(f" of {_count(len(summary.topologies), 'topology', 'topologies')}")
    text.append(f" · {serving} of {_count(len(summary.servers), 'Pacemaker', 'Pacemakers')}")
    text.append(f" · {_rate(summary.pulses_per_s)} pulses/s · {_flow(summary.bytes_per_s)}")
    if summary.silent:
        text.append(f" · {summary.silent:,} silent", style="bold red")
    text.append(f"   {title}", style="dim")
    return text


def _servers(rows: Sequence[ServerRow], width: int) -> Table:
    columns = ["Pacemaker", "state", "pulses", "pulses/s"]
    if width >= NARROW:
        columns += ["clients", "up", "unbroken for"]
    if width >= WIDE:
        columns.append("version")
    table = _table(columns)
    for row in rows:
        cells: list[str | Text] = [
            _name(row.address),
            Text(row.state, style=_STATES[row.state]),
            _number(row.keys),
            _rate(row.pulses_per_s) if row.keys is not None else "",
            _number(row.connections),
            _duration(row.uptime_secs),
            _duration(row.horizon_secs),
            row.version or "",
        ]
        table.add_row(*cells[: len(columns)])
    return table


def _topologies(rows: Sequence[TopologyRow], width: int) -> Table:
    columns = ["topology", "workers", "pulses/s", "bytes/s"]
    if width >= NARROW:
        columns += ["silent", "oldest"]
    if width >= WIDE:
        columns.append("mean size")
    table = _table(columns)
    for row in rows:
        cells: list[str | Text] = [
            _name(row.topology, "dim" if row.topology == OTHER else ""),
            f"{row.workers:,}",
            _rate(row.pulses_per_s),
            _flow(row.bytes_per_s),
            Text(f"{row.silent:,}" if row.silent else "-", style="bold red" if row.silent else ""),
            _age(row.oldest_secs),
            _size(row.mean_bytes),
        ]
        table.add_row(*cells[: len(columns)])
    return table


def _oldest(rows: Sequence[WorkerRow], width: int, timeout_secs: float) -> Table:
    columns = ["oldest pulses", "topology", "age"]
    if width >= NARROW:
        columns.append("at")
    if width >= WIDE:
        columns.append("size")
    table = _table(columns)
    for row in rows:
        style = "bold red" if row.age_secs > timeout_secs else ""
        cells: list[str | Text] = [
            _name(row.worker),
            _name(row.topology),
            Text(_age(row.age_secs), style=style),
            _name(row.server),
            _size(row.bytes),
        ]
        table.add_row(*cells[: len(columns)])
    return table


def _problem(row: ServerRow) -> Text:
    problem = printable(row.problem)
    text = problem if problem.startswith(row.address) else f"{row.address}: {problem}"
    return Text(f"  {text}", style="red", overflow="fold")


def _table(columns: Sequence[str]) -> Table:
    """Make a table that cuts off names, but no figures, on a narrow terminal."""
    names = {"Pacemaker", "topology", "oldest pulses", "at"}
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for column in columns:
        is_left = column in names or column in ("state", "version")
        table.add_column(
            Text(column, no_wrap=True, overflow="ellipsis"),
            justify="left" if is_left else "right",
            no_wrap=column not in names,
        )
    return table


def _name(name: str, style: str = "") -> Text:
    return Text(printable(name), style=style, no_wrap=True, overflow="ellipsis")


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.1f}" if rate < 1000 else f"{rate:,.0f}"


def _flow(rate: float | None) -> str:
    return "-" if rate is None else f"{_size(rate)}/s"


def _size(size: float) -> str:
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError


def _age(secs: float) -> str:
    return f"{secs:.1f} s" if secs < 120 else _duration(secs)


def _duration(secs: float | None) -> str:
    if secs is None:
        return ""
    minutes, hours = int(secs) // 60, int(secs) // 3600
    if minutes < 2:
        return f"{secs:.0f} s"
    if hours < 2:
        return f"{minutes} min"
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"
