"""The topologies that are being submitted to this Nimbus.

Their code is here before they are: nobody takes it for what no topology needs. And of two
submissions of one name at once the second is refused, as if the first had ended.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from stormkeeper.errors import CallRefusedError, CheckpointsError
from stormkeeper.thrift.nimbus import AlreadyAliveException

#: How many there may be at once: each waits for copies of its code in a thread of the service.
MOST: Final = 16


class Submissions:
    """What is being submitted. Safe for many threads.

    Parameters
    ----------
    threads
        Those of the service. Half of them are left to others: to the Nimbuses, too, that fetch the
        copies which a submission waits for.
    """

    def __init__(self, threads: int = 2 * MOST) -> None:
        self._most = max(1, min(MOST, threads // 2))
        self._lock = threading.Lock()
        self._counter = itertools.count(1)
        #: The ids by name; none where it has none yet.
        self._ids: dict[str, str | None] = {}
        #: The folders of checkpoints from which some of them go on.
        self._continued: set[str] = set()

    def ids(self) -> Collection[str]:
        """Return the ids of the topologies that are being submitted."""
        with self._lock:
            return [storm_id for storm_id in self._ids.values() if storm_id is not None]

    def continued(self) -> Collection[str]:
        """Return the folders of checkpoints from which topologies are about to go on."""
        with self._lock:
            return set(self._continued)

    @contextmanager
    def continuing(self, checkpoints: str) -> Iterator[None]:
        """Go on from checkpoints, by the name of their folder, alone.

        Raises
        ------
        CheckpointsError
            Another submission is about to.
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
        """Return the id of a topology that is being submitted, and which is not used again.

        Parameters
        ----------
        name
            The topology's, of a submission that is under way.
        now
            Seconds since 1970.
        """
        storm_id = f"{name}-{next(self._counter)}-{int(now)}"
        with self._lock:
            self._ids[name] = storm_id
        return storm_id

    @contextmanager
    def submitting(self, name: str) -> Iterator[None]:
        """Submit a topology of a name, alone.

        Raises
        ------
        AlreadyAliveException
            One of that name is being submitted.
        CallRefusedError
            There are as many as there may be.
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
