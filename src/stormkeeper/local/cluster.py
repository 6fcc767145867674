"""A whole cluster on this machine, as real processes on free loopback ports.

`storm local` is this. `roster` says which processes there are. Here they are started, watched and
stopped. Nothing is started again: if a Pacemaker is killed, it stays down and the worker goes to
the other one; if the worker is killed, it is seen to be dead.
"""

import contextlib
import logging
import os
import signal
import time
import uuid
from itertools import groupby
from pathlib import Path

from rich.console import Console

from stormkeeper.conf import Address, Conf
from stormkeeper.daemon.children import Children, StartInterruptedError
from stormkeeper.daemon.lifecycle import StopSignals
from stormkeeper.daemon.orphans import end_marked
from stormkeeper.errors import ChildError, LocalClusterError
from stormkeeper.local import hints, outcome, ports, report, settings
from stormkeeper.local.folder import RunFolder, remove_abandoned
from stormkeeper.local.ledger import Snapshot
from stormkeeper.local.naming import storm_id
from stormkeeper.local.reaper import Reaper
from stormkeeper.local.roster import (
    NODE,
    PIPELINE,
    PORT,
    WORKER,
    PlannedProcess,
    Request,
    Site,
    Stage,
    WhenEnded,
    roster,
)
from stormkeeper.local.submission import submit
from stormkeeper.local.view import COMPLETED, Picture, ProcessSeen, Rates, View, view_on
from stormkeeper.local.waiting import is_pipeline_due, waits_for
from stormkeeper.local.watch import ClusterWatcher
from stormkeeper.local.worker_log import WorkerLog
from stormkeeper.pacemaker.client.settings import ClientSettings
from stormkeeper.paths import WorkerId

log = logging.getLogger(__name__)

HOST = "127.0.0.1"

PACEMAKERS = 2

#: A process that has not said that it is ready by then is taken to hang, in seconds; Spark on a
#: busy machine with two cores needs most of a minute.
START_SECS = 120.0

#: How long a process may take to end when asked to, in seconds. A running micro-batch is finished:
#: the worker and the pipeline give it 15, and then have to end Spark.
GRACE_SECS = 40.0

#: Time between two looks at the processes, in seconds.
LOOK_SECS = 0.5

#: Below the picture.
RUNNING = "Ctrl-C stops everything. The commands above look into it from another shell."
STOPPING = "Stopping: running batches are finished first. Another Ctrl-C ends everything at once."
STOPPED = "Everything has stopped."


def run(conf: Conf, request: Request) -> int:
    """Run the cluster until it is told to stop; return the exit code of the command.

    Raises
    ------
    LocalClusterError
        There is no such script, or no place for the files of a run.
    """
    if not request.topology.is_file():
        raise LocalClusterError(f"there is no file {request.topology}: name a topology's script")
    mark = uuid.uuid4().hex
    view = view_on(Console())
    if abandoned := remove_abandoned():
        view.note(f"removed what was left of runs that were killed: {abandoned}")
    folder = RunFolder(mark)

    def end_at_once(number: int) -> None:
        view.abandon()
        name = signal.Signals(number).name
        with contextlib.suppress(OSError):  # a terminal that is closed
            os.write(2, f"storm: ended at once by one more {name}\n".encode())
        end_marked(mark, settle_secs=0)
        folder.remove()

    # SIGHUP is what a terminal says that is closed.
    with (
        StopSignals(also=[signal.SIGHUP], at_once=end_at_once) as signals,
        folder,
        view,
        Reaper(folder, mark),
    ):
        return Cluster(conf, request, view, signals, _site(folder.path, mark)).run()


def _site(directory: Path, mark: str) -> Site:
    zookeeper, *pacemakers = [Address(HOST, ports.reserve(HOST)) for _ in range(1 + PACEMAKERS)]
    return Site(directory, mark, os.getpid(), zookeeper, tuple(pacemakers))


