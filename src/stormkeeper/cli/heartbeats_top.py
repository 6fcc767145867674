"""``storm heartbeats top``: reads the changes of all Pacemakers, and draws or prints statistics.

A worker's age is that of its newest pulse on any server. Rates are averages over `WINDOW_SECS`, as
a worker beats only every few seconds; pulses of the first read do not count. A Pacemaker keeps a
single pulse of a worker, so of two pulses between two reads a topology's rate has only the last,
the server's both.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stormkeeper.cli.output import duration, map_floats, print_json
from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerUnavailableError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.heartbeats import change_pages
from stormkeeper.heartbeats.change_pages import ServerReading
from stormkeeper.names import printable
from stormkeeper.pacemaker.client import PacemakerClient, pool
from stormkeeper.paths import parse_workerbeat

if TYPE_CHECKING:
    from stormkeeper.conf import Conf
    from stormkeeper.heartbeats.change_pages import Position

#: The window of rates.
WINDOW_SECS: Final = 10.0

#: Paths that do not belong to a worker.
OTHER: Final = "(other paths)"

#: Silence after which a server counts as down.
_TRY_SECS: Final = 1.0
#: The first read of a large store takes several seconds.
_READ_SECS: Final = 15.0

#: Oldest pulses in a summary.
_OLDEST: Final = 50
_OLDEST_IN_JSON: Final = 5

#: Outside a terminal nothing is cut off.
_UNBOUNDED: Final = 10_000

_PERIOD: Final = "task.heartbeat.frequency.secs"
_TIMEOUT: Final = "nimbus.task.timeout.secs"

#: A narrower terminal lacks less important columns.
_WIDE: Final = 100
_NARROW: Final = 72

#: Columns that a narrow terminal cuts off.
_NAMES: Final = frozenset({"Pacemaker", "topology", "oldest pulses", "at"})

#: Topologies and pulses shown outside a terminal.
_MOST_TOPOLOGIES: Final = 20
_MOST_PULSES: Final = 5

#: Lines of title, headings, blanks, and the count of hidden topologies.
_FRAME_LINES: Final = 9

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class ServerState(StrEnum):
    """A Pacemaker's answer to the last read."""

    SERVING = "serving"
    #: The server is younger than a heartbeat period, so workers may be missing.
    FILLING = "filling"
    #: Storm's own Pacemaker, which does not report changes.
    PLAIN = "no extensions"
    REFUSED = "refused"
    DOWN = "down"


_STYLES: Final = {
    ServerState.SERVING: "green",
    ServerState.FILLING: "yellow",
    ServerState.PLAIN: "yellow",
    ServerState.REFUSED: "bold red",
    ServerState.DOWN: "bold red",
}


#: A server, and the changes there or the reason why they are missing.
ServerRead = tuple[str, ServerReading | StormkeeperError]

# These classes' fields are the keys of `storm heartbeats top --json`.


@dataclass(frozen=True)
class ServerRow:
    """A server; after a failed read most fields are None."""

    address: str
    state: ServerState
    problem: str = ""
    version: str | None = None
    uptime_secs: float | None = None
    horizon_secs: float | None = None
    keys: int | None = None
    connections: int | None = None
    pulses_per_s: float | None = None


@dataclass(frozen=True)
class TopologyRow:
    """A topology: workers, rates, mean size, and the age of the oldest worker's newest pulse."""

    topology: str
    workers: int
    silent: int
    pulses_per_s: float | None
    bytes_per_s: float | None
    mean_bytes: float
    oldest_secs: float


@dataclass(frozen=True)
class WorkerRow:
    """A worker: age and size of the newest pulse, and the pulse's server."""

    topology: str
    worker: str
    age_secs: float
    bytes: int
    server: str


@dataclass(frozen=True)
class Summary:
    """All statistics at a moment: topologies with the most bytes first, oldest workers first.

    `pulses_per_s` comes from the servers' counts, `bytes_per_s` from the pulses read.
    """

    servers: list[ServerRow]
    topologies: list[TopologyRow]
    oldest: list[WorkerRow]
    workers: int
    silent: int
    pulses_per_s: float | None
    bytes_per_s: float | None


class _Sample(NamedTuple):
    """A round of reads: new pulses by topology, and each server's count of pulses."""

    at: float
    pulses: Counter[str]
    bytes: Counter[str]
    received: dict[str, int]


