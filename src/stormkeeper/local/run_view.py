"""The output of `storm local`: pending step, live picture or lines, and report.

Two Spark sessions that start together slow each other down, so the heartbeat pipeline starts once a
worker has counted its first rows.
"""

import contextlib
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stormkeeper.client.topology_commands import says_more
from stormkeeper.client.topology_view import TopologyView
from stormkeeper.errors import LocalClusterError
from stormkeeper.history import manifest
from stormkeeper.history.table_reader import Tables
from stormkeeper.local.pacemaker_watch import ComponentCounts, RunSnapshot, WorkerPulses
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline.tables import LIVENESS, NAMES, WORKER_LIVENESS
from stormkeeper.topology.schedule_status import PLACED, ScheduleKind, schedule_kind

#: Between two progress lines.
LINE_SECS = 5.0

#: Shows the cursor, and begins a line below the picture.
_SHOW_CURSOR = b"\x1b[?25h\n"

#: Of a worker whose queries have ended by themselves, as in the liveness table.
COMPLETED = "completed"

OUTPUT_LINES = 6

#: Longest delay of the pipeline's start, for a job with late first rows.
PIPELINE_AFTER_SECS = 60.0

SUBMITS = "the topology is packed, and sent to the Nimbus that leads"
WORKER_STARTS = "a supervisor starts the worker"
SPARK_STARTS = "Spark is starting in the worker"
FIRST_BATCH = "Spark runs in the worker, no heartbeat has counted a row yet"
PIPELINE_STARTS = "the heartbeat pipeline is starting: liveness comes with its first batch"


@dataclass(frozen=True)
class ProcessRow:
    """A process of the cluster in the picture."""

    name: str
    pid: int
    state: str
    address: str
    memory_mib: float


@dataclass(frozen=True)
class Picture:
    """All that is shown at a moment; `now` and `up_secs` are in seconds."""

    title: str
    hint: str
    #: Empty once all is running.
    waits_for: str
    now: float
    up_secs: float
    processes: Sequence[ProcessRow]
    snapshot: RunSnapshot
    statuses: Mapping[WorkerId, str]
    rates: dict[str, ComponentCounts]
    #: The topology's last lines, and the number of all lines.
    output: Sequence[str]
    output_count: int
    #: By supervisor id.
    machines: Mapping[str, str] = field(default_factory=dict)
    #: False once a stop was requested; true once all has stopped.
    is_running: bool = True
    is_last: bool = False

    def status(self, seen: WorkerPulses) -> str:
        """Return a worker's status; the last pulse reports completion before the table does."""
        return COMPLETED if seen.completed else self.statuses.get(seen.worker, "")


def view_on(console: Console) -> "RunView":
    """Return a live view for a terminal, lines for a pipe or a file."""
    return LiveView(console) if console.is_terminal else RunView(console)


