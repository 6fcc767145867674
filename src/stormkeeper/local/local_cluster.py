"""A whole cluster on this machine, as real processes on free loopback ports: `storm local`.

This module starts, watches and stops the processes of `run_plan`, and restarts none: if a Nimbus or
a Pacemaker is killed, the other copy goes on. Supervisors restart their own workers.
"""

import contextlib
import logging
import os
import re
import signal
import tempfile
import time
import uuid
from itertools import groupby
from pathlib import Path

from rich.console import Console

from stormkeeper.conf import Address, Conf
from stormkeeper.daemon import spark_environment
from stormkeeper.daemon.children import Children, end_marked, memory_mib
from stormkeeper.daemon.lifecycle import StopSignals
from stormkeeper.errors import ConfigError, LocalClusterError, StormkeeperError
from stormkeeper.local import reservations, run_plan, run_view
from stormkeeper.local.pacemaker_watch import ClusterWatcher, RunSnapshot
from stormkeeper.local.reservations import Reaper, make_run_folder
from stormkeeper.local.run_plan import HOST, PIPELINE, RunRequest, RunSite, ServerAddresses
from stormkeeper.local.run_topology import LocalWorkers, Submission, WorkerLog, end_topology
from stormkeeper.local.run_view import COMPLETED, ComponentRates, Picture, ProcessRow, RunView
from stormkeeper.pacemaker.client.client_settings import ClientSettings
from stormkeeper.supervisor.disk import Directories

log = logging.getLogger(__name__)

#: Of Nimbus and of the Pacemaker.
COPIES = 2

#: Of a process; Spark on a busy machine needs most of a minute.
START_SECS = 120.0

#: For a process that stops: workers and pipeline finish a running batch for 15 s, and then stop
#: Spark.
GRACE_SECS = 40.0

#: Between two looks at the processes, until the first pulse and later.
START_LOOK_SECS = 0.1
LOOK_SECS = 0.5

#: A supervisor's log line about a crashed worker. Exit code 143 (SIGTERM) is an operator's kill.
_CRASHED = re.compile(r" crashed \(\d+ in a row\): it ended with exit code (?!143;)")

RUNNING = "Ctrl-C stops everything. The commands above look into it from another shell."
STOPPING = "Stopping: running batches are finished first. Another Ctrl-C ends everything at once."
STOPPED = "Everything has stopped."


def run(conf: Conf, request: RunRequest) -> int:
    """Run the cluster until a signal or the topology's end; returns the exit code.

    Raises `EngineError` without a Java for Spark, and `LocalClusterError` without the script.
    """
    if not request.topology.is_file():
        raise LocalClusterError(f"there is no file {request.topology}: name a topology's script")
    spark_environment.find_java()
    mark = uuid.uuid4().hex
    view = run_view.view_on(Console())
    if removed := spark_environment.clean(os.environ):
        view.note(spark_environment.removal_text(removed))
    spark_environment.complete(os.environ)
    folder = make_run_folder()

    def end_at_once(number: int) -> None:
        view.abandon()
        name = signal.Signals(number).name
        with contextlib.suppress(OSError):  # closed terminal
            os.write(2, f"storm: ended at once by one more {name}\n".encode())
        end_marked(mark, settle_secs=0)
        folder.cleanup()

    # SIGHUP: the terminal was closed.
    with (
        StopSignals(also=[signal.SIGHUP], at_once=end_at_once) as signals,
        folder as path,
        view,
        Reaper(path, mark),
    ):
        # Files made here vanish with the run, even if this process is killed.
        tempfile.tempdir = path
        return LocalCluster(conf, request, view, signals, _site(Path(path), mark)).run()


def _site(directory: Path, mark: str) -> RunSite:
    def several() -> tuple[Address, ...]:
        return tuple(Address(HOST, reservations.reserve(HOST)) for _ in range(COPIES))

    places = ServerAddresses(Address(HOST, reservations.reserve(HOST)), several(), several())
    return RunSite(directory, mark, places)


