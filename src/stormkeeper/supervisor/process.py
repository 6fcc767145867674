"""The supervisor as a process: ``storm supervisor``."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stormkeeper import paths
from stormkeeper.blobs.peers import peer_connector
from stormkeeper.conf import Conf
from stormkeeper.conf.address import hostname
from stormkeeper.daemon import spark_environment
from stormkeeper.daemon.http import HttpThread
from stormkeeper.daemon.lifecycle import StopSignals, announce
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.daemon.sockets import address_of, is_loopback, listen
from stormkeeper.errors import EngineError, ListenError, StateError, SupervisorError
from stormkeeper.state import backends
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.worker_reports import ErrorLimits
from stormkeeper.supervisor import registration
from stormkeeper.supervisor.assignments import Assignments
from stormkeeper.supervisor.disk import Directories, LocalState
from stormkeeper.supervisor.disk_cleanup import CheckpointRemoval
from stormkeeper.supervisor.environments import Environments
from stormkeeper.supervisor.health_checks import HealthWatch
from stormkeeper.supervisor.http_pages import LogFiles, code_queries, log_queries, status_pages
from stormkeeper.supervisor.process_table import ControlGroups, NoControlGroupsError
from stormkeeper.supervisor.registration import ErrorReports, Machine, Registration
from stormkeeper.supervisor.slot_loop import SlotLoop, SupervisorContext
from stormkeeper.supervisor.slot_model import SlotTimeouts
from stormkeeper.supervisor.topology_code import LocalTopologyCode
from stormkeeper.supervisor.worker_processes import WorkerFiles, WorkerProcesses
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.package.environment import Base

log = logging.getLogger(__name__)

_LOOK_SECS: Final = 0.05
_WATCH_SECS: Final = 1.0


def serve(conf: Conf, stop: StopSignals) -> int:
    """Run a supervisor until a signal; return the exit code. The workers go on.

    Prints ``supervisor ready ID`` once the supervisor takes work.
    """
    configure_logging()
    directories = Directories.from_conf(conf)
    try:
        spark_environment.prepare(conf["topology.environment"], home=directories.home)
        with LocalState(directories.local_state) as state, _connected(conf) as storm:
            return _serve(conf, stop, directories, state, storm)
    except (EngineError, ListenError, StateError, SupervisorError) as error:
        log.error("%s", error)  # noqa: TRY400 - the message is complete
        return 1


@contextlib.contextmanager
def _connected(conf: Conf) -> Iterator[StormClusterState]:
    """Yield a session with the cluster's state, whose end removes the registration."""
    state = backends.connect(conf)
    storm = StormClusterState(state, Codec.from_conf(conf), limits=ErrorLimits.from_conf(conf))
    try:
        for directory in paths.DIRECTORIES:
            state.mkdirs(directory)
        yield storm
    finally:
        storm.disconnect()