class RunView:
    """Plain lines: messages, progress, changes of liveness, the topology's own output."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._shown = 0
        self._statuses: dict[WorkerId, str] = {}
        self._waits_for = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal."""

    def note(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def abandon(self) -> None:
        """Restore the terminal, from within a signal handler; nothing is shown afterwards."""

    def show(self, picture: Picture) -> None:
        unseen = picture.output_count - self._shown
        if unseen > len(picture.output):
            self.note(f"  | (lines left out here: {unseen - len(picture.output):,})")
        for line in picture.output[-unseen:] if unseen > 0 else ():
            self.note(f"  | {line}")
        self._shown = picture.output_count
        if says_more(picture.waits_for, self._waits_for):
            self._waits_for = picture.waits_for
            if picture.waits_for:
                text = picture.waits_for.removeprefix("waiting: ")
                self.note(f"{picture.up_secs:4.0f} s  waiting: {text}")
        for seen in picture.snapshot.workers:
            worker = seen.worker
            status = picture.status(seen)
            # After the stop request the table is outdated, and no later look corrects it.
            is_news = picture.is_running or status == COMPLETED
            if is_news and status != self._statuses.get(worker, ""):
                self._statuses[worker] = status
                said = (
                    "is completed: its queries have ended"
                    if status == COMPLETED
                    else f"is {status or 'no more'} in the liveness table"
                )
                self.note(f"{picture.up_secs:4.0f} s  {worker.storm_id} at {worker.port} {said}")
        if picture.now < self._next and not picture.is_last:
            return
        self._next = picture.now + LINE_SECS
        for seen in picture.snapshot.workers:
            counts = " · ".join(
                f"{named(name, c)} {flow(c)}" for name, c in sorted(seen.components.items())
            )
            if seen.waiting:
                counts += "  waiting: " + textwrap.shorten(seen.waiting, 60, placeholder="…")
            self.note(
                f"{picture.up_secs:4.0f} s  {seen.worker.storm_id} at {seen.worker.port}: "
                f"pulse {seen.pulses}, {picture.now - seen.last_received:.1f} s ago "
                f"at {seen.pacemaker}  {counts}"
            )


class LiveView(RunView):
    """Messages, and below them a picture that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, picture: Picture) -> None:
        self._live.update(render(picture), refresh=True)

    def abandon(self) -> None:
        """Show the cursor, without the buffers: the handler may have interrupted a write."""
        with contextlib.suppress(OSError):
            os.write(self._console.file.fileno(), _SHOW_CURSOR)


def render(picture: Picture) -> RenderableType:
    parts: list[RenderableType] = [
        Text.assemble((picture.title, "bold"), f"   up {clock(picture.up_secs)}"),
        processes_table(picture),
        workers_table(picture),
        components_table(picture),
    ]
    if picture.waits_for:
        parts.append(Text(f"Waiting: {picture.waits_for}", style="yellow", overflow="fold"))
    for seen in picture.snapshot.workers:
        if seen.waiting:
            text = f"The worker at {seen.worker.port} waits: {seen.waiting}"
            parts.append(Text(text, style="yellow", overflow="fold"))
    if picture.output:
        lines = "\n".join(picture.output[-OUTPUT_LINES:])
        parts.append(Panel(Text(lines, no_wrap=True, overflow="ellipsis"), title="topology says"))
    parts.append(Text(picture.hint, style="dim", overflow="fold"))
    return Group(*parts)


def processes_table(picture: Picture) -> Table:
    table = _table("process", "address", "pid", "memory", "keys", "pulses", "state")
    seen = {p.address: p for p in picture.snapshot.pacemakers}
    for process in picture.processes:
        pacemaker = seen.get(process.address)
        table.add_row(
            process.name,
            process.address,
            str(process.pid),
            f"{process.memory_mib:,.0f} MiB" if process.memory_mib else "",
            f"{pacemaker.keys:,}" if pacemaker else "",
            f"{pacemaker.pulses_received:,}" if pacemaker else "",
            Text(process.state, style="" if process.state == "running" else "yellow"),
        )
    return table


def workers_table(picture: Picture) -> Table:
    table = _table("worker", "slot", "last pulse", "at", "pulses", "longest gap", "liveness")
    colours = {"alive": "green", "late": "yellow", "dead": "bold red", COMPLETED: "green"}
    for seen in picture.snapshot.workers:
        worker = seen.worker
        status = picture.status(seen)
        table.add_row(
            worker.storm_id,
            f"{picture.machines.get(worker.node, worker.node)}:{worker.port}",
            f"{picture.now - seen.last_received:.1f} s ago",
            seen.pacemaker,
            f"{seen.pulses:,}",
            f"{seen.gap_at(picture.now):.1f} s",
            Text(status, style=colours.get(status, "")),
        )
    return table


def components_table(picture: Picture) -> Table:
    table = _table("component", "executed", "emitted", "executed/s", "emitted/s")
    for name, counts in sorted(picture.snapshot.components().items()):
        rate = picture.rates.get(name, ComponentCounts())
        table.add_row(
            named(name, counts),
            _rows(counts.executed, counts),
            _rows(counts.emitted, counts),
            f"{rate.executed:,}",
            f"{rate.emitted:,}",
        )
    return table


def named(name: str, counts: ComponentCounts) -> str:
    return f"{name} (in {counts.queries} queries)" if counts.queries > 1 else name


def flow(counts: ComponentCounts) -> str:
    """Return rows in and out, such as ``1,200 in, 40 out``; a zero side is left out."""
    sides = [
        f"{_rows(number, counts)} {side}"
        for number, side in ((counts.executed, "in"), (counts.emitted, "out"))
        if number
    ]
    return ", ".join(sides) or "nothing yet"


def _rows(number: int, counts: ComponentCounts) -> str:
    """Return a count of rows, marked if some rows were not counted."""
    return f"≥ {number:,}" if counts.partial and number else f"{number:,}"


def clock(secs: float) -> str:
    return f"{int(secs) // 60}:{int(secs) % 60:02d}"


class ComponentRates:
    """Rows per second by component, over the last few pictures.

    A worker beats every few seconds: a shorter period would show nothing, then everything.
    """

    WINDOW_SECS = 10.0

    def __init__(self) -> None:
        self._samples: list[tuple[float, dict[str, ComponentCounts]]] = []

    def update(
        self, now: float, components: dict[str, ComponentCounts]
    ) -> dict[str, ComponentCounts]:
        self._samples.append((now, components))
        while len(self._samples) > 2 and now - self._samples[1][0] >= self.WINDOW_SECS:
            del self._samples[0]
        then, before = self._samples[0]
        elapsed = max(now - then, 1.0)
        zero = ComponentCounts()
        return {
            name: ComponentCounts(
                max(0, round((c.emitted - before.get(name, zero).emitted) / elapsed)),
                max(0, round((c.executed - before.get(name, zero).executed) / elapsed)),
            )
            for name, c in components.items()
        }


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for column in columns:
        numeric = column in {"memory", "keys", "pulses", "executed", "emitted"} or "/s" in column
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    return table


def has_counted(snapshot: RunSnapshot) -> bool:
    return any(counts != ComponentCounts() for counts in snapshot.components().values())


def is_pipeline_due(snapshot: RunSnapshot, up_secs: float) -> bool:
    return has_counted(snapshot) or up_secs >= PIPELINE_AFTER_SECS


def _unwell(nimbus_view: TopologyView | None) -> str:
    """Return the fault of a topology with workers; empty if healthy or starting."""
    health = None if nimbus_view is None else nimbus_view.health
    if health is None or health.state == "starting":
        return ""
    return health.text if health.state == "running" else str(health)


def is_completed(snapshot: RunSnapshot, nimbus_view: TopologyView | None) -> bool:
    if nimbus_view is None:
        return False
    if schedule_kind(nimbus_view.sched_status) is ScheduleKind.COMPLETED:
        return True
    # The workers' pulses say it before Nimbus does.
    done = {(w.worker.node, w.worker.port) for w in snapshot.workers if w.completed}
    return bool(nimbus_view.workers) and all(
        (w.supervisor_id, w.port) in done for w in nimbus_view.workers
    )


def waits_for(
    snapshot: RunSnapshot,
    *,
    is_submitted: bool,
    nimbus_view: TopologyView | None,
    pipeline_starts: bool,
) -> str:
    """Return the step that the run waits for; empty if all is running.

    `pipeline_starts`: the pipeline was started, and has not written its tables yet.
    """
    if not is_submitted:
        return SUBMITS
    unwell = _unwell(nimbus_view)
    if unwell and snapshot.workers:
        return unwell
    if not snapshot.workers:
        status = "" if nimbus_view is None else nimbus_view.sched_status
        return status if status and schedule_kind(status) not in PLACED else WORKER_STARTS
    if not has_counted(snapshot):
        # A worker reports components once it has a Spark session.
        return FIRST_BATCH if snapshot.components() else SPARK_STARTS
    return PIPELINE_STARTS if pipeline_starts else ""


def worker_statuses(directory: Path) -> dict[WorkerId, str]:
    folder = directory / LIVENESS
    if manifest.load(folder) is None:
        return {}
    columns = ["storm_id", "node", "port", "status"]
    return {
        WorkerId(row["storm_id"], row["node"], row["port"]): row["status"]
        for row in Tables(folder).arrow(WORKER_LIVENESS, columns=columns).to_pylist()
    }


def table_rows(directory: Path) -> dict[str, int]:
    """Return the row count of each table; 0 for a table that was never written."""
    counts = {}
    for query, names in NAMES.items():
        found = manifest.load(directory / query)
        for name in names:
            files = found.tables[name].files if found is not None else []
            counts[name] = sum(file.rows for file in files)
    return counts


def build_report(
    snapshot: RunSnapshot, *, now: float, tables: Mapping[str, int], processes_left: int
) -> dict[str, Any]:
    """Return the report of a run, ready for JSON.

    `now` is the end of the run, on the clock of the snapshot: a silence until then is a gap.
    `tables` has rows of each table; `processes_left` counts killed processes.
    """
    return {
        "pacemakers": [asdict(pacemaker) for pacemaker in snapshot.pacemakers],
        "workers": [
            {
                "topology": w.worker.storm_id,
                "node": w.worker.node,
                "port": w.worker.port,
                "pulses": w.pulses,
                "max_gap_secs": round(w.gap_at(now), 3),
                "completed": w.completed,
            }
            for w in snapshot.workers
        ],
        "components": {
            name: {
                "emitted": counts.emitted,
                "executed": counts.executed,
                "partial": counts.partial,
            }
            for name, counts in sorted(snapshot.components().items())
        },
        "tables": dict(tables),
        "processes_left": processes_left,
    }


def write_report(file: Path, report: Mapping[str, Any]) -> None:
    """Write a report to a file; raises `LocalClusterError`."""
    try:
        file.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise LocalClusterError(f"the report was not written: {error}") from error
