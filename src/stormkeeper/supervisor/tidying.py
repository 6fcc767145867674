"""Removes what no topology needs any more, on a thread of its own, as that may take long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from stormkeeper.errors import SupervisorError
from stormkeeper.supervisor.checkpoints import CheckpointRemoval
from stormkeeper.supervisor.directories import Directories
from stormkeeper.supervisor.environments import Environments
from stormkeeper.supervisor.topology_code import TopologyCode

log = logging.getLogger(__name__)

#: How long the thread may take to end, in seconds; what it leaves, the next start removes.
_END_SECS: Final = 2.0

#: How often it looks by itself, in seconds: what is to go may be decided elsewhere.
_PERIOD_SECS: Final = 30.0


class Needed(NamedTuple):
    """What a supervisor needs: topologies, and launches of which something may be left."""

    storm_ids: frozenset[str]
    worker_ids: frozenset[str]


class Tidying:
    """Removes what is not needed whenever it is woken, and from then on regularly.

    Parameters
    ----------
    code, environments, checkpoints
        Of topologies.
    directories
        Where launches have their folders.
    needed
        Returns what is needed now. Whatever is about to be made was needed before.
    """

    def __init__(
        self,
        code: TopologyCode,
        environments: Environments,
        checkpoints: CheckpointRemoval,
        directories: Directories,
        needed: Callable[[], Needed],
    ) -> None:
        self._code = code
        self._environments = environments
        self._checkpoints = checkpoints
        self._directories = directories
        self._needed = needed
        self._woken = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="tidying", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread goes on."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin; nothing is removed before the first `wake`."""
        self._thread.start()

    def wake(self) -> None:
        """Have it look for what is not needed; returns at once."""
        self._woken.set()

    def close(self) -> None:
        """Remove nothing any more."""
        self._is_closed = True
        self._woken.set()
        self._thread.join(_END_SECS)

    def _run(self) -> None:
        self._woken.wait()  # before that, nobody knows what is needed
        while not self._is_closed:
            self._woken.clear()
            try:
                self._tidy()
            except OSError as error:
                log.warning("what is not needed any more could not all be removed: %s", error)
            self._woken.wait(_PERIOD_SECS)

    def _tidy(self) -> None:
        removed = self._code.remove_unneeded(
            _Now(lambda: self._needed().storm_ids), _Now(lambda: self._needed().worker_ids)
        )
        for name in removed:
            log.debug("%s is not needed here any more, and removed", name)
        for name in self._checkpoints.remove_unneeded(_Now(lambda: self._needed().storm_ids)):
            log.info("the checkpoints %s are removed", name)
        for identity in self._environments.remove_unused(_Now(self._identities)):
            log.debug("the environment %s is not needed here any more, and removed", identity)

    def _identities(self) -> frozenset[str]:
        """Return the identities of the environments of all launches, and of what is here."""
        # Of what runs the code may be another by now, or be fetched at this moment.
        found = self._directories.environments_in_use()
        for storm_id in self._needed().storm_ids:
            try:
                identity = self._environments.identity(self._code.manifest(storm_id))
            except SupervisorError:
                continue
            if identity is not None:
                found.add(identity)
        return frozenset(found)


class _Now(Collection[str]):
    """What a function returns whenever this is asked."""

    def __init__(self, read: Callable[[], frozenset[str]]) -> None:
        self._read = read

    def __contains__(self, one: object) -> bool:
        return one in self._read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())
