"""The supervisors: each keeps a record of itself for as long as its session lives."""

from __future__ import annotations

from stormkeeper import paths
from stormkeeper.state.storm.codec import checked
from stormkeeper.state.storm.dispatch import Callback
from stormkeeper.state.storm.reading import Reading
from stormkeeper.state.storm.writing import SessionWrites
from stormkeeper.thrift.records import SupervisorInfo


class SupervisorReads(Reading):
    """Which supervisors there are, and what they have."""

    def supervisors(self, callback: Callback | None = None) -> list[str]:
        """Return the ids of the supervisors that are there, sorted.

        `callback` is told, once, when one comes or goes.
        """
        return self._names(paths.SUPERVISORS, callback)

    def supervisor_info(self, supervisor_id: str) -> SupervisorInfo | None:
        """Return what a supervisor says of itself, None when it is not there.

        Raises
        ------
        SerializationError
            What is there is not a record of a supervisor.
        """
        return self._record(SupervisorInfo, paths.supervisor(supervisor_id))

    def all_supervisor_info(self, callback: Callback | None = None) -> dict[str, SupervisorInfo]:
        """Return what every supervisor says of itself, by its id, read in one go.

        A record that cannot be read is left out, logged and counted. `callback` is told, once,
        when a supervisor comes or goes; not when one says something new, as it does all the time.
        """
        if callback is not None:
            self.supervisors(callback)
        return self._records(SupervisorInfo, paths.SUPERVISORS)


class SupervisorWrites(SessionWrites):
    """What a supervisor says of itself."""

    def supervisor_heartbeat(self, supervisor_id: str, info: SupervisorInfo) -> None:
        """Register a supervisor, or say something new of it.

        It is there until its session ends or is closed, and again in the session that follows one
        that was lost.
        """
        self._state.set_ephemeral_node(
            paths.supervisor(supervisor_id), self._codec.write(checked(SupervisorInfo, info))
        )
