"""``storm monitor`` and ``storm get-errors``: counts and errors of a topology's components."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from stormkeeper.cli.connections import connected, json_option
from stormkeeper.cli.options import Fault, command, exit_with
from stormkeeper.cli.output import line, print_json, remark
from stormkeeper.errors import NotAliveError, RpcError
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.thrift.nimbus import ExecutorSummary, TopologyInfo

#: Tuples a second, from which no fraction is printed.
_WHOLE: Final = 10

#: The window since a worker's start.
_ALL_TIME: Final = ":all-time"

#: Host, port, first and last task.
_Executor = tuple[str, int, int, int]


@command("storm get-errors word-count", "storm get-errors word-count --json", name="get-errors")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on a terminal, too.")
def get_errors(name: str, as_json: bool) -> None:
    """Print the newest error of each component of topology NAME.

    A terminal shows the whole texts, the newest last. Else, and with --json, the output is a JSON
    object as in Storm: {"Topology Name": NAME, "Comp-Errors": {COMPONENT: ERROR}}, or {"Failure":
    TEXT} if there is no such topology.

    Exit code 1: there is no such topology, or Nimbus did not answer.
    """
    with connected() as connection:
        from stormkeeper.client import topology_view

        for_people = sys.stdout.isatty() and not as_json
        try:
            info = topology_view.get_info(connection, name, with_errors=True)
        except NotAliveError:
            if for_people:
                raise
            print_json({"Failure": f"No topologies running with name {name}"})
            exit_with(1)
    newest = {component: errors[0] for component, errors in info.errors.items() if errors}
    if for_people:
        from stormkeeper.cli import topology_tables

        click.echo("\n".join(topology_tables.error_lines(newest, time.time())))
        return
    texts = {component: error.error for component, error in newest.items()}
    print_json({"Topology Name": info.name, "Comp-Errors": texts})


@command(
    "storm monitor word-count",
    "storm monitor word-count -m counts",
    "storm monitor word-count -m counts -i 10 -w transferred --json",
)
@click.argument("name")
@click.option(
    "-i",
    "--interval",
    metavar="SECS",
    type=click.IntRange(1, 3600),
    default=4,
    show_default=True,
    help="Seconds from one row to the next.",
)
@click.option("-m", "--component", metavar="COMPONENT", help="Only this component; by default all.")
@click.option(
    "-s",
    "--stream",
    metavar="STREAM",
    default="default",
    show_default=True,
    help="The components' stream to count.",
)
@click.option(
    "-w",
    "--watch",
    "watched",
    type=click.Choice(["emitted", "transferred"]),
    default="emitted",
    show_default=True,
    help="The count to show.",
)
@json_option
def monitor(
    *, name: str, interval: int, component: str | None, stream: str, watched: str, as_json: bool
) -> None:
    """Watch how much the components of topology NAME emit, until Ctrl-C.

    Every SECS the command prints a row for each component: the time, executors, stream, tuples
    (rows of a batch) since the row before, and tuples a second. The first row shows the count since
    the workers started. With --json each row is an object, with milliseconds since the row before
    and, as in Storm, tuples a millisecond. Counts come with heartbeats, so they grow in steps.

    While no Nimbus answers, stderr says so, and no row is printed.

    Exit code 1: there is no such topology, component or stream, or Nimbus did not answer at first.
    """
    with connected() as connection, suppress(KeyboardInterrupt):
        from stormkeeper.client.topology_view import components_of, get_info

        def read() -> dict[str, ComponentCounts]:
            info = get_info(connection, name)
            wanted = components_of(info) if component is None else [component]
            return {each: component_counts(info, each, stream, watched) for each in wanted}

        counts = read()
        streams = sorted({one for each in counts.values() for one in each.streams})
        if streams and stream not in streams:
            what = component or "no component"
            nothing = "nothing" if component else "anything"
            raise Fault(
                f"{what} has {watched} {nothing} on a stream {stream}; there are"
                f" {', '.join(streams)}"
            )
        if not counts:
            raise Fault(f"{name} runs nowhere now; `storm status {name}` says what it waits for")
        rows = _RowPrinter(name, stream, watched, [*counts], as_json=as_json)
        counters: dict[str, EmitCounter] = {}
        due = time.monotonic()
        while True:
            at_ms = round(time.monotonic() * 1000)
            for each, read_counts in counts.items():
                counter = counters.setdefault(each, EmitCounter())
                rows.show(each, counter.row(read_counts, at_ms))
            now = time.monotonic()
            due = max(due + interval, now)
            time.sleep(due - now)
            counts = _read_again(read, interval)


@dataclass(frozen=True, slots=True)
class ComponentCounts:
    """A component's executors and streams, and its counts since the workers' start."""

    executors: int
    counts: Mapping[_Executor, int]
    streams: frozenset[str]


@dataclass(frozen=True, slots=True)
class CountRow:
    """Tuples in the `ms` between two reads; at the first read, since the workers' start."""

    executors: int
    ms: int
    count: int

    @property
    def per_ms(self) -> float:
        """Tuples a millisecond, Storm's unit."""
        return self.count / self.ms if self.ms else 0.0


