"""Reports of workers: errors and back-pressure; and requests to profile workers.

Reports are limited by component, as in Storm, so that a failing component does not flood ZooKeeper.
An interval begins with the first error after the last interval.
"""

from __future__ import annotations

import re
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

from stormkeeper import paths
from stormkeeper.errors import InvalidPathError, NoNodeError
from stormkeeper.state.storm.record_io import (
    LeaderWriter,
    RecordReader,
    RecordWriter,
    SessionWriter,
    checked,
    digest_of_workers,
)
from stormkeeper.state.watches import Callback
from stormkeeper.thrift.records import ErrorInfo, NodeInfo, ProfileRequest

#: Errors kept of each component and task, as in Storm.
KEPT = 10

#: Characters kept of an error, half from each end: ZooKeeper hangs up on a value of 1 MiB, and a
#: query's traceback can be longer.
LONGEST = 65_536

_NODE = re.compile(r"e([0-9]+)")

#: A worker has its topology's components; a supervisor reports for many, and forgets the longest
#: silent.
REMEMBERED = 10_000


class ErrorLimits(NamedTuple):
    """Limits of a component's error reports."""

    interval_secs: float = 10.0
    per_interval: int = 5

    @classmethod
    def from_conf(cls, conf: Mapping[str, object]) -> Self:
        """Return the limits of a configuration, also a topology's."""
        interval = conf["topology.error.throttle.interval.secs"]
        most = conf["topology.max.error.report.per.interval"]
        assert isinstance(interval, int | float)
        assert isinstance(most, int)
        return cls(float(interval), most)