class Cluster:
    """The processes of one run: `run` follows the description of them that `roster` makes."""

    def __init__(
        self, conf: Conf, request: Request, view: View, signals: StopSignals, site: Site
    ) -> None:
        self._conf = conf
        self._request = request
        self._site = site
        self._view = view
        self._signals = signals
        self._tables = settings.tables_folder(conf, site.directory)
        self._storm_id = storm_id(request.topology, time.time())
        self._roster = roster(request, site, self._storm_id)
        self._processes = Children(site.directory, view.note)
        self._children = self._processes.by_name
        self._ready_noted: set[str] = set()
        self._rates = Rates()
        self._memory: dict[str, float] = {}
        self._watch: ClusterWatcher | None = None
        self._began = time.monotonic()
        self._worker_log = WorkerLog()

    def run(self) -> int:
        """Start, watch, stop, report."""
        code = 0
        try:
            self._start()
            code = self._watch_until_end()
        except StartInterruptedError:
            self._view.note("stopping before everything was up")
        except (ChildError, LocalClusterError) as error:
            # Said now, as stopping takes a while.
            self._view.note(f"storm: {error}")
            code = 1
        finally:
            try:
                self._finish()
            except BaseException:  # such as nobody being there any more to show it to
                end_marked(self._site.mark, settle_secs=0)
                raise
        return code

    # --- start -------------------------------------------------------------------------------

    def _start(self) -> None:
        zookeeper, pacemakers = self._site.zookeeper, self._site.pacemakers
        overrides = self._request.overrides
        self._site.temporary.mkdir()
        conf = settings.of_run(self._conf, overrides, self._site.directory, zookeeper, pacemakers)
        conf.write(self._site.conf_file)
        self._start_stage(Stage.SERVERS)
        self._wait_ready(Stage.SERVERS)
        submit(conf, self._storm_id, node=NODE, port=PORT, script=self._request.topology)
        self._watch = ClusterWatcher(
            pacemakers,
            period_secs=min(0.5, self._conf["task.heartbeat.frequency.secs"] / 4),
            settings=ClientSettings.of(conf),
        )
        for key in settings.passed_over(overrides):
            self._view.note(f"-c {key}: a local cluster has its own, this one is passed over")
        self._start_stage(Stage.WORKERS)
        self._wait_ready(Stage.WORKERS)
        for command in hints.commands(self._conf, zookeeper, [str(a) for a in pacemakers]):
            self._view.note(f"in another shell: {command}")

    def _start_stage(self, stage: Stage) -> None:
        for planned in self._roster:
            if planned.stage is stage and planned.name not in self._children:
                self._processes.start(
                    planned.name, planned.command, planned.ready, planned.environment
                )

    def _wait_ready(self, stage: Stage) -> None:
        for planned in self._roster:
            if planned.stage is stage:
                self._processes.wait_ready(planned.name, START_SECS, lambda: self._signals.stopped)
                self._note_ready(planned)

    def _note_ready(self, planned: PlannedProcess) -> None:
        child = self._children.get(planned.name)
        if child is None or child.ready_match is None or planned.name in self._ready_noted:
            return
        self._ready_noted.add(planned.name)
        note = planned.ready_note.format(child.ready_match.group(1))
        self._view.note(f"{note} (process {child.pid})")

    # --- watch -------------------------------------------------------------------------------

    def _watch_until_end(self) -> int:
        began = self._began = time.monotonic()
        measured = 0.0
        while not self._signals.wait(LOOK_SECS):
            now = time.monotonic()
            if now - measured > 2.0:
                measured = now
                self._memory = self._processes.memory_mib()
            self._start_analyses_when_due()
            self._note_all_ready()
            self._processes.note_ends()
            self._note_warnings()
            self._show(RUNNING)
            if self._request.seconds is not None and now - began >= self._request.seconds:
                return 0
            self._check_children()
            if self._children[WORKER].returncode == 0:
                self._view.note(f"all queries of {self._storm_id} have ended")
                self._have_end_written_down()
                return 0
        return 0

    def _have_end_written_down(self) -> None:
        """Wait until the tables have the worker's end, if they outlive the run."""
        if not self._request.pipeline or not settings.keeps_tables(self._conf):
            return
        self._view.note(f"waiting until the tables in {self._tables} say so, too")
        self._start_stage(Stage.ANALYSES)
        worker = WorkerId(self._storm_id, NODE, PORT)
        why = f"after {START_SECS:.0f} s"
        deadline = time.monotonic() + START_SECS
        while not self._signals.wait(LOOK_SECS) and time.monotonic() < deadline:
            # First, so that what is looked at after its end is all that it has written.
            pipeline = self._children.get(PIPELINE)
            is_over = pipeline is not None and pipeline.returncode is not None
            self._note_all_ready()
            self._processes.note_ends()
            self._show(RUNNING)
            self._check_children()
            if outcome.statuses(self._tables).get(worker) == COMPLETED:
                return
            if is_over:  # somebody has killed it
                why = "without the pipeline"
                break
        if not self._signals.stopped:
            self._view.note(
                f"storm: {why} the tables in {self._tables} do not say that {self._storm_id} is"
                " completed; they stay as they are"
            )

    def _start_analyses_when_due(self) -> None:
        if self._watch is not None and is_pipeline_due(
            self._watch.snapshot(), time.monotonic() - self._began
        ):
            self._start_stage(Stage.ANALYSES)

    def _note_all_ready(self) -> None:
        for planned in self._roster:
            self._note_ready(planned)

    def _note_warnings(self) -> None:
        for line in self._worker_log.said(self._children[WORKER].new_log_lines()):
            self._view.note(line)

    def _check_children(self) -> None:
        for planned in self._roster:
            child = self._children.get(planned.name)
            if (
                planned.when_ended is WhenEnded.END_RUN
                and child is not None
                and (child.returncode or 0) > 0
            ):
                raise LocalClusterError(self._why_ended(planned.name))

    def _why_ended(self, name: str) -> str:
        """Say that a process has ended with an error, and why if that was not shown already."""
        child = self._children[name]
        if name == WORKER:
            self._note_warnings()
            if self._worker_log.has_error:
                return f"the worker {child.state()}, for the reason above"
        return f"the {name} {child.state()}:\n{child.log_tail()}"

    def _show(self, hint: str) -> None:
        if self._watch is None or WORKER not in self._children:
            return
        snapshot = self._watch.snapshot()
        # Read after the snapshot, so that no pulse in it is newer.
        now = time.monotonic()
        self._view.show(self._picture(snapshot, now, now - self._began, hint))

    def _picture(self, snapshot: Snapshot, now: float, up_secs: float, hint: str) -> Picture:
        worker, pipeline = self._children[WORKER], self._children.get(PIPELINE)
        starts = pipeline is not None and pipeline.state() == "starting"
        is_waiting = hint == RUNNING and worker.returncode is None
        output, output_count = worker.output()
        return Picture(
            title=self._storm_id,
            hint=hint,
            waits_for=waits_for(snapshot, pipeline_starts=starts) if is_waiting else "",
            is_running=hint == RUNNING,
            is_last=hint == STOPPED,
            now=now,
            up_secs=up_secs,
            processes=[
                ProcessSeen(
                    planned.name,
                    child.pid,
                    child.state(),
                    planned.address,
                    self._memory.get(planned.name, 0.0),
                )
                for planned in self._roster
                if (child := self._children.get(planned.name)) is not None
            ],
            snapshot=snapshot,
            statuses=outcome.statuses(self._tables),
            rates=self._rates.update(now, snapshot.components()),
            output=output,
            output_count=output_count,
        )

    # --- stop --------------------------------------------------------------------------------

    def _finish(self) -> None:
        began = time.monotonic()
        if self._children:
            self._view.note("stopping")
            self._show(STOPPING)
        snapshot = None
        by_order = sorted(self._roster, key=lambda planned: planned.stop_order)
        for _, together in groupby(by_order, lambda planned: planned.stop_order):
            names = [planned.name for planned in together]
            self._processes.stop(names, GRACE_SECS)
            if WORKER in names and WORKER in self._children:
                self._note_warnings()
            if WORKER in names and self._watch is not None:
                # Its last heartbeat is there, and the Pacemakers still are.
                snapshot = self._watch.finish()
        left = end_marked(self._site.mark, settle_secs=2.0)
        if left:
            self._view.note(f"{left} processes had to be ended by force")
        if snapshot is not None and WORKER in self._children:
            # The last pulses came after the stop was asked for, and end the time that is shown.
            now = max([began, *(worker.last_received for worker in snapshot.workers)])
            self._view.show(self._picture(snapshot, now, began - self._began, STOPPED))
        if self._children:
            self._view.note(f"stopped after {time.monotonic() - began:.1f} s")
        if self._request.report is not None and snapshot is not None:
            seen = report.build(
                snapshot,
                now=began,
                tables=outcome.rows(self._tables),
                processes_left=left,
            )
            report.write(self._request.report, seen)
            self._view.note(f"report written to {self._request.report}")
