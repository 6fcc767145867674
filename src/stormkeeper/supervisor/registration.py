"""A supervisor's registration: what it says of itself to the cluster, while it is there."""

from __future__ import annotations

import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import stormkeeper
from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.conf.address import hostname
from stormkeeper.errors import StateClosedError, StateError, StormkeeperError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.slot_model import SlotAssignment
from stormkeeper.supervisor.slots import SlotState, SlotStatus
from stormkeeper.thrift.records import CrashSeries, LaunchClaim, SlotReport, SupervisorInfo
from stormkeeper.topology.faults import crash_with_cause, is_crash
from stormkeeper.topology.plan import Claim

log = logging.getLogger(__name__)

_MIB: Final = 2**20

#: How long the thread may take to end, in seconds: a write has a deadline of its own.
_END_SECS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What never changes while a supervisor runs.

    Parameters
    ----------
    supervisor_id, hostname
        Its id, and its machine's name.
    ports
        Its slots.
    memory_mb, cpu_percent
        What its workers may have together.
    http_port
        Where it serves metrics, health and logs; None: nowhere.
    """

    supervisor_id: str
    hostname: str
    ports: tuple[int, ...]
    memory_mb: float
    cpu_percent: float
    http_port: int | None = None

    @classmethod
    def from_conf(cls, conf: Conf, supervisor_id: str, http_port: int | None) -> Machine:
        """Return what is configured, and what the machine has where nothing is."""
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
    """What changes.

    Parameters
    ----------
    used_ports
        The slots in which some process of a worker may be left.
    stopped
        By port, the newest launch of which nothing runs any more.
    refuses
        Why it takes no new work; None: it does.
    slots
        By port, what there is to say of the slots whose worker does not simply run.
    """

    used_ports: frozenset[int] = frozenset()
    stopped: Mapping[int, LaunchClaim] = field(default_factory=dict)
    refuses: str | None = None
    slots: Mapping[int, SlotReport] = field(default_factory=dict)


def address(host: str) -> str:
    """Return the address of this machine, for its id; that of the loopback where it has none."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return str(socket.getaddrinfo(host, None, family)[0][4][0])
        except (OSError, UnicodeError):
            continue
    return "127.0.0.1"


def info(
    machine: Machine, facts: MachineStatus, *, now: float, uptime_secs: float
) -> SupervisorInfo:
    """Return the record of a supervisor."""
    return SupervisorInfo(
        time_secs=int(now),
        hostname=machine.hostname,
        assignment_id=machine.supervisor_id,
        used_ports=sorted(facts.used_ports),
        meta=list(machine.ports),
        scheduler_meta={},
        uptime_secs=int(uptime_secs),
        version=stormkeeper.__version__,
        resources_map={"memory.mb": machine.memory_mb, "cpu.pcore.percent": machine.cpu_percent},
        stopped_workers=dict(facts.stopped) or None,
        http_port=machine.http_port,
        refuses=facts.refuses,
        slots=dict(facts.slots),
        stormkeeper=stormkeeper.__version__,
    )


def slot_reports(
    slots: Mapping[int, SlotStatus], before: Mapping[int, SlotReport], now: float
) -> dict[int, SlotReport]:
    """Return by port what there is to say of slots whose worker does not simply run.

    Parameters
    ----------
    slots
        All slots.
    before
        What was said of them last.
    now
        Seconds since 1970.
    """
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


def _crashes(facts: MachineStatus) -> dict[int, int]:
    return {port: each.crashes.count for port, each in facts.slots.items() if each.crashes}