def component_counts(
    info: TopologyInfo, component: str, stream: str, watched: str
) -> ComponentCounts:
    """Return emitted or transferred tuples; raises `UnknownComponentError`."""
    executors = [each for each in info.executors if each.component_id == component]
    if not executors:
        from stormkeeper.client.topology_view import unknown_component

        raise unknown_component(info, component)
    by_stream = {_executor(each): _counts(each, watched) for each in executors}
    return ComponentCounts(
        len(executors),
        {each: counts[stream] for each, counts in by_stream.items() if stream in counts},
        frozenset(name for counts in by_stream.values() for name in counts),
    )


class EmitCounter:
    """Counts the tuples between two reads.

    A restarted executor begins at 0; an executor without a report, as after a failover, keeps its
    count.
    """

    def __init__(self) -> None:
        self._known: dict[_Executor, int] = {}
        self._last_ms: int | None = None

    def row(self, now: ComponentCounts, at_ms: int) -> CountRow:
        """Return the difference from the read before; `at_ms` is monotonic."""
        count = 0
        for each, value in now.counts.items():
            before = self._known.get(each, 0)
            count += value - before if before <= value else value
        self._known.update(now.counts)
        passed = 0 if self._last_ms is None else at_ms - self._last_ms
        self._last_ms = at_ms
        return CountRow(now.executors, passed, count)


class _RowPrinter:
    """Prints rows in columns, or as JSON."""

    def __init__(
        self, topology: str, stream: str, watched: str, components: list[str], *, as_json: bool
    ) -> None:
        self._topology = topology
        self._stream = stream
        self._watched = watched
        self._as_json = as_json
        width = max(map(len, ("COMPONENT", *components)))
        self._widths = (9, width + 1, 10, max(7, len(stream)) + 1, 15, 12)
        if not as_json:
            heads = ("TIME", "COMPONENT", "EXECUTORS", "STREAM", watched.upper(), "PER SECOND")
            click.echo(line(heads, self._widths))

    def show(self, component: str, row: CountRow) -> None:
        if self._as_json:
            values = {
                "topology": self._topology,
                "component": component,
                "executors": row.executors,
                "stream": self._stream,
                "ms": row.ms,
                self._watched: row.count,
                "per_ms": row.per_ms,
            }
            print_json(values)
            return
        rate, count = 1000 * row.per_ms, f"{row.count:,}"
        per_second = f"{rate:,.0f}" if rate >= _WHOLE else f"{rate:.1f}"
        if not row.ms:
            count, per_second = f"{count} so far", "-"
        moment = time.strftime("%H:%M:%S")
        cells = (moment, printable(component), str(row.executors), self._stream, count, per_second)
        click.echo(line(cells, self._widths))


def _executor(summary: ExecutorSummary) -> _Executor:
    tasks = summary.executor_info
    return summary.host, summary.port, tasks.task_start, tasks.task_end


def _counts(summary: ExecutorSummary, watched: str) -> Mapping[str, int]:
    if summary.stats is None:
        return {}
    windows: Mapping[str, Mapping[str, int]] = getattr(summary.stats, watched)
    return windows.get(_ALL_TIME, {})


def _read_again(
    read: Callable[[], dict[str, ComponentCounts]], interval: int
) -> dict[str, ComponentCounts]:
    """Read until a Nimbus answers: another Nimbus may lead soon."""
    is_told = False
    while True:
        try:
            counts = read()
        except RpcError as error:
            if not is_told:
                remark(f"Nimbus does not answer: {error}")
                is_told = True
            time.sleep(interval)
        else:
            if is_told:
                remark("Nimbus answers again")
            return counts
