"""The topology of a run: submission, status at Nimbus, workers and the end.

The steps are those of ``storm submit``, during the cluster's start, but no packages are installed:
a run uses those of ``storm``'s Python. A worker's log has its standard output and standard error. A
log record of the worker, the user's loggers or Spark has a known first line and indented further
lines; all other lines are the topology's output.
"""

import contextlib
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import psutil

from stormkeeper.client import (
    package_builder,
    topology_commands,
    topology_submission,
    topology_view,
)
from stormkeeper.client.nimbus_connection import NimbusConnection, connect
from stormkeeper.conf import Conf
from stormkeeper.daemon.children import GrowingLog
from stormkeeper.daemon.logs import CONTINUED
from stormkeeper.daemon.periodic import in_thread
from stormkeeper.errors import LocalClusterError, RpcError, StormkeeperError
from stormkeeper.local import run_plan
from stormkeeper.local.run_plan import RunRequest
from stormkeeper.supervisor.disk import Directories
from stormkeeper.supervisor.worker_processes import WorkerProcesses, end_workers
from stormkeeper.topology.package.code import collect

#: Frequent attempts to find the leader: the Nimbuses are on this machine.
_SEARCH: Final = {
    "storm.nimbus.retry.times": 600,
    "storm.nimbus.retry.interval.millis": 200,
    "storm.nimbus.retry.intervalceiling.millis": 200,
}

#: Between two status requests to Nimbus.
_LOOK_SECS: Final = 1.0

#: At the end of a run: for a request under way, and for a leader.
_END_SECS: Final = 3.0
_FINDING_SECS: Final = 5.0

#: Between two looks at the workers that are left.
_END_LOOK_SECS: Final = 0.1

#: For the view.
KEPT_LINES: Final = 200

#: First line of a record: time, level, logger, message.
_RECORD = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z (?P<level>[A-Z]+) +(?P<logger>\S+) (?P<text>.*)")

#: Messages of a JVM that starts, and of a worker that beats.
_CEREMONY = re.compile(
    r"^(?:WARNING: (?:Using incubator modules|A terminally deprecated method|A restricted method"
    r"|sun\.misc|java\.lang|Please consider reporting|Use --enable-native|Restricted methods)"
    r"|worker beating (?P<beating>\S+) \S+ \d+$)"
)

_SHOWN = frozenset({"WARNING", "ERROR", "CRITICAL"})

_OURS = "stormkeeper"

#: The logger whose errors end a worker.
_FAILING = "stormkeeper.worker.process"

#: Loggers of Spark and its libraries, in Python and in the JVM.
_ENGINE = re.compile(
    r"(?:py4j|pyspark|DataFrameQueryContextLogger|SQLQueryContextLogger"
    r"|org\.apache|org\.sparkproject|io\.netty)(?:\.|$)"
)


class Submission:
    """The topology of a run: submitted, and followed at Nimbus, on a thread.

    `cluster` is the run's configuration, which names the Nimbuses; `finding_secs` the timeout for
    the first leader.
    """

    def __init__(
        self,
        conf: Conf,
        cluster: Conf,
        request: RunRequest,
        finding_secs: float,
        warn: Callable[[str], None],
    ) -> None:
        self._warn = warn
        self._conf = conf
        self._cluster = cluster.with_values(_SEARCH)
        self._request = request
        self._finding_secs = finding_secs
        self._closing = threading.Event()
        self._work: Future[None] | None = None
        #: Once Nimbus has accepted the topology.
        self.name = self.storm_id = ""
        #: Nimbus's last answer.
        self.nimbus_view: topology_view.TopologyView | None = None

    def start(self) -> None:
        self._work = in_thread(self._submit_and_follow, "submission")

    def check(self) -> None:
        """Raise the error that kept the topology from being submitted, if any."""
        if self._work is not None and self._work.done():
            self._work.result()

    def close(self) -> None:
        """Stop following the topology, and cancel a submission that is not sent yet."""
        self._closing.set()
        if self._work is not None:
            wait([self._work], _END_SECS)

    def kill(self) -> None:
        """Have Nimbus kill the topology at once; does not wait for an election."""
        with connect(self._cluster, finding_secs=_FINDING_SECS, say=_refuse) as connection:
            topology_commands.kill(connection, self.name, 0)

    def _submit_and_follow(self) -> None:
        request = self._request
        with tempfile.TemporaryDirectory(prefix="stormkeeper-submit-") as folder:
            code = collect(request.topology, Path(folder), request.py_files)
            code = replace(code, required=None)
            overrides = tuple(run_plan.topology_overrides(request.overrides))
            given = package_builder.SubmissionRequest(
                code=request.topology,
                arguments=tuple(request.arguments),
                py_files=tuple(request.py_files),
                files=tuple(self._conf.files),
                overrides=overrides,
            )
            with package_builder.describing_code(given, code) as description:
                described = description()
            conf = run_plan.topology_conf(
                self._conf, overrides, described.conf, strict=request.strict, warn=self._warn
            )
            listener = package_builder.SubmissionListener(
                _say_nothing, lambda _, __: None, self._warn, strict=request.strict
            )
            listener.report_unknown_keys(
                described.conf, f"the conf of the topology {described.name!r}"
            )
            values = package_builder.conf_to_send(described.conf, conf, described.name)
            with (
                package_builder.build_package(given, code, described, _say_nothing) as packed,
                connect(self._cluster, finding_secs=self._finding_secs) as connection,
            ):
                if self._closing.is_set():
                    return
                sent = topology_submission.send_package(
                    connection, self._cluster, packed, values, listener
                )
                self.name, self.storm_id = sent.name, sent.storm_id
                self._follow(connection)

    def _follow(self, connection: NimbusConnection) -> None:
        while not self._closing.is_set():
            # The leader may be killed; the next look finds another.
            with contextlib.suppress(RpcError):
                self.nimbus_view = topology_view.get_topology(connection, self.name)
            self._closing.wait(_LOOK_SECS)