def _serve(
    conf: Conf,
    stop: StopSignals,
    directories: Directories,
    state: LocalState,
    storm: StormClusterState,
) -> int:
    with contextlib.ExitStack() as started:
        listener = _listener(conf)
        http_port = None
        if listener is not None:
            started.enter_context(listener)
            http_port = int(listener.getsockname()[1])
        address = registration.address(hostname(conf))
        machine = Machine.from_conf(conf, state.supervisor_id(address), http_port)
        directories.make()
        _have_a_temporary_folder(directories)
        code = LocalTopologyCode(storm, peer_connector(conf), directories)
        reports = ErrorReports(storm, machine.hostname)
        registered = Registration(storm, machine, conf["supervisor.heartbeat.frequency.secs"])
        context = SupervisorContext(
            machine=machine,
            times=SlotTimeouts.from_conf(conf),
            monitor_secs=conf["supervisor.monitor.frequency.secs"],
            beat_secs=conf["worker.heartbeat.frequency.secs"],
            state=state,
            processes=WorkerProcesses(str(directories.supervisor), _control_groups()),
            directories=directories,
            code=code,
            environments=Environments(directories.environments, Base.here()),
            checkpoints=CheckpointRemoval(storm, machine.supervisor_id, conf),
            files=WorkerFiles(conf, machine.supervisor_id, directories, code, state.next_start),
            registration=registered,
            reports=reports,
        )
        slots = SlotLoop(context, state.load())
        folders = [directories.local, directories.all_artifacts, Path(tempfile.gettempdir())]
        health = HealthWatch(conf, folders, registered.refuse)
        assignments = Assignments(storm, slots.set_assignments)
        if listener is not None:
            started.enter_context(_served(listener, slots, registered, directories, code))
        health.check()  # before the registration
        #: How long the stop waits for each, in seconds.
        parts: dict[ErrorReports | SlotLoop | Assignments | PeriodicThread, float] = {
            reports: 3.0,
            slots: 10.0,
            assignments: 5.0,
            registered: 5.0,
            health: 1.0,
        }
        for part, end_secs in parts.items():
            part.start()
            started.callback(part.close, end_secs)

        def failure() -> str:
            if not all(part.is_running for part in parts):
                return slots.failure or "one of its threads has ended; its error is above"
            return ""

        def is_ready() -> bool:
            return slots.ready.is_set() and registered.done.is_set()

        while not (is_ready() or failure() or stop.wait(_LOOK_SECS)):
            pass
        if is_ready():
            announce(f"supervisor ready {machine.supervisor_id}")
        while not (failure() or stop.wait(_WATCH_SECS)):
            pass
        if stop.stopped:
            log.info("stopping; the workers go on")
            return 0
        log.error("the supervisor ends, and its workers go on: %s", failure())
        return 1


def _have_a_temporary_folder(directories: Directories) -> None:
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = os.environ["TMPDIR"] = str(directories.temporary)


def _control_groups() -> ControlGroups | None:
    try:
        groups = ControlGroups.here()
    except NoControlGroupsError as error:
        log.info("the memory of workers is limited by measurements, not by the kernel: %s", error)
        return None
    log.info("the memory of workers is limited by the kernel, in groups in %s", groups.above)
    return groups


def _listener(conf: Conf) -> socket.socket | None:
    """Listen for HTTP, if ``logviewer.port`` is set.

    If that port is in use, as by another supervisor of this machine, any free port is used: clients
    read the port from this supervisor's record.
    """
    host, port = conf["supervisor.bind.host"], conf["logviewer.port"]
    if port is None:
        return None
    try:
        listener = _listen(host, port)
    except ListenError as error:
        taken = error.__cause__
        if not isinstance(taken, OSError) or taken.errno != errno.EADDRINUSE:
            raise
        log.warning("port %d (logviewer.port) is in use: another port is used", port)
        listener = _listen(host, 0)
    address = address_of(listener)
    log.info("logs of workers, health and metrics on http://%s/metrics", address)
    if not is_loopback(listener):
        log.warning(
            "anyone who can reach %s can read the workers' logs: authentication is off; let only"
            " the cluster's machines reach that port, or set supervisor.bind.host to 127.0.0.1",
            address,
        )
    return listener


def _listen(host: str, port: int) -> socket.socket:
    return listen(
        host,
        port,
        keys="supervisor.bind.host, logviewer.port",
        backlog=16,
        if_elsewhere="set supervisor.bind.host to an address of this machine",
        if_forbidden="set logviewer.port to 1024 or more",
    )


def _served(
    listener: socket.socket,
    slots: SlotLoop,
    registered: Registration,
    directories: Directories,
    code: LocalTopologyCode,
) -> HttpThread:
    def unready() -> str | None:
        if not (slots.ready.is_set() and registered.done.is_set()):
            return "it is starting"
        return registered.refuses

    return HttpThread(
        listener,
        status_pages(lambda: slots.status, unready, time.monotonic),
        {**log_queries(LogFiles(directories.all_artifacts)), **code_queries(code)},
    )
