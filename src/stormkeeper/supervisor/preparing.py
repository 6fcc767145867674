"""Carries out preparations: each on a thread of its own, as fetching and installing take long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stormkeeper.errors import StormkeeperError, SupervisorError
from stormkeeper.supervisor.environments import BUILD_SECS, CHECK_SECS, Environments
from stormkeeper.supervisor.events import Event, NotPrepared, Prepared
from stormkeeper.supervisor.topology_code import TopologyCode

log = logging.getLogger(__name__)

#: How long to wait for an environment that is being built for another slot, in seconds.
_WAIT_SECS: Final = BUILD_SECS + 2 * CHECK_SECS


class Preparing:
    """What is being prepared for the slots of a supervisor. Safe for many threads.

    There are no more threads than slots, but for those whose answers nobody waits for any more.

    Parameters
    ----------
    code, environments
        Of topologies.
    answer
        Takes the answer to a request, with the slot's port.
    """

    def __init__(
        self,
        code: TopologyCode,
        environments: Environments,
        answer: Callable[[int, Event], None],
    ) -> None:
        self._code = code
        self._environments = environments
        self._answer = answer
        self._lock = threading.Lock()
        #: By port and number.
        self._requests: set[tuple[int, int]] = set()
        self._pythons: dict[str, Path] = {}
        #: By topology, the identity of the environment that is being prepared.
        self._building: dict[str, str] = {}

    def fetch(self, port: int, request: int, storm_id: str) -> None:
        """Begin to see that a topology's code is here."""
        self._begin(
            *(port, request, f"code {storm_id}"),
            lambda: self._code.fetch(storm_id, lambda: (port, request) in self._requests),
        )

    def build(self, port: int, request: int, storm_id: str) -> None:
        """Begin to see that a topology's environment is here."""

        def build() -> None:
            manifest, unpacked = self._code.manifest(storm_id), self._code.unpacked(storm_id)
            self._building[storm_id] = self._environments.identity(manifest) or ""
            python = self._environments.python(manifest, unpacked, wait_secs=_WAIT_SECS)
            self._pythons[storm_id] = python

        self._begin(port, request, f"environment {storm_id}", build)

    def progress(self, storm_id: str) -> str:
        """Return what pip does for a topology's environment; empty if none is being built."""
        return self._environments.progress(self._building.get(storm_id, ""))

    def python(self, storm_id: str) -> Path:
        """Return the Python of a topology whose environment was prepared.

        Raises
        ------
        SupervisorError
            It was not.
        """
        try:
            return self._pythons[storm_id]
        except KeyError:
            raise SupervisorError(f"there is no environment for {storm_id} yet") from None

    def abandon(self, port: int, request: int) -> None:
        """Answer a request no more."""
        with self._lock:
            self._requests.discard((port, request))

    def close(self) -> None:
        """Answer nothing any more, and end what can be ended."""
        with self._lock:
            self._requests.clear()
        self._environments.close()

    def _begin(self, port: int, request: int, name: str, do: Callable[[], None]) -> None:
        with self._lock:
            self._requests.add((port, request))

        def run() -> None:
            answer: Event = Prepared(request)
            try:
                do()
            except StormkeeperError as error:
                answer = NotPrepared(request, str(error))
            except Exception as error:
                # Whoever waits is told at once, and tries again.
                log.exception("the %s cannot be prepared, by a defect of Stormkeeper", name)
                answer = NotPrepared(request, f"an error of the supervisor: {error!r}")
            with self._lock:
                is_wanted = (port, request) in self._requests
                self._requests.discard((port, request))
            if is_wanted:
                self._answer(port, answer)

        threading.Thread(target=run, name=name, daemon=True).start()
