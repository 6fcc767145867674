"""Nimbus as a process: ``storm nimbus``."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Final

import stormkeeper
from stormkeeper.blobs.distributor import BlobSettings, CodeDistributor
from stormkeeper.blobs.peers import peer_connector
from stormkeeper.conf import Conf
from stormkeeper.conf.address import hostname
from stormkeeper.daemon.durable import find_fault
from stormkeeper.daemon.http import HttpThread, Pages
from stormkeeper.daemon.lifecycle import StopSignals, announce, raise_file_limit
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread, in_thread
from stormkeeper.daemon.sockets import BACKLOG, address_of, is_loopback, listen
from stormkeeper.errors import (
    BlobStorageError,
    CodeError,
    ListenError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.names import host_port
from stormkeeper.nimbus.cleanup import CheckpointRetention, Cleaner, RemovedTopologies
from stormkeeper.nimbus.cluster_status import ClusterStatusTracker, pages
from stormkeeper.nimbus.elector import Elector
from stormkeeper.nimbus.lifecycle import ConfChanges
from stormkeeper.nimbus.readiness import Candidate, DiskWatch
from stormkeeper.nimbus.round import Timeouts
from stormkeeper.nimbus.scheduler import LeaderDuties, Scheduler
from stormkeeper.nimbus.service.blob_calls import BlobCalls
from stormkeeper.nimbus.service.cluster_calls import ClusterCalls
from stormkeeper.nimbus.service.context import Handler, ServiceContext, Submissions
from stormkeeper.nimbus.service.lifecycle_calls import LifecycleCalls
from stormkeeper.nimbus.service.page_calls import PageCalls
from stormkeeper.nimbus.service.submission_calls import SubmissionCalls
from stormkeeper.nimbus.submitted import ReadAhead, SchedulingCode, SubmittedCode, TopologyCache
from stormkeeper.paths import NimbusId
from stormkeeper.rpc.server import ServerLimits, ThriftServer
from stormkeeper.state.storm import cluster
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.nimbus import Nimbus
from stormkeeper.thrift.records import NimbusSummary

if TYPE_CHECKING:
    from stormkeeper.thrift.nimbus import NimbusCalls

    class _AllCalls(SubmissionCalls, LifecycleCalls, ClusterCalls, PageCalls, BlobCalls): ...

    def _is_complete(calls: _AllCalls) -> NimbusCalls:
        return calls


log = logging.getLogger(__name__)

#: Between attempts to reach ZooKeeper at the start.
_RETRY_SECS: Final = 2.0
_POLL_SECS: Final = 0.2

_LOOK_SECS: Final = 3600.0

#: Longest wait for the end of a thread in the background.
_END_SECS: Final = 5.0

#: Between collections of old garbage. Python's own take over a second each for a large cluster's
#: records, and come with the first round of a leader. Objects that have survived one collection are
#: left out of the next ones.
_COLLECT_SECS: Final = 600.0
#: Between collections that look at all objects.
_WHOLE_SECS: Final = 86_400.0
_NEVER: Final = 2**31 - 1

#: At the end, for calls in progress, and for clients to read the answers.
DRAIN_SECS: Final = 5.0


def serve(conf: Conf, stop: StopSignals, *, may_take_over: bool = False) -> int:
    """Run a Nimbus until SIGTERM or SIGINT; raises `ConfigError`.

    Prints ``nimbus listening on HOST:PORT`` once clients are answered. Returns 0 after a signal,
    when another Nimbus has the lead and calls in progress are answered; 1 if the Nimbus cannot
    start. `may_take_over` permits leading topologies that a Java Nimbus has led.
    """
    configure_logging()
    raise_file_limit()
    gc.set_threshold(*gc.get_threshold()[:2], _NEVER)
    settings = BlobSettings.from_conf(conf)
    log.info("version %s", stormkeeper.__version__)
    try:
        storm = _connect(conf, stop)
        if storm is None:
            log.info("stopping before ZooKeeper was reached; asked by %s", stop.asked_by)
            return 0
        try:
            _run(conf, settings, storm, stop, may_take_over=may_take_over)
        finally:
            storm.disconnect()
    except (CodeError, ListenError, StateError) as error:
        log.error("%s", error)  # noqa: TRY400 - the trace says nothing more
        return 1
    log.info("stopped")
    return 0


def service_handler(context: ServiceContext) -> Handler:
    groups = (SubmissionCalls, LifecycleCalls, ClusterCalls, PageCalls, BlobCalls)
    return Handler(*(group(context) for group in groups))


def _connect(conf: Conf, stop: StopSignals) -> StormClusterState | None:
    failures = FailureStreak()
    while not stop.stopped:
        # In a thread: a stop does not wait for a hanging attempt.
        trying = in_thread(partial(cluster.connect, conf), "connect")
        while not (trying.done() or stop.stopped):
            wait([trying], _POLL_SECS)
        if not trying.done():
            break
        try:
            return trying.result()
        except StateUnavailableError as error:
            failures.record()
            if failures.should_log:
                log.warning("ZooKeeper cannot be reached, retrying: %s", error)
            stop.wait(_RETRY_SECS)
    return None


def _run(
    conf: Conf,
    settings: BlobSettings,
    storm: StormClusterState,
    stop: StopSignals,
    *,
    may_take_over: bool,
) -> None:
    listener = _listener(conf)
    address = address_of(listener)
    nimbus_id = NimbusId(hostname(conf), listener.getsockname()[1], 0)
    clock = _steady_clock()
    submissions = Submissions(conf["nimbus.thrift.threads"])
    timeouts = Timeouts.from_conf(conf)
    status = ClusterStatusTracker()
    with contextlib.ExitStack() as running:
        running.callback(listener.close)
        garbage = running.enter_context(_started(_garbage_thread()))
        code = CodeDistributor(
            storm,
            nimbus_id,
            peer_connector(conf),
            settings,
            leader=lambda: duties.leader,
            submitted=submissions.ids,
        )
        running.callback(code.close)
        submitted, conf_changes = SubmittedCode(code.store), ConfChanges(code)
        removed = RemovedTopologies(settings.inbox.with_name("history.json"), clock)
        topology_cache = TopologyCache(SchedulingCode(code.store), conf)
        scheduler = Scheduler(
            storm,
            topology_cache,
            timeouts,
            status,
            conf_changes=conf_changes,
            master_code_dir=str(settings.folder),
            clock=clock,
            on_removed=removed.record,
        )
        cleaner = Cleaner(
            storm,
            submissions.ids,
            CheckpointRetention(submissions.continued, kept_secs=timeouts.checkpoints, clock=clock),
            period_secs=timeouts.monitor,
            kept_secs=timeouts.kept,
            clock=time.monotonic,
        )
        duties = LeaderDuties(scheduler, cleaner, status)
        started_at = clock()

        def end_leading() -> None:
            duties.end()
            garbage.wake()

        def on_disk_fault(fault: str | None) -> None:
            _register(storm, nimbus_id, started_at, fault)
            elector.recheck()

        disk = DiskWatch(functools.partial(_find_disk_fault, code), on_disk_fault)
        candidate = Candidate(
            storm,
            code.sync,
            nimbus_id,
            bases=lambda: storm.view.caught_up().bases,
            elected=duties.begin,
            deposed=end_leading,
            disk_fault=lambda: disk.fault,
            may_take_over=may_take_over,
        )
        elector = Elector(storm, nimbus_id, candidate)
        running.callback(elector.close)
        code.sync.on_loss = elector.recheck

        context = ServiceContext(
            conf=conf,
            storm=storm,
            code=code,
            conf_changes=conf_changes,
            submitted=submitted,
            elector=elector,
            leadership=lambda: duties.current(elector.is_next),
            submissions=submissions,
            # Texts of an earlier leadership may be outdated.
            sched_status=lambda: scheduler.sched_status() if duties.leader else {},
            removed=removed.ids,
            clock=clock,
        )
        handler = service_handler(context)
        running.callback(handler.close)
        server = ThriftServer(Nimbus, handler, ServerLimits.of(conf), name="nimbus")
        served = pages(
            lambda: status.status,
            server,
            lambda: storm.state.connection,
            timeouts.monitor,
            time.monotonic,
            disk_fault=lambda: disk.fault,
            lost_blobs=lambda: code.store.losses,
            count_health=handler.count_health,
        )
        running.enter_context(_observed(conf, served))
        server.start(listener)
        running.callback(server.stop, DRAIN_SECS)
        code.start()
        running.enter_context(_started(ReadAhead(lambda: storm.view, topology_cache)))
        _register(storm, nimbus_id, started_at)
        disk.start()
        running.callback(disk.close)
        elector.add_to_leader_lock_queue()
        _warn_of_openness(listener, address)
        announce(f"nimbus listening on {address}")
        log.info("this Nimbus is %s", host_port(nimbus_id.host, nimbus_id.port))
        _wait(stop, server)
        # First, so that another Nimbus leads while this one stops.
        elector.close()


def _steady_clock() -> Callable[[], float]:
    """Return a clock of seconds since 1970 that never jumps."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


