"""The workers that are under back-pressure, and since when."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from stormkeeper import paths
from stormkeeper.state.storm.dispatch import Callback
from stormkeeper.state.storm.reading import Reading
from stormkeeper.state.storm.writing import LeaderWrites, SessionWrites, workers_of

#: How Storm writes a time: milliseconds since 1970.
_MILLISECONDS = struct.Struct(">q")


class BackpressureReads(Reading):
    """Whether a topology's spouts should wait."""

    def backpressure_topologies(self) -> list[str]:
        """Return the ids of the topologies that have back-pressure, or a place for it, sorted."""
        return self._names(paths.BACKPRESSURE)

    def topology_backpressure(
        self, storm_id: str, timeout_ms: int, callback: Callback | None = None
    ) -> bool:
        """Return whether a worker of a topology has said lately that it cannot keep up.

        Parameters
        ----------
        storm_id : str
            The topology.
        timeout_ms : int
            What was said longer ago, in milliseconds, does not count.
        callback : callable, optional
            Told, once, when a worker comes under back-pressure or is it no longer.
        """
        top = paths.backpressure_of_topology(storm_id)
        names = self._names(top, callback)
        found = self._state.read_many([f"{top}/{name}" for name in names])
        times = [
            _MILLISECONDS.unpack(node.data)[0]
            for node in found
            if node and len(node.data) == _MILLISECONDS.size
        ]
        return bool(times) and self._clock() * 1000 - max(times) < timeout_ms


class BackpressureWrites(SessionWrites):
    """What a worker says of itself."""

    def worker_backpressure(self, storm_id: str, node: str, port: int, timestamp_ms: int) -> None:
        """Say that a worker cannot keep up, as of `timestamp_ms`: milliseconds since 1970.

        It holds until it is removed, or the worker's session ends.
        """
        path = paths.backpressure(storm_id, node, port)
        self._state.set_ephemeral_node(path, _MILLISECONDS.pack(timestamp_ms))

    def remove_worker_backpressure(self, storm_id: str, node: str, port: int) -> None:
        """Say that a worker keeps up again; so it does when nothing was said."""
        self._state.delete_node(paths.backpressure(storm_id, node, port))


class BackpressureCleaning(LeaderWrites):
    """Where a topology's back-pressure goes, made and taken away by the leader."""

    def setup_backpressure(
        self, storm_id: str, topology_conf: Mapping[str, Any] | None = None
    ) -> None:
        """Make the directory of a topology's back-pressure, which its workers may write in."""
        self._writer.mkdirs(
            paths.backpressure_of_topology(storm_id), workers=workers_of(topology_conf)
        )

    def remove_backpressure(self, storm_id: str) -> None:
        """Delete a topology's back-pressure and the directory of it; none is fine."""
        self._writer.delete_node(paths.backpressure_of_topology(storm_id))
