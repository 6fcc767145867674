"""What may be done with heartbeats: workers beat and may not read, others read.

A heartbeat's path is that of its worker, ``/workerbeats/<storm id>/<node>-<port>``. A read says,
beside the heartbeats, how far back each server can vouch: a heartbeat that is missing proves a
silence no longer than that (`stormkeeper.heartbeats.liveness`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.pacemaker.client.server_reads import Heartbeat
from stormkeeper.paths import WORKERBEATS

__all__ = ["Heartbeat", "HeartbeatReader", "HeartbeatSender", "HeartbeatStore", "Heartbeats"]


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """Heartbeats as they were read at one moment.

    Parameters
    ----------
    by_path
        The newest heartbeat of each worker.
    coverage
        Of every server, by name, those included that did not answer: what they hold is missing.
    """

    by_path: Mapping[str, Heartbeat]
    coverage: Mapping[str, Coverage]

    @property
    def missing(self) -> dict[str, str]:
        """The servers that did not answer, and why."""
        return {name: one.error for name, one in self.coverage.items() if one.error is not None}


class HeartbeatSender(Protocol):
    """Sends heartbeats. Safe for many threads."""

    def beat(self, path: str, value: bytes) -> None:
        """Make `value` the heartbeat of the worker at `path`.

        Raises
        ------
        PacemakerError, StateError
            No server took it.
        """
        ...

    def close(self) -> None:
        """End what was opened to send; a second time does nothing, and `beat` fails then."""
        ...


class HeartbeatReader(Protocol):
    """Reads and removes heartbeats. Safe for many threads.

    Notes
    -----
    Where some servers answer, what they say is returned. Every call raises a `PacemakerError` where
    no Pacemaker answered, or a `StateError` where ZooKeeper has the heartbeats and did not.
    """

    def read(self, path: str) -> Heartbeat | None:
        """Return the heartbeat of exactly `path`, with its value; None if there is none."""
        ...

    def read_all(
        self, path: str = WORKERBEATS, *, values: bool = False, hurried: bool = False
    ) -> Heartbeats:
        """Return the heartbeats at and below a path: all, those of a topology, or one.

        Parameters
        ----------
        values
            Whether to read the values too. Who is alive is told by the ages.
        hurried
            Whether Pacemakers are asked once: while none of them answers, it fails soon. Others
            try for some seconds.
        """
        ...

    def read_each(self, paths: Collection[str]) -> dict[str, Heartbeat]:
        """Return the heartbeats of some workers of one topology, with their values, by path."""
        ...

    def names(self, path: str = WORKERBEATS) -> list[str]:
        """Return the names directly below a path, sorted: of topologies, or of their workers."""
        ...

    def remove(self, path: str) -> None:
        """Delete the heartbeats at and below a path, on every server; none is fine."""
        ...

    def close(self) -> None:
        """End what was opened to read; a second time does nothing, and every other call fails."""
        ...


class HeartbeatStore(HeartbeatReader, HeartbeatSender, Protocol):
    """Does both, as daemons may. Safe for many threads."""
