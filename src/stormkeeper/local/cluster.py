"""A whole cluster on this machine, as real processes on free loopback ports.

ZooKeeper, two Pacemakers, the topology's worker and the heartbeat pipeline are started, watched
and stopped here; `storm local` is this. Nothing restarts what dies: a killed Pacemaker stays
down and its worker moves to the other one; a killed worker is seen to be dead.
"""

import contextlib
import logging
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from stormkeeper.conf import Address, Conf
from stormkeeper.daemon.children import Children, StartInterruptedError
from stormkeeper.daemon.lifecycle import DIE_WITH_PARENT, StopSignals
from stormkeeper.daemon.orphans import RUN_MARK, end_marked
from stormkeeper.errors import ChildError, LocalClusterError
from stormkeeper.local import hints, outcome, report, settings
from stormkeeper.local.folder import RunFolder, remove_abandoned
from stormkeeper.local.ledger import Snapshot
from stormkeeper.local.naming import storm_id
from stormkeeper.local.reaper import Reaper
from stormkeeper.local.submission import submit
from stormkeeper.local.view import COMPLETED, Picture, ProcessSeen, Rates, View, view_on
from stormkeeper.local.waiting import is_pipeline_due, waits_for
from stormkeeper.local.watch import Watch
from stormkeeper.local.worker_log import WorkerLog
from stormkeeper.pacemaker.client.settings import ClientSettings

log = logging.getLogger(__name__)

PACEMAKERS = 2

#: Slot of the one worker.
NODE, PORT = "local", 6700

#: Without the current folder on its path, where a file may have the name of a library's module.
PYTHON = (sys.executable, "-P", "-m")

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

LISTENING = re.compile(r"^(?:zookeeper|pacemaker) listening on (\S+)$")
BEATING = re.compile(r"^worker beating (\S+) (\S+) (\S+)$")
WRITING = re.compile(r"^pipeline writing to (.+)$")


@dataclass(frozen=True)
class Request:
    """What to run.

    Parameters
    ----------
    topology
        The script: a topology, or any PySpark streaming script.
    overrides
        The user's own ``key=value`` settings, which win over the topology's.
    seconds
        How long to run once the worker beats; None until Ctrl-C or until the topology ends.
    report
        Where to write what was seen, as JSON.
    strict
        Whether an unknown configuration key is an error.
    arguments
        What the script finds in ``sys.argv``.
    py_files
        Modules and archives of modules that the script can import.
    pipeline
        Whether the heartbeat pipeline runs beside it.
    """

    topology: Path
    overrides: Sequence[str] = ()
    seconds: float | None = None
    report: Path | None = None
    strict: bool = False
    arguments: Sequence[str] = ()
    py_files: Sequence[Path] = ()
    pipeline: bool = True


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
        return Cluster(conf, request, view, signals, directory=folder.path, mark=mark).run()


