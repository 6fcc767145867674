"""A worker's session with the cluster's state: what it is told there, and what it reports.

A worker runs on without ZooKeeper. So one thread of this does all that asks it, as long as it
takes, and what is to be reported waits until it is written.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from stormkeeper.errors import (
    StateClosedError,
    StateError,
    StateUnavailableError,
    StormkeeperError,
)
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.watching import Stream
from stormkeeper.thrift.records import Credentials, LogConfig, StormBase, TopologyStatus

log = logging.getLogger(__name__)

#: Writes what is to be reported.
Report = Callable[[StormClusterState], object]

Value = TypeVar("Value")

#: Wait after a failure before ZooKeeper is asked again.
RETRY_SECS = 2.0

_LOOK_SECS = 0.1


class ClusterLink:
    """Follows the base of one topology, and writes reports in their order.

    Parameters
    ----------
    connect
        Begins a session; called again after it failed.
    storm_id
        The topology's id.
    on_log_config
        Called with the topology's log levels, at first and whenever they change.
    """

    def __init__(
        self,
        connect: Callable[[], StormClusterState],
        storm_id: str,
        on_log_config: Callable[[LogConfig | None], None] = lambda _: None,
    ) -> None:
        self._connect = connect
        self._storm_id = storm_id
        self._on_log_config = on_log_config
        #: What cannot be read, so that it is logged once.
        self._unread: set[str] = set()
        self._status: TopologyStatus | None = None
        self._hints: dict[str, int] = {}
        #: The topology's credentials by name, as they were when its base was first read.
        self.credentials: Mapping[str, str] = {}
        #: The same, as they were read last.
        self._newest: Mapping[str, str] = {}
        self._known = threading.Event()
        self._changed = threading.Condition()
        self._reports: deque[Report] = deque()
        self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-cluster", daemon=True)

    @property
    def is_active(self) -> bool:
        """Whether the topology is to run; also where it is in no ZooKeeper, or none answers."""
        return self._status in (None, TopologyStatus.ACTIVE)

    @property
    def hints(self) -> dict[str, int]:
        """The parallelism of components as a rebalance has left it, as far as it is known."""
        return dict(self._hints)

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread.start()

    def wait_known(self, timeout_secs: float) -> bool:
        """Wait until base and credentials were read; return whether it was in time."""
        return self._known.wait(timeout_secs)

    def report(self, report: Report) -> None:
        """Have something reported, now or when ZooKeeper is there again."""
        with self._changed:
            self._reports.append(report)

    def settle(self, timeout_secs: float) -> bool:
        """Wait until all is reported; return whether it was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._reports, timeout_secs)

    def close(self, timeout_secs: float) -> None:
        """End the session, within `timeout_secs`; what takes longer is left."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_secs)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._connect_and_follow()
            except StormkeeperError as error:
                self._failed(error)
            except Exception:
                # A fault of ours; who hears nothing any more would wait for ever to be activated.
                log.exception("the cluster's state cannot be followed, and is asked again")
                self._closing.wait(RETRY_SECS)

    def _connect_and_follow(self) -> None:
        storm = self._connect()
        try:
            self._follow(storm)
        finally:
            with contextlib.suppress(StateError):
                storm.disconnect()

    def _follow(self, storm: StormClusterState) -> None:
        storm_id = self._storm_id
        with (
            storm.watch(lambda again: storm.storm_base(storm_id, again)) as bases,
            storm.watch(lambda again: storm.topology_log_config(storm_id, again)) as levels,
            storm.watch(lambda again: storm.credentials(storm_id, again)) as credentials,
        ):
            while not self._closing.is_set():
                try:
                    self._write(storm)
                    if not self._known.is_set():
                        self._read_credentials(storm)
                    else:
                        self._hear("log levels", levels, self._on_log_config)
                        self._hear("credentials", credentials, self._compare)
                    self._take(bases.next(_LOOK_SECS))
                except TimeoutError:
                    continue
                except StateClosedError:
                    return
                except StormkeeperError as error:
                    self._failed(error)

    def _read_credentials(self, storm: StormClusterState) -> None:
        try:
            given = storm.credentials(self._storm_id)
        except StateUnavailableError:
            raise  # they are read later
        except StormkeeperError as error:
            log.warning("the topology's credentials cannot be read: %s", error)
        else:
            self.credentials = self._newest = dict(given.creds) if given is not None else {}

    def _hear(
        self, what: str, stream: Stream[Value | None], take: Callable[[Value | None], None]
    ) -> None:
        """Take what has changed; what cannot be read is not asked for again."""
        if what in self._unread:
            return
        try:
            take(stream.next(0))
        except TimeoutError:
            pass
        except (StateUnavailableError, StateClosedError):
            raise
        except StormkeeperError as error:
            log.warning("new %s of the topology cannot be read: %s", what, error)
            self._unread.add(what)

    def _compare(self, given: Credentials | None) -> None:
        """Say which credentials are new: Spark keeps what it has read of them at its start."""
        new = dict(given.creds) if given is not None else {}
        names = {name for name, _ in new.items() ^ self._newest.items()}
        self._newest = new
        if names:
            log.info(
                "new credentials (%s) count from the next start of this worker: `storm rebalance`"
                " starts it again",
                ", ".join(sorted(names)),
            )

    def _take(self, base: StormBase | None) -> None:
        if self._failing:
            log.info("the cluster's state can be read again")
            self._failing = False
        # A topology that was there and is gone was killed: it is not active again.
        if base is not None and base.status is not self._status:
            if self._status is not None or base.status is not TopologyStatus.ACTIVE:
                log.info("the topology is %s", base.status.name)
            self._status = base.status
        if base is not None:
            self._hints = base.component_executors or {}
        self._known.set()

    def _write(self, storm: StormClusterState) -> None:
        while self._reports and not self._closing.is_set():
            try:
                self._reports[0](storm)
            except StateUnavailableError:
                raise  # it is written later
            except StormkeeperError as error:
                log.warning("what was to be reported is not: %s", error)
            except Exception:
                log.exception("what was to be reported is not")
            with self._changed:
                self._reports.popleft()
                self._changed.notify_all()

    def _failed(self, error: StormkeeperError) -> None:
        if not self._failing:
            log.warning("the cluster's state cannot be read, the worker goes on: %s", error)
            self._failing = True
        self._closing.wait(RETRY_SECS)