class _HeldPulse(NamedTuple):
    path: str
    size: int
    received: float
    server: str

    @property
    def topology(self) -> str:
        worker = parse_workerbeat(self.path)
        return OTHER if worker is None else worker.storm_id

    @property
    def worker(self) -> str:
        worker = parse_workerbeat(self.path)
        return self.path if worker is None else f"{worker.node}-{worker.port}"


class PulseStatistics:
    """Collects reads, and returns a summary.

    A worker beats every `period_secs`, and is silent after `timeout_secs` without a pulse.
    """

    def __init__(self, *, period_secs: float, timeout_secs: float) -> None:
        #: The last read of each server.
        self._reads: dict[str, ServerReading | StormkeeperError] = {}
        #: Each server's pulses by path.
        self._held: defaultdict[str, dict[str, _HeldPulse]] = defaultdict(dict)
        self._period = period_secs
        self._timeout = timeout_secs
        self._samples: deque[_Sample] = deque()

    def record(self, reads: Iterable[ServerRead], now: float) -> None:
        sample = _Sample(now, Counter(), Counter(), {})
        for server, read in reads:
            self._reads[server] = read
            if not isinstance(read, StormkeeperError):
                self._record(server, read, sample)
        self._samples.append(sample)
        while len(self._samples) > 2 and now - self._samples[1].at >= WINDOW_SECS:
            self._samples.popleft()

    def summary(self, now: float, oldest: int) -> Summary:
        """Return the statistics at `now`, with that many of the oldest workers."""
        newest: dict[str, _HeldPulse] = {}
        for held in self._held.values():
            for path, pulse in held.items():
                if path not in newest or pulse.received > newest[path].received:
                    newest[path] = pulse
        by_topology: defaultdict[str, list[_HeldPulse]] = defaultdict(list)
        for pulse in newest.values():
            by_topology[pulse.topology].append(pulse)
        elapsed = self._samples[-1].at - self._samples[0].at if self._samples else 0.0
        # The first sample's pulses came before the window.
        counted = list(self._samples)[1:]
        sizes = {name: sum(sample.bytes[name] for sample in counted) for name in by_topology}
        topologies = [
            TopologyRow(
                topology=name,
                workers=len(pulses),
                silent=sum(now - each.received > self._timeout for each in pulses),
                pulses_per_s=_per_sec(sum(sample.pulses[name] for sample in counted), elapsed),
                bytes_per_s=_per_sec(sizes[name], elapsed),
                mean_bytes=sum(each.size for each in pulses) / len(pulses),
                oldest_secs=max(0.0, now - min(each.received for each in pulses)),
            )
            for name, pulses in by_topology.items()
        ]
        topologies.sort(key=lambda row: (-(row.bytes_per_s or 0.0), -row.workers, row.topology))
        servers = [self._server_row(server, read) for server, read in self._reads.items()]
        received = [row.pulses_per_s for row in servers if row.pulses_per_s is not None]
        return Summary(
            servers=servers,
            topologies=topologies,
            oldest=[
                WorkerRow(
                    each.topology,
                    each.worker,
                    age_secs=max(0.0, now - each.received),
                    bytes=each.size,
                    server=each.server,
                )
                for each in heapq.nsmallest(
                    oldest, newest.values(), key=lambda each: (each.received, each.path)
                )
            ],
            workers=len(newest),
            silent=sum(row.silent for row in topologies),
            # Servers also count pulses that were overwritten between two reads.
            pulses_per_s=sum(received) if received else None,
            bytes_per_s=_per_sec(sum(sizes.values()), elapsed),
        )

    def _record(self, server: str, reading: ServerReading, sample: _Sample) -> None:
        held = self._held[server]
        if reading.is_anew:
            held.clear()
            for earlier in self._samples:
                earlier.received.pop(server, None)
        sample.received[server] = reading.info.pulses_received
        for page in reading.pages:
            for path, size, _, _, age_secs in page.changes:
                if size is None:
                    held.pop(path, None)
                    continue
                pulse = _HeldPulse(path, size, page.read_at - (age_secs or 0.0), server)
                held[path] = pulse
                if not reading.is_anew:
                    sample.pulses[pulse.topology] += 1
                    sample.bytes[pulse.topology] += size

    def _server_row(self, server: str, read: ServerReading | StormkeeperError) -> ServerRow:
        if isinstance(read, StormkeeperError):
            return ServerRow(server, *_fault(read))
        info = read.info
        samples = [each for each in self._samples if server in each.received]
        elapsed = samples[-1].at - samples[0].at
        count = samples[-1].received[server] - samples[0].received[server]
        is_filling = info.horizon_ms < 1000 * self._period
        return ServerRow(
            server,
            ServerState.FILLING if is_filling else ServerState.SERVING,
            version=info.version,
            uptime_secs=info.uptime_ms / 1000,
            horizon_secs=info.horizon_ms / 1000,
            keys=info.keys,
            connections=info.connections,
            pulses_per_s=_per_sec(count, elapsed),
        )


