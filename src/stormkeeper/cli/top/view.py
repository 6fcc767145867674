"""How a summary looks in a terminal of any width, and in a pipe."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stormkeeper.cli.top.statistics import OTHER, ServerRow, State, Summary, TopologyRow, WorkerRow
from stormkeeper.names import printable

#: Columns of a terminal below which what matters less is left out.
WIDE: Final = 100
NARROW: Final = 72

#: Topologies and pulses shown where there is no screen to fill.
TOPOLOGIES: Final = 20
OLDEST: Final = 5

#: Lines that are no rows: two for the title, three headings, blank lines, the topologies left out.
_FRAME_LINES: Final = 9

_STATES: Final = {
    State.SERVING: "green",
    State.FILLING: "yellow",
    State.PLAIN: "yellow",
    State.REFUSED: "bold red",
    State.DOWN: "bold red",
}

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def render(
    summary: Summary, *, width: int, height: int | None, timeout_secs: float, title: str
) -> RenderableType:
    """Draw a summary.

    Parameters
    ----------
    width
        Columns there are.
    height
        Lines there are; None where they do not matter.
    timeout_secs
        The age from which a worker is shown as silent.
    title
        The end of the first line, such as the time.
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
    """Return how many topologies and how many of the oldest pulses are shown."""
    if height is None:
        return TOPOLOGIES, OLDEST
    problems = sum(bool(row.problem) for row in summary.servers)
    room = max(2, height - _FRAME_LINES - len(summary.servers) - 2 * problems)
    # Topologies leave a third of the room, and what they do not need, to the pulses.
    topologies = max(1, min(len(summary.topologies), room - room // 3))
    return topologies, max(1, room - topologies)


def _title(summary: Summary, title: str) -> Text:
    serving = sum(row.state in (State.SERVING, State.FILLING) for row in summary.servers)
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
    told = problem if problem.startswith(row.address) else f"{row.address}: {problem}"
    return Text(f"  {told}", style="red", overflow="fold")


def _table(columns: Sequence[str]) -> Table:
    """Make a table in which names give way when the terminal is narrow, and figures do not."""
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