class ErrorThrottles:
    """Decides which errors of a component or task are reported."""

    def __init__(
        self, limits: ErrorLimits, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._lock = threading.Lock()
        #: Start of each reporter's interval, and errors since, in the order of reports.
        self._reported: dict[tuple[str, str | int], tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._reported)

    def admits(self, storm_id: str, reporter: str | int) -> bool:
        key, now = (storm_id, reporter), self._monotonic()
        with self._lock:
            began, count = self._reported.pop(key, (now, 0))
            if now - began > self._limits.interval_secs:
                began, count = now, 0
            self._reported[key] = began, count + 1
            while len(self._reported) > REMEMBERED:
                del self._reported[next(iter(self._reported))]
        return count < self._limits.per_interval


class ReportReads(RecordReader):
    """Reads of errors, back-pressure and profiling requests."""

    def errors(self, storm_id: str, component: str) -> list[ErrorInfo]:
        """Return a component's newest errors, newest first."""
        return self._errors_below(paths.component_errors(storm_id, component))

    def last_error(self, storm_id: str, component: str) -> ErrorInfo | None:
        """Return a component's last error, which outlives the worker's session."""
        return self._record(ErrorInfo, paths.last_error(storm_id, component))

    def topology_errors(self, storm_id: str) -> dict[str, list[ErrorInfo]]:
        """Return each component's newest errors and last error, newest first."""
        top = paths.errors(storm_id)
        names = self._names(top)
        below = self._state.children_many([f"{top}/{name}" for name in names])
        places: list[tuple[str, int | None, str]] = []
        for name, numbered in zip(names, below, strict=True):
            for each in numbered or ():
                if (number := _number(each)) is not None:
                    component = paths.parse_component_errors(name)
                    places.append((component, number, f"{name}/{each}"))
            if not numbered and (of := paths.parse_last_error(name)) is not None:
                places.append((of, None, name))
        nodes = self._state.read_many([f"{top}/{place}" for *_, place in places])
        values = {
            place: node.data
            for (*_, place), node in zip(places, nodes, strict=True)
            if node is not None
        }
        errors = self._decoded(ErrorInfo, top, values.items())
        found: dict[str, list[tuple[int, int, ErrorInfo]]] = {}
        # Last errors at the end, as most repeat a numbered error.
        for component, number, place in sorted(places, key=lambda one: one[1] is None):
            error = errors.get(place)
            of_it = found.setdefault(component, [])
            if error is None or (number is None and any(error == one for *_, one in of_it)):
                continue
            of_it.append((error.error_time_secs, -1 if number is None else number, error))
        return {component: _newest_first(of_it) for component, of_it in found.items()}

    def task_errors(self, storm_id: str, task: int) -> list[ErrorInfo]:
        """Return a task's newest errors, newest first."""
        return self._errors_below(paths.task_errors(storm_id, task))

    def error_topologies(self) -> list[str]:
        """List topologies with errors, sorted."""
        return self._names(paths.ERRORS)

    def _errors_below(self, top: str) -> list[ErrorInfo]:
        """Read errors; in the same second the higher number is newer."""
        numbered = [
            (error.error_time_secs, number, error)
            for name, error in self._records(ErrorInfo, top).items()
            if (number := _number(name)) is not None
        ]
        return _newest_first(numbered)

    def topology_profile_requests(self, storm_id: str) -> list[ProfileRequest]:
        """Return requests for a topology's workers."""
        return list(self._records(ProfileRequest, paths.profiler_configs(storm_id)).values())

    def worker_profile_requests(self, storm_id: str, node_info: NodeInfo) -> list[ProfileRequest]:
        """Return requests for one worker."""
        requests = self.topology_profile_requests(storm_id)
        return [request for request in requests if request.nodeInfo == node_info]

    def backpressure_topologies(self) -> list[str]:
        """List topologies with back-pressure, sorted."""
        return self._names(paths.BACKPRESSURE)

    def topology_backpressure(
        self, storm_id: str, timeout_ms: int, callback: Callback | None = None
    ) -> bool:
        """Return whether a worker reported back-pressure within `timeout_ms`."""
        top = paths.backpressure_of_topology(storm_id)
        names = self._names(top, callback)
        found = self._state.read_many([f"{top}/{name}" for name in names])
        times = [
            _MILLISECONDS.unpack(node.data)[0]
            for node in found
            if node and len(node.data) == _MILLISECONDS.size
        ]
        return bool(times) and self._clock() * 1000 - max(times) < timeout_ms


class ReportWrites(SessionWriter):
    """A worker's reports of errors and back-pressure."""

    _throttles: ErrorThrottles

    def report_error(
        self,
        storm_id: str,
        component: str,
        error: str,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> bool:
        """Report an error of a component, and delete all but the newest ten.

        `host` and `port` name the worker. Returns False if the limit dropped the error.
        """
        if not self._throttles.admits(storm_id, component):
            return False
        data = self._error(error, host, port)
        self._state.create_sequential(paths.error_prefix(storm_id, component), data)
        self._state.set_data(paths.last_error(storm_id, component), data)
        self._prune(paths.component_errors(storm_id, component))
        return True

    def report_task_error(
        self,
        storm_id: str,
        task: int,
        error: str,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> bool:
        """Report an error of a task; else as `report_error`."""
        if not self._throttles.admits(storm_id, task):
            return False
        data = self._error(error, host, port)
        self._state.create_sequential(paths.task_error_prefix(storm_id, task), data)
        self._prune(paths.task_errors(storm_id, task))
        return True

    def _error(self, text: str, host: str | None, port: int | None) -> bytes:
        if (left_out := len(text) - LONGEST) > 0:
            half = LONGEST // 2
            text = f"{text[:half]}\n… {left_out:,} characters left out …\n{text[-half:]}"
        # A report must not fail: UTF-8 may not encode the text.
        text = text.encode("utf-8", "replace").decode("utf-8")
        return self._codec.write(ErrorInfo(text, int(self._clock()), host, port))

    def _prune(self, top: str) -> None:
        try:
            names = self._state.get_children(top)
        except NoNodeError:  # topology torn down meanwhile
            return
        numbered = sorted((number, name) for name in names if (number := _number(name)) is not None)
        # Other workers' errors too: a concurrent prune deletes the same.
        for _, name in numbered[:-KEPT]:
            self._state.delete_node(f"{top}/{name}")

    def worker_backpressure(self, storm_id: str, node: str, port: int, timestamp_ms: int) -> None:
        """Report back-pressure since `timestamp_ms`."""
        path = paths.backpressure(storm_id, node, port)
        self._state.set_ephemeral_node(path, _MILLISECONDS.pack(timestamp_ms))

    def remove_worker_backpressure(self, storm_id: str, node: str, port: int) -> None:
        """Report the end of back-pressure."""
        self._state.delete_node(paths.backpressure(storm_id, node, port))


class ReportLeaderWrites(LeaderWriter):
    """A leader's writes of report directories and profiling requests."""

    def setup_errors(self, storm_id: str, topology_conf: Mapping[str, Any] | None = None) -> None:
        """Make the directory of errors."""
        self._writer.mkdirs(paths.errors(storm_id), workers_digest=digest_of_workers(topology_conf))

    def teardown_errors(self, storm_id: str) -> None:
        """Delete a topology's errors."""
        # Listed by `error_topologies`, so deleted last: an interrupted teardown is found again.
        self._writer.delete_node(paths.taskerrors(storm_id))
        self._writer.delete_node(paths.errors(storm_id))

    def set_worker_profile_request(self, storm_id: str, request: ProfileRequest) -> None:
        """Request the profiling of a worker, replacing a request for the same action.

        Raises `InvalidPathError` unless the request names a node, exactly one port and an action.
        """
        self._put(ProfileRequest, _path(storm_id, request), request)

    def setup_backpressure(
        self, storm_id: str, topology_conf: Mapping[str, Any] | None = None
    ) -> None:
        """Make the directory of back-pressure."""
        self._writer.mkdirs(
            paths.backpressure_of_topology(storm_id),
            workers_digest=digest_of_workers(topology_conf),
        )

    def remove_backpressure(self, storm_id: str) -> None:
        """Delete a topology's back-pressure."""
        self._writer.delete_node(paths.backpressure_of_topology(storm_id))


def _newest_first(errors: list[tuple[int, int, ErrorInfo]]) -> list[ErrorInfo]:
    return [error for *_, error in sorted(errors, key=lambda one: one[:2], reverse=True)]


def _number(name: str) -> int | None:
    match = _NODE.fullmatch(name)
    return int(match[1]) if match else None


#: Milliseconds since 1970, as in Storm.
_MILLISECONDS = struct.Struct(">q")


class ProfileRequestWrites(RecordWriter):
    """Removal of profiling requests, by leader or supervisor."""

    def delete_topology_profile_requests(self, storm_id: str, request: ProfileRequest) -> None:
        """Remove one worker's request; the name is Storm's."""
        self._writer.delete_node(_path(storm_id, request))


def _path(storm_id: str, request: ProfileRequest) -> str:
    where = checked(ProfileRequest, request).nodeInfo
    if where is None or where.node is None:
        raise InvalidPathError("a profiling request is for one worker: it names no node")
    if len(ports := sorted(where.port or ())) != 1:
        raise InvalidPathError(
            f"a profiling request is for one worker: it names the ports {ports} of {where.node!r}"
        )
    if request.action is None:
        raise InvalidPathError(
            f"a profiling request for {where.node!r} names no action, such as JSTACK_DUMP"
        )
    (port,) = ports
    return paths.profiler_config(storm_id, where.node, port, request.action.name)
