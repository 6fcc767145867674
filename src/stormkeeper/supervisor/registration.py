"""A supervisor's reports to the cluster: the registration, and errors of workers."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

import stormkeeper
from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.conf.address import hostname
from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread
from stormkeeper.errors import StateError, StormkeeperError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.slot_model import SlotAssignment
from stormkeeper.supervisor.slots import SlotState, SlotStatus
from stormkeeper.thrift.records import CrashSeries, LaunchClaim, SlotReport, SupervisorInfo
from stormkeeper.topology.faults import crash_with_cause, is_crash
from stormkeeper.topology.plan import Claim

log = logging.getLogger(__name__)

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The fixed part of a supervisor's registration."""

    supervisor_id: str
    hostname: str
    ports: tuple[int, ...]
    memory_mb: float
    cpu_percent: float
    http_port: int | None = None

    @classmethod
    def from_conf(cls, conf: Conf, supervisor_id: str, http_port: int | None) -> Machine:
        memory, cpu = conf["supervisor.memory.capacity.mb"], conf["supervisor.cpu.capacity"]
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(
            supervisor_id=supervisor_id,
            hostname=hostname(conf),
            ports=tuple(conf["supervisor.slots.ports"]),
            memory_mb=float(pages // _MIB if memory is None else memory),
            cpu_percent=float(100 * (os.cpu_count() or 1) if cpu is None else cpu),
            http_port=http_port,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatus:
    """The changing part of a supervisor's registration."""

    used_ports: frozenset[int] = frozenset()
    stopped: Mapping[int, LaunchClaim] = field(default_factory=dict)
    refuses: str | None = None
    #: Of slots whose worker does not simply run.
    slots: Mapping[int, SlotReport] = field(default_factory=dict)


def address(host: str) -> str:
    """Return this machine's address, or else the loopback's, for the supervisor's id."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return str(socket.getaddrinfo(host, None, family)[0][4][0])
        except (OSError, UnicodeError):
            continue
    return "127.0.0.1"


def info(
    machine: Machine, status: MachineStatus, *, now: float, uptime_secs: float
) -> SupervisorInfo:
    return SupervisorInfo(
        time_secs=int(now),
        hostname=machine.hostname,
        assignment_id=machine.supervisor_id,
        used_ports=sorted(status.used_ports),
        meta=list(machine.ports),
        scheduler_meta={},
        uptime_secs=int(uptime_secs),
        version=stormkeeper.__version__,
        resources_map={"memory.mb": machine.memory_mb, "cpu.pcore.percent": machine.cpu_percent},
        stopped_workers=dict(status.stopped) or None,
        http_port=machine.http_port,
        refuses=status.refuses,
        slots=dict(status.slots),
        stormkeeper=stormkeeper.__version__,
    )


def slot_reports(
    slots: Mapping[int, SlotStatus], before: Mapping[int, SlotReport], now: float
) -> dict[int, SlotReport]:
    """Build the reports of slots without a simply running worker, given the reports `before`."""
    found = {}
    for port, slot in slots.items():
        claims = [] if slot.assignment is None else list(slot.assignment.claims.values())
        if not claims or (slot.state is SlotState.RUNNING and not slot.crashes):
            continue
        claim = min(Claim.parse(text) for text in claims)
        launch, state = LaunchClaim(claim.epoch, claim.counter), slot.state.name.lower()
        last, reason = before.get(port), (slot.reason.splitlines() or [""])[0]
        is_same = last is not None and (last.claim, last.state) == (launch, state)
        found[port] = SlotReport(
            claim=launch,
            state=state,
            since_secs=last.since_secs if last is not None and is_same else int(now),
            crashes=CrashSeries(slot.crashes, slot.crashing_since, reason)
            if slot.crashes
            else None,
            reason=reason or None,
        )
    return found


def _crashes(status: MachineStatus) -> dict[int, int]:
    return {port: each.crashes.count for port, each in status.slots.items() if each.crashes}


class Registration(PeriodicThread):
    """Keeps a supervisor registered, from the start to the end of the session.

    Renewed every `period_secs` (``supervisor.heartbeat.frequency.secs``), and at once at a change.
    """

    def __init__(self, storm: StormClusterState, machine: Machine, period_secs: float) -> None:
        retry_secs = min(1.0, period_secs)
        super().__init__(
            "registration",
            self._register,
            period_secs=period_secs,
            retried=StateError,
            streak=FailureStreak(retry_secs, retry_secs),
            failure="this supervisor cannot be registered",
            recovery="this supervisor is registered again",
            logger=log,
        )
        self._storm = storm
        self._machine = machine
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._status = MachineStatus()
        self.done = threading.Event()

    @property
    def refuses(self) -> str | None:
        return self._status.refuses

    def update(
        self,
        used_ports: frozenset[int],
        stopped: Mapping[int, LaunchClaim],
        slots: Mapping[int, SlotStatus] = MappingProxyType({}),
    ) -> None:
        reports = slot_reports(slots, self._status.slots, time.time())
        self._change(used_ports=used_ports, stopped=stopped, slots=reports)

    def refuse(self, reason: str | None) -> None:
        """Set why the supervisor takes no new work; None: it takes work."""
        self._change(refuses=reason)

    def _change(self, **changes: object) -> None:
        with self._lock:
            before = self._status
            self._status = replace(before, **changes)  # type: ignore[arg-type]
            # Steps of a start wait for the next period: thousands of workers may start at once.
            if replace(self._status, slots={}) != replace(before, slots={}) or _crashes(
                self._status
            ) != _crashes(before):
                self.wake()

    def _register(self) -> None:
        uptime = time.monotonic() - self._started
        record = info(self._machine, self._status, now=time.time(), uptime_secs=uptime)
        self._storm.supervisor_heartbeat(self._machine.supervisor_id, record)
        self.done.set()


#: Further reports are only logged.
_MOST_REPORTS: Final = 100

_REPORT_END_SECS: Final = 3.0

_LOG_END: Final = "\nIts log ends with:\n"


class _Report(NamedTuple):
    assignment: SlotAssignment
    port: int
    text: str
    began: float | None = None
    log_end: str = ""


class ErrorReports:
    """A thread that reports errors of workers to ``/errors``, for each of their queries.

    Only ten errors of a component are kept, so the report of a crash repeats the worker's own
    error, or else the log's last lines.
    """

    def __init__(self, storm: StormClusterState, host: str) -> None:
        self._storm = storm
        self._host = host
        self._waiting: queue.Queue[_Report | None] = queue.Queue(_MOST_REPORTS)
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_secs: float = _REPORT_END_SECS) -> None:
        """End the thread after the waiting reports, if in time."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=timeout_secs)
            self._thread.join(timeout_secs)

    def put(
        self,
        assignment: SlotAssignment,
        port: int,
        text: str,
        *,
        began: float | None = None,
        log_end: str = "",
    ) -> None:
        """Report a problem or crash of a worker; returns at once.

        Own errors of the worker since `began` are repeated, or else `log_end`.
        """
        try:
            self._waiting.put_nowait(_Report(assignment, port, text, began, log_end))
        except queue.Full:
            log.warning(
                "an error of %s is not reported: too many reports wait", assignment.storm_id
            )

    def _run(self) -> None:
        while (report := self._waiting.get()) is not None:
            storm_id = report.assignment.storm_id
            try:
                for component, text in self._texts(report).items():
                    self._storm.report_error(
                        storm_id, component, text, host=self._host, port=report.port
                    )
            except StormkeeperError as error:
                log.warning("an error of %s is not reported: %s", storm_id, error)

    def _texts(self, report: _Report) -> dict[str, str]:
        if own := self._own_errors(report):
            return {
                component: crash_with_cause(report.text, text) for component, text in own.items()
            }
        text = f"{report.text}{_LOG_END}{report.log_end}" if report.log_end else report.text
        return dict.fromkeys(report.assignment.claims, text)

    def _own_errors(self, report: _Report) -> dict[str, str]:
        if report.began is None:
            return {}
        storm_id, found = report.assignment.storm_id, {}
        # Times of errors are whole seconds, and a worker may fail in the second of its start.
        began = math.floor(report.began)
        self._storm.state.sync_path(paths.errors(storm_id))
        for component, errors in self._storm.topology_errors(storm_id).items():
            of_it = [
                each.error
                for each in errors
                if (each.host, each.port) == (self._host, report.port)
                and each.error_time_secs >= began
                and not is_crash(each.error)
            ]
            if of_it:
                found[component] = of_it[0]
        return found
