"""The cluster's assignments, followed: a thread reads again whatever a watch says has changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from stormkeeper.errors import SerializationError, StateClosedError, StateError
from stormkeeper.state.storm.cluster import StormReads
from stormkeeper.state.storm.watching import Callback
from stormkeeper.thrift.records import Assignment

log = logging.getLogger(__name__)

#: What is assigned, by the topologies' ids; None: something, and nobody knows what.
Assigned = Mapping[str, Assignment | None]

#: How often all is compared, whatever the watches say, in seconds.
_PERIOD_SECS: Final = 60.0

#: How long after a read that failed it is tried again, in seconds.
_RETRY_SECS: Final = 1.0

#: How long the thread may take to end, in seconds: a read has a deadline of its own.
_END_SECS: Final = 5.0


class Assignments:
    """Follows the assignments of all topologies from `start` to `close`.

    One that cannot be read stays as it was, and is None if it never could be: what is there and
    unreadable is not taken for absent.
    While the cluster's state cannot be reached, all of them stay.

    Parameters
    ----------
    storm
        The cluster's state.
    tell
        Is called by a thread of this class, at first and after each change, with all assignments by
        the ids of their topologies.
    """

    def __init__(self, storm: StormReads, tell: Callable[[Assigned], None]) -> None:
        self._storm = storm
        self._tell = tell
        self._known: dict[str, Assignment | None] = {}
        #: What was told last.
        self._told: Assigned | None = None
        self._lock = threading.Lock()
        #: What has to be read again: the list, and topologies' assignments.
        self._is_list_stale = True
        self._stale: set[str] = set()
        #: Who is told of a change, by topology: the same each time, so that each waits once.
        self._callbacks: dict[str, Callback] = {}
        self._woken = threading.Event()
        self._is_closed = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="assignments", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread goes on."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Tell nobody anything any more."""
        self._is_closed = True
        self._woken.set()
        self._thread.join(_END_SECS)

    def _run(self) -> None:
        is_to_compare = False
        while not self._is_closed:
            self._woken.clear()
            try:
                if is_to_compare:
                    self._compare()
                self._read()
            except StateClosedError:
                return
            except StateError as error:
                if not self._is_failing:
                    log.warning("the assignments cannot be read, and stay as they are: %s", error)
                self._is_failing = True
                self._woken.wait(_RETRY_SECS)
                continue
            if self._is_failing:
                log.info("the assignments are read again")
            self._is_failing = False
            if self._known != self._told and not self._is_closed:
                self._told = dict(self._known)
                self._tell(self._told)
            is_to_compare = not self._woken.wait(_PERIOD_SECS)

    def _read(self) -> None:
        """Read what is stale."""
        with self._lock:
            is_list_stale, self._is_list_stale = self._is_list_stale, False
            stale, self._stale = self._stale, set()
        try:
            if is_list_stale:
                there = set(self._storm.assignments(self._list_changed))
                for gone in self._known.keys() - there:
                    del self._known[gone]
                self._callbacks = {k: v for k, v in self._callbacks.items() if k in there}
                stale |= there - self._callbacks.keys()
            for storm_id in sorted(stale):
                self._read_one(storm_id)
        except BaseException:
            with self._lock:
                self._is_list_stale = True
                self._stale |= stale
            raise

    def _compare(self) -> None:
        """Have read again what is not as it is known, and what no watch has told of."""
        found = self._storm.assignments_info()
        other = {key for key in found | self._known if found.get(key) != self._known.get(key)}
        if other:
            with self._lock:
                self._is_list_stale = True
                self._stale |= other

    def _read_one(self, storm_id: str) -> None:
        callback = self._callbacks.setdefault(storm_id, lambda: self._changed(storm_id))
        try:
            found = self._storm.assignment_info(storm_id, callback)
        except SerializationError as error:
            log.warning("the assignment of %s stays as it was: %s", storm_id, error)
            self._known.setdefault(storm_id, None)
            return
        if found is None:
            self._known.pop(storm_id, None)
        else:
            self._known[storm_id] = found

    # Called by the store's own thread, which may not wait.

    def _list_changed(self) -> None:
        with self._lock:
            self._is_list_stale = True
        self._woken.set()

    def _changed(self, storm_id: str) -> None:
        with self._lock:
            self._stale.add(storm_id)
        self._woken.set()