class Registration:
    """Keeps a supervisor registered, from its start to the end of its session.

    Parameters
    ----------
    storm
        The cluster's state.
    machine
        Whose registration.
    period_secs
        How often it is renewed (``supervisor.heartbeat.frequency.secs``). A change is written at
        once.
    """

    def __init__(self, storm: StormClusterState, machine: Machine, period_secs: float) -> None:
        self._storm = storm
        self._machine = machine
        self._period_secs = period_secs
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._facts = MachineStatus()
        self._woken = threading.Event()
        self._is_closed = False
        self._is_failing = False
        #: Set once it was written.
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread goes on."""
        return self._thread.is_alive()

    @property
    def refuses(self) -> str | None:
        """Why no new work is taken; None: it is."""
        return self._facts.refuses

    def start(self) -> None:
        """Begin to register."""
        self._thread.start()

    def close(self) -> None:
        """Renew it no more; it is there until the session ends."""
        self._is_closed = True
        self._woken.set()
        self._thread.join(_END_SECS)

    def tell(
        self,
        used_ports: frozenset[int],
        stopped: Mapping[int, LaunchClaim],
        slots: Mapping[int, SlotStatus] = MappingProxyType({}),
    ) -> None:
        """Say which slots are used, which launches have stopped, and how the slots are."""
        reports = slot_reports(slots, self._facts.slots, time.time())
        self._change(used_ports=used_ports, stopped=stopped, slots=reports)

    def refuse(self, reason: str | None) -> None:
        """Say why no new work is taken; None: it is."""
        self._change(refuses=reason)

    def _change(self, **changes: object) -> None:
        with self._lock:
            before = self._facts
            self._facts = replace(before, **changes)  # type: ignore[arg-type]
            # Steps of a start wait for the next period: thousands of workers may start at once.
            if replace(self._facts, slots={}) != replace(before, slots={}) or _crashes(
                self._facts
            ) != _crashes(before):
                self._woken.set()

    def _run(self) -> None:
        while not self._is_closed:
            self._woken.clear()
            facts = self._facts
            uptime = time.monotonic() - self._started
            record = info(self._machine, facts, now=time.time(), uptime_secs=uptime)
            try:
                self._storm.supervisor_heartbeat(self._machine.supervisor_id, record)
            except StateClosedError:
                return
            except StateError as error:
                if not self._is_failing:
                    log.warning("this supervisor cannot be registered, and tries again: %s", error)
                self._is_failing = True
            else:
                if self._is_failing:
                    log.info("this supervisor is registered again")
                self._is_failing = False
                self.done.set()
            self._woken.wait(min(1.0, self._period_secs) if self._is_failing else self._period_secs)


#: Reports that may wait while the cluster's state cannot be reached. What comes then is in the log.
_MOST_REPORTS: Final = 100

#: How long what waits may take at the end, in seconds.
_REPORT_END_SECS: Final = 3.0

#: Lines of a worker's log that a report shows, and in how many bytes at its end they are found.
_LINES: Final = 25
_BYTES: Final = 64 * 1024

_LOG_END: Final = "\nIts log ends with:\n"


class _Report(NamedTuple):
    assignment: SlotAssignment
    port: int
    text: str
    #: When the worker began that has crashed, in seconds since 1970.
    began: float | None = None
    #: How its log ends.
    log_end: str = ""


class ErrorReports:
    """Reports to ``/errors``, from a thread of its own.

    A report is one of each query of the worker that it is about: a query has its sink's name, and
    errors are those of components.

    Parameters
    ----------
    storm
        The cluster's state.
    host
        This machine's name.
    """

    def __init__(self, storm: StormClusterState, host: str) -> None:
        self._storm = storm
        self._host = host
        self._waiting: queue.Queue[_Report | None] = queue.Queue(_MOST_REPORTS)
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread goes on."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def close(self) -> None:
        """Report what waits, as far as there is time."""
        try:
            self._waiting.put(None, timeout=_REPORT_END_SECS)
        except queue.Full:
            return
        self._thread.join(_REPORT_END_SECS)

    def put(self, assignment: SlotAssignment, port: int, text: str) -> None:
        """Report something about the worker of an assignment; returns at once."""
        self._put(_Report(assignment, port, text))

    def crashed(
        self,
        assignment: SlotAssignment,
        port: int,
        text: str,
        *,
        began: float | None,
        log_end: str = "",
    ) -> None:
        """Report that the worker of an assignment crashed; returns at once.

        Parameters
        ----------
        assignment
            What it was launched for.
        port
            Of its slot.
        text
            Which crash it is, and how the worker ended, in one line.
        began
            When its process was started, in seconds since 1970; None if that is not known. Of the
            components of which it has reported errors since, their newest are in the report.
        log_end
            How its log ends, for a worker that has reported none.
        """
        self._put(_Report(assignment, port, text, began, log_end))

    def _put(self, report: _Report) -> None:
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            log.warning("an error of %s is not reported: too many wait", report.assignment.storm_id)

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
        """Return what is reported, by component."""
        if own := self._own_errors(report):
            return {
                component: crash_with_cause(report.text, text) for component, text in own.items()
            }
        text = f"{report.text}{_LOG_END}{report.log_end}" if report.log_end else report.text
        return dict.fromkeys(report.assignment.claims, text)

    def _own_errors(self, report: _Report) -> dict[str, str]:
        """Return the newest error, by component, that a worker has reported of itself."""
        if report.began is None:
            return {}
        storm_id, found = report.assignment.storm_id, {}
        # An error's time is in whole seconds, and a worker may fail in the second of its start.
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


def last_lines(file: Path) -> str:
    """Return the last lines of a worker's log; nothing where there is none."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - _BYTES))
            text = opened.read(_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LINES:])