def _refuse(said: str) -> None:
    raise LocalClusterError(said)


def _say_nothing(_: str) -> None:
    """Ignore progress messages: the cluster's start takes longer."""


def end_topology(
    submission: Submission,
    machines: Sequence[Directories],
    grace_secs: float,
    stop_supervisors: Callable[[], None],
    note: Callable[[str], None],
) -> None:
    """End a topology after the running batches; kill workers after `grace_secs`.

    `stop_supervisors` ends the supervisors, which would start workers again.
    """
    if submission.storm_id:
        try:
            submission.kill()
            _wait_gone(machines, grace_secs)
        except StormkeeperError as error:
            note(f"the topology is ended without Nimbus: {error}")
    if _any_left(machines):
        stop_supervisors()
        for machine in machines:
            try:
                end_workers(machine, grace_secs)
            except StormkeeperError as error:
                note(f"storm: {error}")


def _wait_gone(machines: Sequence[Directories], secs: float) -> None:
    deadline = time.monotonic() + secs
    while _any_left(machines) and time.monotonic() < deadline:
        time.sleep(_END_LOOK_SECS)


def _any_left(machines: Sequence[Directories]) -> bool:
    return any(WorkerProcesses(str(machine.supervisor)).strays() for machine in machines)


@dataclass
class LogNews:
    """News of a log: messages for the user, and the topology's output."""

    notes: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)
    #: Whether these lines have the worker's first heartbeat.
    beats: bool = False


class WorkerLog:
    """Reads a growing log; `name` precedes the messages."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: Whether the next lines may belong to a record, and whether the record is shown.
        self._is_in_record = self._is_shown = False
        #: Whether the worker logged the error that ends it.
        self.has_failed = False

    def read(self, lines: Iterable[str]) -> LogNews:
        """Return the news in the next `lines`.

        A record yields its message, after the name of a user's logger, and its further lines, such
        as a traceback, unchanged.
        """
        news = LogNews()
        for line in lines:
            if record := _RECORD.match(line):
                self._begin(record, news)
            elif self._is_in_record and line.startswith(CONTINUED):
                if self._is_shown:
                    news.notes.append(line)
            elif ceremony := _CEREMONY.match(line):
                news.beats |= ceremony["beating"] is not None
            else:
                self._is_in_record = False
                news.output.append(line)
        return news

    def _begin(self, record: re.Match[str], news: LogNews) -> None:
        logger = record["logger"]
        # Records of lower levels have one line.
        self._is_in_record = record["level"] in _SHOWN
        self._is_shown = self._is_in_record and not _ENGINE.match(logger)
        if self._is_shown:
            ours = logger.partition(".")[0] == _OURS
            text = record["text"] if ours else f"{logger}: {record['text']}"
            self.has_failed |= logger == _FAILING and record["level"] != "WARNING"
            news.notes.append(f"{self._name}: {text}")


@dataclass
class _Slot:
    folder: Path
    growing_log: GrowingLog
    pid: int | None = None
    log: WorkerLog = field(default_factory=lambda: WorkerLog("worker"))
    is_ready: bool = False

    def look_at_pid(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.folder / "worker.pid").read_text())
            if pid != self.pid:
                self.pid, self.is_ready = pid, False


class LocalWorkers:
    """The workers of the topology, read from ``worker.log`` and ``worker.pid`` of each slot.

    `machines` are the supervisors' folders. In messages, the folder of the user's `code` replaces
    that of the packed copy.
    """

    def __init__(self, machines: Sequence[Directories], code: Path) -> None:
        self._machines = machines
        places = "|".join(re.escape(str(machine.packages)) for machine in machines)
        self._packed = re.compile(rf"(?:{places})/[0-9a-f]+/code(?=/)")
        self._code = str(code)
        self._slots: dict[Path, _Slot] = {}
        self._output: list[str] = []
        self._output_count = 0

    def look(self, storm_id: str) -> list[str]:
        """Read new lines; return messages for the user."""
        for machine in self._machines:
            for folder in sorted((machine.all_artifacts / storm_id).glob("*")):
                self._slots.setdefault(folder, _Slot(folder, GrowingLog(folder / "worker.log")))
        notes = []
        for slot in self._slots.values():
            slot.look_at_pid()
            news = slot.log.read(slot.growing_log.new_lines())
            notes += [self._packed.sub(lambda _: self._code, line) for line in news.notes]
            if news.beats and not slot.is_ready:
                slot.is_ready = True
                notes.append(f"worker {storm_id} beats (process {slot.pid})")
            output = news.output
            if len(self._slots) > 1:
                output = [f"{slot.folder.name}: {line}" for line in output]
            self._output = [*self._output, *output][-KEPT_LINES:]
            self._output_count += len(output)
        return notes

    @property
    def output(self) -> tuple[Sequence[str], int]:
        """The last lines of the topology's output, and the number of all lines.

        With several workers, each line begins with its worker's port.
        """
        return self._output, self._output_count

    @property
    def beat(self) -> bool:
        return any(slot.is_ready for slot in self._slots.values())

    @property
    def have_failed(self) -> bool:
        """Whether a worker has logged an error and ends."""
        return any(slot.log.has_failed for slot in self._slots.values())

    def processes(self) -> dict[int, str]:
        """Return the state of each worker, by process id."""
        states = {s.pid: "running" if s.is_ready else "starting" for s in self._slots.values()}
        return {
            pid: state if psutil.pid_exists(pid) else "ended"
            for pid, state in states.items()
            if pid is not None
        }