def _per_sec(count: int, elapsed: float) -> float | None:
    return count / elapsed if elapsed > 0 else None


def run(conf: Conf, *, interval: float, once: bool, as_json: bool) -> None:
    """Show a summary every `interval` seconds until interrupted, or `once`.

    Raises `ConfigError` for wrong authentication or TLS, and `StormkeeperError` if the first read
    fails on all servers.
    """
    statistics = PulseStatistics(period_secs=conf[_PERIOD], timeout_secs=conf[_TIMEOUT])
    with ExitStack() as stack:
        workers = len(conf.pacemaker_servers())
        threads = stack.enter_context(ThreadPoolExecutor(workers, "storm-heartbeats-top"))
        # The pool closes before the threads, whose calls then end at once.
        opened = stack.enter_context(
            pool.connect(
                conf,
                name="storm-heartbeats-top",
                try_timeout=_TRY_SECS,
                retries=0,
                deadline=_READ_SECS,
            )
        )
        clients = opened.clients.values()
        positions: dict[PacemakerClient, Position] = {}

        def read_all() -> list[ServerRead]:
            # As long as the slowest server takes, at most the clients' deadline.
            return list(threads.map(lambda client: _read(client, positions), clients))

        reads = read_all()
        _check(reads)
        statistics.record(reads, time.monotonic())
        show = _print_json if as_json else stack.enter_context(_screen(conf[_TIMEOUT], once=once))
        if not once:
            show(statistics)
        while True:
            time.sleep(interval)
            statistics.record(read_all(), time.monotonic())
            show(statistics)
            if once:
                return


def _check(reads: Sequence[ServerRead]) -> None:
    """Raise if all first reads failed: a mistyped address stays wrong."""
    faults = {server: _fault(read) for server, read in reads if isinstance(read, StormkeeperError)}
    if len(faults) < len(reads):
        return
    problems = "; ".join(
        problem if server in problem else f"{server}: {problem}"
        for server, (_, problem) in faults.items()
    )
    if all(state is ServerState.DOWN for state, _ in faults.values()):
        raise PacemakerUnavailableError(problems)
    raise StormkeeperError(problems)


def _read(client: PacemakerClient, positions: dict[PacemakerClient, Position]) -> ServerRead:
    """Read a server's changes since the known position, and update the position."""
    server = str(client.address)
    try:
        # Without values: only ages and sizes are shown.
        reading = change_pages.look(client, position=positions.get(client), values=False)
    except StormkeeperError as error:
        return server, error
    positions[client] = reading.position
    return server, reading


def _fault(error: StormkeeperError) -> tuple[ServerState, str]:
    if isinstance(error, UnsupportedExtensionError):
        problem = "not a Pacemaker of Stormkeeper: it reports no changes, its pulses are missing"
        return ServerState.PLAIN, problem
    is_refused = isinstance(error, NotAuthorizedError)
    return ServerState.REFUSED if is_refused else ServerState.DOWN, str(error)


def _print_json(statistics: PulseStatistics) -> None:
    summary = statistics.summary(time.monotonic(), _OLDEST_IN_JSON)
    rounded = map_floats(asdict(summary), lambda value: round(value, 3))
    print_json({"time": datetime.now(UTC).isoformat()} | rounded)