class LocalCluster:
    """The processes of a run."""

    def __init__(
        self, conf: Conf, request: RunRequest, view: RunView, signals: StopSignals, site: RunSite
    ) -> None:
        self._conf = conf
        self._request = request
        self._site = site
        self._view = view
        self._signals = signals
        self._tables = run_plan.tables_folder(conf, site.directory)
        self._run_conf = run_plan.run_conf(conf, request.overrides, site.directory, site.places)
        self._planned = run_plan.plan_processes(conf, site, pipeline=request.pipeline)
        self._processes = Children(site.directory, view.note)
        self._children = self._processes.by_name
        self._ready_noted: set[str] = set()
        self._rates = ComponentRates()
        self._memory: dict[str, float] = {}
        self._measured_at = 0.0
        self._watch: ClusterWatcher | None = None
        self._began = time.monotonic()
        self._beats_at: float | None = None
        self._submission = Submission(conf, self._run_conf, request, START_SECS, view.note)
        self._machines = [
            Directories.from_conf({**self._run_conf, "storm.local.dir": str(site.folder(name))})
            for name in site.machines
        ]
        self._workers = LocalWorkers(self._machines, request.topology.resolve().parent)
        self._machine_logs = {name: WorkerLog(name) for name in site.machines}
        self._has_failed = False

    def run(self) -> int:
        code = 0
        try:
            self._start()
            code = self._watch_until_end()
        except StormkeeperError as error:
            # Stopping takes a while, so the error comes first.
            self._view.note(f"storm: {error}")
            code = 2 if isinstance(error, ConfigError) else 1
        finally:
            try:
                self._finish()
            except BaseException:  # such as a closed terminal
                end_marked(self._site.mark, settle_secs=0)
                raise
        return code

    def _start(self) -> None:
        self._site.temporary.mkdir()
        self._run_conf.write(self._site.conf_file)
        self._start_processes(pipeline=False)
        self._submission.start()
        self._watch = ClusterWatcher(
            self._site.places.pacemakers,
            period_secs=min(0.5, self._conf["task.heartbeat.frequency.secs"] / 4),
            settings=ClientSettings.of(self._run_conf),
        )
        for key in run_plan.ignored_keys(self._request.overrides):
            self._view.note(f"-c {key}: a local cluster has its own, this one is passed over")

    def _start_processes(self, *, pipeline: bool) -> None:
        """Start the pipeline, or all other processes, each of which waits for its servers."""
        for planned in self._planned:
            if (planned.name == PIPELINE) == pipeline and planned.name not in self._children:
                self._processes.start(
                    planned.name, planned.command, planned.ready, self._site.environment()
                )

    def _watch_until_end(self) -> int:
        while not self._signals.wait(START_LOOK_SECS if self._beats_at is None else LOOK_SECS):
            self._submission.check()
            self._note_news()
            self._start_pipeline_when_due()
            self._show(RUNNING)
            self._check()
            now, secs = time.monotonic(), self._request.seconds
            if secs is not None and self._beats_at is not None and now - self._beats_at >= secs:
                return 0
            if self._watch is not None and run_view.is_completed(
                self._watch.snapshot(), self._submission.nimbus_view
            ):
                # A worker writes its last output before it sends its last pulse.
                self._note_news()
                self._view.note(f"all queries of {self._submission.storm_id} have ended")
                self._have_end_written_down()
                return 0
        if self._beats_at is None:
            self._view.note("stopping before everything was up")
        return 0

    def _note_news(self) -> None:
        self._note_all_ready()
        self._processes.note_ends()
        submission = self._submission
        if submission.storm_id and not self._has_failed:
            for line in self._workers.look(submission.storm_id):
                self._view.note(line)
            self._has_failed = self._workers.have_failed
        if self._beats_at is None and self._workers.beat:
            self._beats_at = time.monotonic()
            places = self._site.places
            for command in run_plan.shell_commands(self._conf, places, submission.name):
                self._view.note(f"in another shell: {command}")
        for name, machine_log in self._machine_logs.items():
            if name in self._ready_noted and not self._has_failed:
                notes = machine_log.read(self._children[name].growing_log.new_lines()).notes
                for line in notes:
                    self._view.note(line)
                self._has_failed = any(_CRASHED.search(line) for line in notes)

    def _have_end_written_down(self) -> None:
        """Wait until tables that outlive the run contain the workers' end."""
        if not self._request.pipeline or not run_plan.keeps_tables(self._conf):
            return
        self._view.note(f"waiting until the tables in {self._tables} say so, too")
        self._start_processes(pipeline=True)
        why = f"after {START_SECS:.0f} s"
        deadline = time.monotonic() + START_SECS
        while not self._signals.wait(LOOK_SECS) and time.monotonic() < deadline:
            # Read before the tables: after the pipeline's end they are final.
            pipeline = self._children.get(PIPELINE)
            is_over = pipeline is not None and pipeline.returncode is not None
            self._note_news()
            self._show(RUNNING)
            self._check()
            statuses = run_view.worker_statuses(self._tables).values()
            if statuses and all(status == COMPLETED for status in statuses):
                return
            if is_over:  # killed
                why = "without the pipeline"
                break
        if not self._signals.stopped:
            self._view.note(
                f"storm: {why} the tables in {self._tables} do not say that"
                f" {self._submission.storm_id} is completed; they stay as they are"
            )

    def _start_pipeline_when_due(self) -> None:
        if self._watch is not None and self._beats_at is not None:
            up_secs = time.monotonic() - self._beats_at
            if run_view.is_pipeline_due(self._watch.snapshot(), up_secs):
                self._start_processes(pipeline=True)

    def _note_all_ready(self) -> None:
        for planned in self._planned:
            child = self._children.get(planned.name)
            if child is None or child.ready_match is None or planned.name in self._ready_noted:
                continue
            self._ready_noted.add(planned.name)
            if planned.name in self._machine_logs:
                child.growing_log.new_lines()  # skip its messages from the start of the cluster
            note = planned.ready_note.format(child.ready_match.group(1))
            self._view.note(f"{note} (process {child.pid})")

    def _check(self) -> None:
        if self._has_failed:
            raise LocalClusterError(f"{self._submission.storm_id} has failed, for the reason above")
        for name, child in self._children.items():
            if (child.returncode or 0) > 0:
                raise LocalClusterError(f"the {name} {child.state()}:\n{child.log_tail()}")

    def _show(self, hint: str) -> None:
        if self._watch is None:
            return
        snapshot = self._watch.snapshot()
        # Read after the snapshot, so that no pulse is newer.
        now = time.monotonic()
        if self._beats_at is not None and now - self._measured_at > 2.0:
            workers = self._workers.processes()
            self._measured_at, self._memory = now, self._processes.memory_mib(without=workers)
        self._view.show(self._picture(snapshot, now, now - self._began, hint))

    def _picture(self, snapshot: RunSnapshot, now: float, up_secs: float, hint: str) -> Picture:
        pipeline, submission = self._children.get(PIPELINE), self._submission
        starts = pipeline is not None and pipeline.state() == "starting"
        nimbus_view = submission.nimbus_view
        is_waiting = (
            hint == RUNNING
            and not self._has_failed
            and not run_view.is_completed(snapshot, nimbus_view)
        )
        output, output_count = self._workers.output
        return Picture(
            title=submission.storm_id or self._request.topology.name,
            hint=hint,
            waits_for=run_view.waits_for(
                snapshot,
                is_submitted=bool(submission.storm_id),
                nimbus_view=nimbus_view,
                pipeline_starts=starts,
            )
            if is_waiting
            else "",
            is_running=hint == RUNNING,
            is_last=hint == STOPPED,
            now=now,
            up_secs=up_secs,
            processes=self._process_rows(),
            snapshot=snapshot,
            statuses=run_view.worker_statuses(self._tables),
            rates=self._rates.update(now, snapshot.components()),
            output=output,
            output_count=output_count,
            machines=self._machines_by_id(),
        )

    def _process_rows(self) -> list[ProcessRow]:
        daemons = [
            ProcessRow(
                planned.name,
                child.pid,
                child.state(),
                planned.address,
                self._memory.get(planned.name, 0.0),
            )
            for planned in self._planned
            if (child := self._children.get(planned.name)) is not None
        ]
        workers = [
            ProcessRow("worker", pid, state, "", memory_mib(pid))
            for pid, state in self._workers.processes().items()
        ]
        return [*daemons, *workers]

    def _machines_by_id(self) -> dict[str, str]:
        found = {}
        for name in self._site.machines:
            child = self._children.get(name)
            if child is not None and child.ready_match is not None:
                found[child.ready_match.group(1)] = name
        return found

    def _finish(self) -> None:
        began = time.monotonic()
        if self._children:
            self._view.note("stopping")
            self._show(STOPPING)
        self._submission.close()
        end_topology(
            self._submission,
            self._machines,
            GRACE_SECS,
            lambda: self._processes.stop(self._site.machines, GRACE_SECS),
            self._view.note,
        )
        snapshot = None
        if self._children:
            self._note_news()
        if self._watch is not None:
            # The Pacemakers still run and have the workers' last heartbeats.
            snapshot = self._watch.finish()
        by_order = sorted(self._planned, key=lambda planned: planned.stop_order)
        for _, together in groupby(by_order, lambda planned: planned.stop_order):
            self._processes.stop([planned.name for planned in together], GRACE_SECS)
        left = end_marked(self._site.mark, settle_secs=2.0)
        if left:
            self._view.note(f"{left} processes had to be ended by force")
        if snapshot is not None:
            # Pulses after the stop request extend the time that is shown.
            now = max([began, *(worker.last_received for worker in snapshot.workers)])
            self._view.show(self._picture(snapshot, now, began - self._began, STOPPED))
        if self._children:
            self._view.note(f"stopped after {time.monotonic() - began:.1f} s")
        if self._request.report is not None and snapshot is not None:
            seen = run_view.build_report(
                snapshot, now=began, tables=run_view.table_rows(self._tables), processes_left=left
            )
            run_view.write_report(self._request.report, seen)
            self._view.note(f"report written to {self._request.report}")