class Cluster:
    """The processes of one run, in `directory`, which nothing outlives; they carry `mark`."""

    def __init__(
        self,
        conf: Conf,
        request: Request,
        view: View,
        signals: StopSignals,
        *,
        directory: Path,
        mark: str,
    ) -> None:
        self._conf = conf
        self._request = request
        self._directory = directory
        self._view = view
        self._signals = signals
        self._tables = settings.tables_folder(conf, directory)
        self._mark = mark
        self._storm_id = storm_id(request.topology, time.time())
        self._processes = Children(directory, view.note)
        self._children = self._processes.by_name
        self._addresses: dict[str, str] = {}
        self._rates = Rates()
        self._memory: dict[str, float] = {}
        self._watch: Watch | None = None
        self._began = time.monotonic()
        self._pipeline_conf: Path | None = None
        self._pipeline_noted = False
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
                end_marked(self._mark, settle_secs=0)
                raise
        return code

    # --- start -------------------------------------------------------------------------------

    def _start(self) -> None:
        (self._directory / "tmp").mkdir()
        servers_conf = settings.of_servers(self._conf, self._request.overrides, self._directory)
        first = self._write_conf("servers.yaml", servers_conf)
        self._spawn("zookeeper", ["dev-zookeeper", "--config", str(first)], LISTENING)
        pacemakers = [f"pacemaker {n}" for n in range(1, PACEMAKERS + 1)]
        for name in pacemakers:
            self._spawn(name, ["pacemaker", "--config", str(first)], LISTENING)
        for name in ("zookeeper", *pacemakers):
            self._addresses[name] = self._ready(name).group(1)
            self._note_listening(name)
        zookeeper = Address.parse(self._addresses["zookeeper"], 0)
        servers = [self._addresses[name] for name in pacemakers]
        cluster_conf = settings.of_cluster(servers_conf, zookeeper, servers)
        second = self._write_conf("cluster.yaml", cluster_conf)
        submit(cluster_conf, self._storm_id, node=NODE, port=PORT, script=self._request.topology)
        self._watch = Watch(
            [Address.parse(server, 0) for server in servers],
            period_secs=min(0.5, self._conf["task.heartbeat.frequency.secs"] / 4),
            settings=ClientSettings.of(cluster_conf),
        )
        self._spawn_worker(second)
        self._ready("worker")
        self._view.note(f"worker {self._storm_id} beats (process {self._children['worker'].pid})")
        for command in hints.commands(self._conf, zookeeper, servers):
            self._view.note(f"in another shell: {command}")
        if self._request.pipeline:
            self._pipeline_conf = second

    def _spawn_worker(self, conf_file: Path) -> None:
        argv = [*PYTHON, "stormkeeper.worker", str(self._request.topology)]
        argv += ["--storm-id", self._storm_id, "--node", NODE, "--port", str(PORT)]
        argv += ["--config", str(conf_file)]
        argv += [f"--conf={override}" for override in self._topologys_overrides()]
        if self._request.strict:
            argv.append("--strict")
        for file in self._request.py_files:
            argv += ["--py-files", str(file)]
        argv += ["--", *self._request.arguments]
        self._processes.start("worker", argv, BEATING, self._environment())

    def _topologys_overrides(self) -> list[str]:
        """Return the user's settings but for those by which the processes find each other."""
        kept = []
        for override in self._request.overrides:
            key = settings.key_of(override)
            if key in settings.OWN_KEYS:
                self._view.note(f"-c {key}: a local cluster has its own, this one is passed over")
            else:
                kept.append(override)
        return kept

    def _spawn(self, name: str, command: Sequence[str], ready: re.Pattern[str]) -> None:
        self._processes.start(name, [*PYTHON, "stormkeeper", *command], ready, self._environment())

    def _environment(self) -> dict[str, str]:
        temporary = str(self._directory / "tmp")
        return {
            RUN_MARK: self._mark,
            DIE_WITH_PARENT: str(os.getpid()),
            # Whatever Spark and the JVM put aside goes with the run, even where they are killed.
            "TMPDIR": temporary,
            "SPARK_LOCAL_DIRS": temporary,
        }

    def _ready(self, name: str) -> re.Match[str]:
        return self._processes.wait_ready(name, START_SECS, lambda: self._signals.stopped)

    def _write_conf(self, name: str, conf: Conf) -> Path:
        path = self._directory / name
        conf.write(path)
        return path

    def _note_listening(self, name: str) -> None:
        pid = self._children[name].pid
        self._view.note(f"{name} listens on {self._addresses[name]} (process {pid})")

    # --- watch -------------------------------------------------------------------------------

    def _watch_until_end(self) -> int:
        began = self._began = time.monotonic()
        measured = 0.0
        while not self._signals.wait(LOOK_SECS):
            now = time.monotonic()
            if now - measured > 2.0:
                measured = now
                self._memory = self._processes.memory_mib()
            self._start_pipeline_when_due()
            self._note_pipeline()
            self._processes.note_ends()
            self._note_warnings()
            self._show(RUNNING)
            if self._request.seconds is not None and now - began >= self._request.seconds:
                return 0
            self._check_children()
            if self._children["worker"].returncode == 0:
                self._view.note(f"all queries of {self._storm_id} have ended")
                self._have_end_written_down()
                return 0
        return 0

    def _have_end_written_down(self) -> None:
        """Wait until the tables have the worker's end, where they outlive the run."""
        if self._pipeline_conf is None or not settings.keeps_tables(self._conf):
            return
        self._view.note(f"waiting until the tables in {self._tables} say so, too")
        self._spawn_pipeline(self._pipeline_conf)
        slot = (self._storm_id, NODE, PORT)
        deadline = time.monotonic() + START_SECS
        while not self._signals.wait(LOOK_SECS) and time.monotonic() < deadline:
            self._note_pipeline()
            self._show(RUNNING)
            self._check_children()
            if outcome.statuses(self._tables).get(slot) == COMPLETED:
                return
        if not self._signals.stopped:
            self._view.note(
                f"storm: after {START_SECS:.0f} s the tables in {self._tables} do not say that"
                f" {self._storm_id} is completed; they stay as they are"
            )

    def _start_pipeline_when_due(self) -> None:
        if self._pipeline_conf is None or self._watch is None:
            return
        if is_pipeline_due(self._watch.snapshot(), time.monotonic() - self._began):
            self._spawn_pipeline(self._pipeline_conf)

    def _spawn_pipeline(self, conf_file: Path) -> None:
        if "pipeline" not in self._children:
            self._spawn("pipeline", ["pipeline", "--config", str(conf_file)], WRITING)

    def _note_pipeline(self) -> None:
        child = self._children.get("pipeline")
        if child is not None and child.ready_match and not self._pipeline_noted:
            self._pipeline_noted = True
            self._view.note(
                f"pipeline writes its tables to {child.ready_match.group(1)} (process {child.pid})"
            )

    def _note_warnings(self) -> None:
        for line in self._worker_log.said(self._children["worker"].new_log_lines()):
            self._view.note(line)

    def _check_children(self) -> None:
        for name in ("worker", "pipeline"):
            child = self._children.get(name)
            if child is not None and (child.returncode or 0) > 0:
                raise LocalClusterError(self._why_ended(name))

    def _why_ended(self, name: str) -> str:
        """Say that a process has ended with an error, and why, unless its log was shown already."""
        child = self._children[name]
        if name == "worker":
            self._note_warnings()
            if self._worker_log.has_error:
                return f"the worker {child.state()}, for the reason above"
        return f"the {name} {child.state()}:\n{child.log_tail()}"

    def _show(self, hint: str) -> None:
        if self._watch is None or "worker" not in self._children:
            return
        snapshot = self._watch.snapshot()
        # Read after the snapshot, so that no pulse in it is newer.
        now = time.monotonic()
        self._view.show(self._picture(snapshot, now, now - self._began, hint))

    def _picture(self, snapshot: Snapshot, now: float, up_secs: float, hint: str) -> Picture:
        worker, pipeline = self._children["worker"], self._children.get("pipeline")
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
                    name,
                    child.pid,
                    child.state(),
                    self._addresses.get(name, ""),
                    self._memory.get(name, 0.0),
                )
                for name, child in self._children.items()
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
        # The worker first, as its last pulse carries the final counts; the Pacemakers last.
        self._processes.stop(["worker"], GRACE_SECS)
        if "worker" in self._children:
            self._note_warnings()
        snapshot = self._watch.finish() if self._watch is not None else None
        for name in ("pipeline", "pacemaker", "zookeeper"):
            self._processes.stop([n for n in self._children if n.startswith(name)], GRACE_SECS)
        left = end_marked(self._mark, settle_secs=2.0)
        if left:
            self._view.note(f"{left} processes had to be ended by force")
        if snapshot is not None and "worker" in self._children:
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
