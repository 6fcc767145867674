"""Submits the topology of a run, follows its status on a thread, and ends its workers.

The steps are those of ``storm submit``, while the cluster starts. No packages are installed: a run
uses those of the Python that runs ``storm``.
"""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stormkeeper.client import (
    package_builder,
    submission_conf,
    topology_commands,
    topology_submission,
    topology_view,
)
from stormkeeper.client.nimbus_connection import NimbusConnection, connect
from stormkeeper.client.topology_view import TopologyView
from stormkeeper.conf import Conf
from stormkeeper.errors import LocalClusterError, RpcError, StormkeeperError
from stormkeeper.local import run_plan
from stormkeeper.local.run_plan import RunRequest
from stormkeeper.supervisor.directories import Directories
from stormkeeper.supervisor.worker_processes import WorkerProcesses, end_workers
from stormkeeper.topology.package.code import collect

#: The leader is searched for often: the Nimbuses are on this machine.
_SEARCH: Final = {
    "storm.nimbus.retry.times": 600,
    "storm.nimbus.retry.interval.millis": 200,
    "storm.nimbus.retry.intervalceiling.millis": 200,
}

#: Seconds between two status requests to Nimbus.
_LOOK_SECS: Final = 1.0

#: Timeouts at the end of a run, in seconds: of a request under way, and of the search for a leader.
_END_SECS: Final = 3.0
_FINDING_SECS: Final = 5.0


class Submission:
    """The topology of a run, in its cluster.

    `cluster` is the run's configuration, which names the Nimbuses. `finding_secs` is the timeout
    for the first leader.
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
        self._error: BaseException | None = None
        #: Name and id, once Nimbus has accepted the topology.
        self.name = self.storm_id = ""
        #: Nimbus's last answer.
        self.nimbus_view: TopologyView | None = None
        self._thread = threading.Thread(target=self._run, name="submission", daemon=True)

    def start(self) -> None:
        """Submit on a thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that kept the topology from being submitted, if any."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop following the topology, and cancel a submission that is not sent yet."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(_END_SECS)

    def kill(self) -> None:
        """Have Nimbus kill the topology at once; does not wait for an election."""
        with connect(self._cluster, finding_secs=_FINDING_SECS, say=_refuse) as connection:
            topology_commands.kill(connection, self.name, 0)

    def _run(self) -> None:
        try:
            self._submit_and_follow()
        except BaseException as error:
            self._error = error

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
            described = package_builder.describe_code(given, code)
            conf = run_plan.topology_conf(
                self._conf, overrides, described.conf, strict=request.strict, warn=self._warn
            )
            listener = topology_submission.SubmissionListener(
                _say_nothing, lambda _, __: None, self._warn, strict=request.strict
            )
            for text in submission_conf.own_conf_warnings(described.conf, described.name):
                listener.report_unknown_key(text)
            values = submission_conf.conf_to_send(described.conf, conf, described.name)
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
            # The leader may be killed; the next look finds another leader.
            with contextlib.suppress(RpcError):
                self.nimbus_view = topology_view.get_topology(connection, self.name)
            self._closing.wait(_LOOK_SECS)


def _refuse(said: str) -> None:
    raise LocalClusterError(said)


def _say_nothing(_: str) -> None:
    """Ignore progress messages: the cluster's start takes longer."""


#: Seconds between two looks at the workers that are left.
_END_LOOK_SECS: Final = 0.1


def end_topology(
    submission: Submission,
    machines: Sequence[Directories],
    grace_secs: float,
    stop_supervisors: Callable[[], None],
    note: Callable[[str], None],
) -> None:
    """End a topology, finishing the running batches.

    The workers are killed after `grace_secs`. `stop_supervisors` ends the supervisors, which would
    start workers again.
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
