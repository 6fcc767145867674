"""What Nimbus's service works with, and the register of submissions in progress."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from stormkeeper.blobs.distributor import CodeDistributor
from stormkeeper.conf import Conf
from stormkeeper.errors import CallRefusedError, CheckpointsError
from stormkeeper.nimbus.conf_changes import ConfChanges
from stormkeeper.nimbus.elector import Elector
from stormkeeper.nimbus.leadership import Leadership
from stormkeeper.nimbus.submitted import SubmittedCode
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.nimbus import AlreadyAliveException

#: Most submissions at once: each blocks a thread of the service while its code is copied.
MOST: Final = 16


class Submissions:
    """The topologies that are being submitted to this Nimbus. Safe for many threads.

    Their code arrives before they exist, so the blob clean-up must spare it. Of two concurrent
    submissions of one name the second is refused.

    Parameters
    ----------
    threads
        Threads of the service. Half of them stay free for other calls, among them those of the
        Nimbuses that fetch the copies for which a submission waits.
    """

    def __init__(self, threads: int = 2 * MOST) -> None:
        self._most = max(1, min(MOST, threads // 2))
        self._lock = threading.Lock()
        self._counter = itertools.count(1)
        #: Ids by name; None until the topology has an id.
        self._ids: dict[str, str | None] = {}
        #: Checkpoint folders from which submissions in progress continue.
        self._continued: set[str] = set()

    def ids(self) -> Collection[str]:
        """Return the ids of the topologies that are being submitted."""
        with self._lock:
            return [storm_id for storm_id in self._ids.values() if storm_id is not None]

    def continued(self) -> Collection[str]:
        """Return the checkpoint folders from which topologies are about to continue."""
        with self._lock:
            return set(self._continued)

    @contextmanager
    def continuing(self, checkpoints: str) -> Iterator[None]:
        """Reserve a checkpoint folder for one submission.

        Raises
        ------
        CheckpointsError
            Another submission has reserved the folder.
        """
        with self._lock:
            if checkpoints in self._continued:
                raise CheckpointsError(
                    f"another topology is being submitted that goes on from {checkpoints}"
                )
            self._continued.add(checkpoints)
        try:
            yield
        finally:
            with self._lock:
                self._continued.discard(checkpoints)

    def new_id(self, name: str, now: float) -> str:
        """Return a new topology id for a submission in progress; `now` is in seconds since 1970."""
        storm_id = f"{name}-{next(self._counter)}-{int(now)}"
        with self._lock:
            self._ids[name] = storm_id
        return storm_id

    @contextmanager
    def submitting(self, name: str) -> Iterator[None]:
        """Reserve a topology name for one submission.

        Raises
        ------
        AlreadyAliveException
            A topology of that name is being submitted.
        CallRefusedError
            Too many submissions are in progress.
        """
        with self._lock:
            if name in self._ids:
                raise AlreadyAliveException(f"{name} is already alive")
            if len(self._ids) >= self._most:
                raise CallRefusedError(
                    f"as many topologies as may ({self._most}) are being submitted already: try"
                    " again in a moment"
                )
            self._ids[name] = None
        try:
            yield
        finally:
            with self._lock:
                del self._ids[name]


@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """The parts of the process that the service uses; all are safe for many threads.

    Parameters
    ----------
    conf
        This Nimbus's configuration.
    storm
        The cluster state, in this Nimbus's session.
    code
        Blobs on this Nimbus's disk, uploads and downloads.
    conf_changes
        Changes of topologies' confs by rebalances.
    submitted
        Topologies as read from their blobs.
    elector
        Knows which Nimbus leads.
    leadership
        Returns the current leadership; raises `NotLeaderError` while this Nimbus does not lead.
    submissions
        Submissions in progress.
    sched_status
        Returns the scheduler's texts by topology id; none while another Nimbus leads.
    removed
        Returns the ids of the topologies of a user, or of all users, that this Nimbus has removed.
    clock
        Seconds since 1970.
    """

    conf: Conf
    storm: StormClusterState
    code: CodeDistributor
    conf_changes: ConfChanges
    submitted: SubmittedCode
    elector: Elector
    leadership: Callable[[], Leadership]
    submissions: Submissions
    sched_status: Callable[[], Mapping[str, str]]
    removed: Callable[[str | None], Iterable[str]] = lambda _user: ()
    clock: Callable[[], float] = time.time
