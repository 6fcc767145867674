"""The Nimbuses: each keeps a record of itself for as long as its session lives."""

from __future__ import annotations

from stormkeeper.state import paths
from stormkeeper.state.storm.codec import checked
from stormkeeper.state.storm.dispatch import Callback
from stormkeeper.state.storm.reading import Reading
from stormkeeper.state.storm.writing import SessionWrites
from stormkeeper.thrift.records import NimbusSummary


class NimbusReads(Reading):
    """Which Nimbuses there are."""

    def nimbuses(self, callback: Callback | None = None) -> list[NimbusSummary]:
        """Return what every Nimbus says of itself, in the order of their ids.

        A record that cannot be read is left out, logged and counted. `callback` is told, once,
        when a Nimbus comes or goes.
        """
        if callback is not None:
            self._names(paths.NIMBUSES, callback)
        return list(self._records(NimbusSummary, paths.NIMBUSES).values())


class NimbusWrites(SessionWrites):
    """What a Nimbus says of itself."""

    def add_nimbus_host(self, nimbus_id: str | paths.NimbusId, summary: NimbusSummary) -> None:
        """Register a Nimbus under its id, such as ``nimbus1.example:6627:0``.

        It is there until its session ends or is closed, and again in the session that follows one
        that was lost. What an earlier life of it left is replaced.
        """
        self._state.set_ephemeral_node(
            paths.nimbus(str(nimbus_id)), self._codec.write(checked(NimbusSummary, summary))
        )
