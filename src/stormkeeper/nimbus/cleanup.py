"""Remains of removed topologies: leftovers in ZooKeeper, checkpoints, and ids in the history.

A removed topology's workers may still write, so its leftovers are removed
``nimbus.topology.blobstore.deletion.delay.ms`` later, with its code. Expired checkpoints are
removed by supervisors on the leader's order; none while a base is unreadable. The wall clock alone
expires no checkpoint: a machine may start with a clock far ahead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from stormkeeper import paths
from stormkeeper.daemon.durable import write_file
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import SerializationError
from stormkeeper.nimbus import checkpoints
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState
from stormkeeper.state.storm.record_io import Versioned
from stormkeeper.thrift.records import Checkpoints, StormBase

log = logging.getLogger(__name__)

_END_SECS: Final = 3.0


def gone_since(
    before: Mapping[str, float], found: Iterable[str], kept: Collection[str], now: float
) -> dict[str, float]:
    return {storm_id: before.get(storm_id, now) for storm_id in found if storm_id not in kept}


@dataclass(eq=False)
class Cleaner:
    """Cleans while this Nimbus leads. `begin` and `end` alternate on a single thread.

    `submitted` returns the ids of topologies that are being submitted here.
    """

    storm: StormClusterState
    submitted: Callable[[], Collection[str]]
    retention: CheckpointRetention
    period_secs: float
    kept_secs: float
    clock: Callable[[], float]
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _thread: PeriodicThread | None = field(default=None, init=False)

    def begin(self, leader: LeaderClusterState) -> None:
        self._since = {}
        thread: PeriodicThread = PeriodicThread(
            "nimbus cleaning", lambda: self._once(leader, thread), logger=log
        )
        self._thread = thread
        thread.start()

    def end(self) -> None:
        """Stop cleaning; waits a few seconds for a removal in progress."""
        thread, self._thread = self._thread, None
        if thread is not None and not thread.close(_END_SECS):
            log.warning(
                "a removal still runs %g s after the end of this Nimbus's leadership", _END_SECS
            )

    def _once(self, leader: LeaderClusterState, thread: PeriodicThread) -> float:
        found = {*leader.heartbeat_storms(), *leader.kept_storms()}
        # In this order: a submission stays in the first list until the second has it.
        kept = set(self.submitted())
        self.storm.state.sync_path(paths.STORMS)
        kept.update(leader.active_storms())
        self._since = gone_since(self._since, sorted(found), kept, self.clock())
        for storm_id, since in self._since.items():
            if thread.is_closing:
                break
            if self.clock() - since >= self.kept_secs:
                leader.remove_settings(storm_id)
                leader.teardown_heartbeats(storm_id)
                leader.teardown_errors(storm_id)
                leader.remove_backpressure(storm_id)
                log.info("%s: removed its leftovers", storm_id)
        if not thread.is_closing:
            self.retention.remove_expired(leader)
        return self.period_secs


#: How long checkpoints must be seen expired, by the monotonic clock: longer than a starting machine
#: takes to set its wall clock.
EXPIRY_DOUBT_SECS: Final = 3600.0


def every_base(leader: LeaderClusterState) -> Mapping[str, StormBase]:
    """Return all topologies' bases; raises `SerializationError` if any is unreadable."""
    records = leader.view.now()
    for path in records.unreadable:
        if paths.parent(path) == paths.STORMS:
            # It is gone by now, or this raises.
            leader.storm_base(path.removeprefix(f"{paths.STORMS}/"))
    return records.bases


@dataclass(eq=False)
class CheckpointRetention:
    """Orders the removal of checkpoints `kept_secs` (None: never) after their topology's end.

    `continued` returns the folders from which topologies are about to continue.
    """

    continued: Callable[[], Collection[str]]
    kept_secs: float | None
    clock: Callable[[], float]
    monotonic: Callable[[], float] = time.monotonic
    _expired_since: dict[str, float] = field(default_factory=dict, init=False)

    def remove_expired(self, leader: LeaderClusterState) -> None:
        now_ms, supervisors = int(self.clock() * 1000), leader.supervisors()

        def due(record: Checkpoints, bases: Mapping[str, StormBase]) -> Checkpoints | None:
            return checkpoints.due(record, bases, supervisors, now_ms, self.kept_secs)

        over = {id_: each for id_, each in leader.all_checkpoints().items() if due(each, {})}
        ids = self._surely_expired(over)
        if not ids:
            return
        # The write fails if a topology continues from checkpoints after this read.
        found = [each for id_ in ids if (each := leader.checkpoints(id_)) is not None]
        continued = self.continued()
        try:
            bases = every_base(leader)
        except SerializationError as error:
            log.warning("no checkpoints are removed: %s", error)
            return
        for each in found:
            changed = due(each.record, bases)
            if changed is not None and changed.folder not in continued:
                self._give_up(leader, each, changed)

    def _surely_expired(self, over: Mapping[str, Checkpoints]) -> list[str]:
        now = self.monotonic()
        self._expired_since = {id_: self._expired_since.get(id_, now) for id_ in over}
        least = min(EXPIRY_DOUBT_SECS, self.kept_secs or 0.0)
        # An ordered removal may move to another supervisor at any time.
        return [
            id_
            for id_, since in self._expired_since.items()
            if over[id_].remove_on is not None or now - since >= least
        ]

    def _give_up(
        self, leader: LeaderClusterState, found: Versioned[Checkpoints], changed: Checkpoints
    ) -> None:
        storm_id, id_ = changed.storm_id, changed.folder
        if not checkpoints.is_removable(changed):
            if leader.forget_checkpoints(id_, found.version):
                log.warning(
                    "%s: the checkpoints in %s/%s are not needed any more, and no supervisor can"
                    " remove them: remove them yourself",
                    *(storm_id, changed.root, id_),
                )
        elif leader.change_checkpoints(changed, found.version):
            log.info("%s: supervisors remove its checkpoints in the folder %s", storm_id, id_)


#: A week, as Storm's default.
REMEMBERED_SECS: Final = 7 * 24 * 3600.0

MOST_REMOVED: Final = 10_000


class _Removed(msgspec.Struct, frozen=True):
    id: str
    owner: str | None
    #: Seconds since 1970.
    at: float


class RemovedTopologies:
    """A file of the topologies that this Nimbus has removed, as in Storm. Safe for many threads.

    The file is only for people, so errors of the disk are just logged.
    """

    def __init__(self, file: Path, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._removed = _read(file)

    def record(self, storm_id: str, owner: str | None) -> None:
        with self._lock:
            others = [each for each in self._removed if each.id != storm_id]
            now = self._clock()
            kept = [each for each in others if now - each.at <= REMEMBERED_SECS][1 - MOST_REMOVED :]
            self._removed = [*kept, _Removed(storm_id, owner, now)]
            try:
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_file(self._file, msgspec.json.encode(self._removed))
            except OSError as error:
                log.warning("the list of removed topologies cannot be written: %s", error)

    def ids(self, user: str | None) -> list[str]:
        """Return the ids of a user's removed topologies; of all users' if None or empty."""
        now = self._clock()
        with self._lock:
            return [
                each.id
                for each in self._removed
                if now - each.at <= REMEMBERED_SECS and (not user or each.owner == user)
            ]


def _read(file: Path) -> list[_Removed]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[_Removed])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("the list of removed topologies cannot be read, and starts empty: %s", error)
        return []