def _garbage_thread() -> PeriodicThread:
    last_whole = time.monotonic()

    def collect() -> None:
        nonlocal last_whole
        if thread.was_woken or time.monotonic() - last_whole > _WHOLE_SECS:
            last_whole = time.monotonic()
            gc.unfreeze()
        gc.collect()
        gc.freeze()

    thread = PeriodicThread(
        "garbage",
        collect,
        period_secs=_COLLECT_SECS,
        first_secs=_COLLECT_SECS,
        # The end of a leadership wakes the thread, and lets go of the garbage a moment later.
        settle_secs=1.0,
        logger=log,
    )
    return thread


@contextlib.contextmanager
def _started(thread: PeriodicThread) -> Iterator[PeriodicThread]:
    thread.start()
    try:
        yield thread
    finally:
        thread.close(_END_SECS)


def _listener(conf: Conf) -> socket.socket:
    return listen(
        conf["nimbus.bind.host"],
        conf["nimbus.thrift.port"],
        keys="nimbus.bind.host, nimbus.thrift.port",
        backlog=BACKLOG,
        if_taken="another Nimbus may run there; stop it, or set nimbus.thrift.port to another port",
        if_elsewhere="set nimbus.bind.host to an address of this machine",
        if_forbidden="set nimbus.thrift.port to 1024 or more",
    )