@contextmanager
def _screen(timeout_secs: float, *, once: bool) -> Iterator[Callable[[PulseStatistics], None]]:
    """Yield a function that draws tables, in place on a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    live = None
    if console.is_terminal and not once:
        live = Live(console=console, auto_refresh=False, screen=True)

    def show(statistics: PulseStatistics) -> None:
        drawn = render(
            statistics.summary(time.monotonic(), _OLDEST),
            width=console.width,
            height=console.height if live else None,
            timeout_secs=timeout_secs,
            title=time.strftime("%H:%M:%S") + (" · Ctrl-C ends" if live else ""),
        )
        if live:
            live.update(drawn, refresh=True)
        else:
            console.print(drawn)
            if not once:
                console.print()

    with live or nullcontext():
        yield show


def render(
    summary: Summary, *, width: int, height: int | None, timeout_secs: float, title: str
) -> RenderableType:
    """Draw a summary for a screen of `width` columns and `height` lines (None: no limit).

    `title` ends the first line. Pulses older than `timeout_secs` are red.
    """
    parts: list[RenderableType] = [
        _title(summary, title),
        Text(),
        _table(summary.servers, _SERVER_COLUMNS, width),
        *(_problem(row) for row in summary.servers if row.problem),
        Text(),
    ]
    if not summary.topologies:
        return Group(*parts, Text("no pulses are held", style="dim"))
    rows, oldest = _rows(summary, height)
    parts.append(_table(summary.topologies[:rows], _TOPOLOGY_COLUMNS, width))
    hidden = len(summary.topologies) - rows
    if hidden > 0:
        parts.append(Text(f"  and {hidden} more topologies", style="dim"))
    oldest_table = _table(summary.oldest[:oldest], _worker_columns(timeout_secs), width)
    return Group(*parts, Text(), oldest_table)


def _rows(summary: Summary, height: int | None) -> tuple[int, int]:
    """Return how many topologies and oldest pulses fit."""
    if height is None:
        return _MOST_TOPOLOGIES, _MOST_PULSES
    problems = sum(bool(row.problem) for row in summary.servers)
    room = max(2, height - _FRAME_LINES - len(summary.servers) - 2 * problems)
    # The oldest pulses get a third of the lines, and lines that topologies leave.
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


def _problem(row: ServerRow) -> Text:
    problem = printable(row.problem)
    text = problem if problem.startswith(row.address) else f"{row.address}: {problem}"
    return Text(f"  {text}", style="red", overflow="fold")


#: Title, smallest terminal with the column, and a row's cell.
_Column = tuple[str, int, Callable[[Any], str | Text]]


def _table(rows: Iterable[Any], columns: Sequence[_Column], width: int) -> Table:
    """Make a table that on a narrow terminal cuts off names, but no figures."""
    shown = [(title, cell) for title, least, cell in columns if least <= width]
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for title, _ in shown:
        table.add_column(
            Text(title, no_wrap=True, overflow="ellipsis"),
            justify="left" if title in _NAMES | {"state", "version"} else "right",
            no_wrap=title not in _NAMES,
        )
    for row in rows:
        table.add_row(*(cell(row) for _, cell in shown))
    return table


def _name(name: str) -> Text:
    style = "dim" if name == OTHER else ""
    return Text(printable(name), style=style, no_wrap=True, overflow="ellipsis")


def _warning(text: str) -> Text:
    return Text(text, style="bold red")


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
    return f"{secs:.1f} s" if secs < 120 else duration(int(secs))


def _duration(secs: float | None) -> str:
    return "" if secs is None else duration(int(secs))


_SERVER_COLUMNS: Final[Sequence[_Column]] = (
    ("Pacemaker", 0, lambda row: _name(row.address)),
    ("state", 0, lambda row: Text(row.state, style=_STYLES[row.state])),
    ("pulses", 0, lambda row: _number(row.keys)),
    ("pulses/s", 0, lambda row: "" if row.keys is None else _rate(row.pulses_per_s)),
    ("clients", _NARROW, lambda row: _number(row.connections)),
    ("up", _NARROW, lambda row: _duration(row.uptime_secs)),
    ("unbroken for", _NARROW, lambda row: _duration(row.horizon_secs)),
    ("version", _WIDE, lambda row: row.version or ""),
)

_TOPOLOGY_COLUMNS: Final[Sequence[_Column]] = (
    ("topology", 0, lambda row: _name(row.topology)),
    ("workers", 0, lambda row: f"{row.workers:,}"),
    ("pulses/s", 0, lambda row: _rate(row.pulses_per_s)),
    ("bytes/s", 0, lambda row: _flow(row.bytes_per_s)),
    ("silent", _NARROW, lambda row: _warning(f"{row.silent:,}") if row.silent else "-"),
    ("oldest", _NARROW, lambda row: _age(row.oldest_secs)),
    ("mean size", _WIDE, lambda row: _size(row.mean_bytes)),
)


def _worker_columns(timeout_secs: float) -> Sequence[_Column]:
    def age(row: WorkerRow) -> str | Text:
        text = _age(row.age_secs)
        return _warning(text) if row.age_secs > timeout_secs else text

    return (
        ("oldest pulses", 0, lambda row: _name(row.worker)),
        ("topology", 0, lambda row: _name(row.topology)),
        ("age", 0, age),
        ("at", _NARROW, lambda row: _name(row.server)),
        ("size", _WIDE, lambda row: _size(row.bytes)),
    )