@contextlib.contextmanager
def _observed(conf: Conf, served: Pages) -> Iterator[None]:
    port = conf["nimbus.metrics.port"]
    if port is None:
        yield
        return
    listener = listen(
        conf["nimbus.metrics.bind.host"] or conf["nimbus.bind.host"],
        port,
        keys="nimbus.metrics.bind.host, nimbus.metrics.port",
        backlog=16,
        if_taken="set nimbus.metrics.port to another port, or to 0 for any free one",
        if_elsewhere="set nimbus.metrics.bind.host to an address of this machine",
        if_forbidden="set nimbus.metrics.port to 1024 or more",
    )
    log.info("metrics on http://%s/metrics", address_of(listener))
    with HttpThread(listener, served):
        yield


def _wait(stop: StopSignals, server: ThriftServer) -> None:
    while not stop.wait(_LOOK_SECS):
        pass
    log.info("stopping: %d connections; asked by %s", server.open, stop.asked_by)


def _register(
    storm: StormClusterState, nimbus_id: NimbusId, started_at: float, disk_fault: str | None = None
) -> None:
    # As in Storm: the uptime is the start time, and the leader is stored elsewhere.
    summary = NimbusSummary(
        nimbus_id.host,
        nimbus_id.port,
        int(started_at),
        False,
        stormkeeper.__version__,
        nimbus_id.tls_port,
        disk_fault,
        stormkeeper.__version__,
    )
    storm.add_nimbus_host(summary)


def _find_disk_fault(code: CodeDistributor, is_written: bool, had_fault: bool) -> str | None:
    try:
        if is_written:
            code.store.verify()
        faults = (
            find_fault(each, had_fault=had_fault, is_written=is_written) for each in code.folders()
        )
        return next((fault for fault in faults if fault is not None), None)
    except BlobStorageError as error:
        return str(error)


def _warn_of_openness(listener: socket.socket, address: str) -> None:
    if not is_loopback(listener):
        log.warning(
            "anyone who can reach %s can submit and kill topologies: authentication is off; let"
            " only the cluster's machines reach that port, or set nimbus.bind.host to 127.0.0.1",
            address,
        )
