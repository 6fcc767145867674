"""Registrations of supervisors and Nimbuses, each for as long as the daemon's session lives.

A supervisor's node has its id. A Nimbus's node has its host's name, as in Storm, by which tools
know a Nimbus; further Nimbuses on the machine add their ports. Readers take host and port from the
record.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from stormkeeper import paths
from stormkeeper.errors import SerializationError, StateClosedError, StateError
from stormkeeper.names import host_port
from stormkeeper.state.storage import ClusterState, ConnectionState, NodeData
from stormkeeper.state.storm.record_io import Codec, RecordReader, SessionWriter, checked
from stormkeeper.state.storm.subscriptions import Callback, WaitingCallbacks
from stormkeeper.state.watches import WatchKind
from stormkeeper.thrift.records import NimbusSummary, SupervisorInfo

log = logging.getLogger(__name__)

#: Attempts of a Nimbus to find a place while others take and leave theirs.
ROUNDS: Final = 20


class DaemonReads(RecordReader):
    """Reads of registered supervisors and Nimbuses."""

    def supervisors(self, callback: Callback | None = None) -> list[str]:
        """Return the sorted ids of the registered supervisors.

        `callback` is called, once, when one comes or goes.
        """
        return self._names(paths.SUPERVISORS, callback)

    def supervisor_info(
        self, supervisor_id: str, callback: Callback | None = None
    ) -> SupervisorInfo | None:
        """Return a supervisor's record, None if absent.

        `callback` is called, once, when the record changes, comes or goes.
        """
        return self._record(SupervisorInfo, paths.supervisor(supervisor_id), callback)

    def all_supervisor_info(self, callback: Callback | None = None) -> dict[str, SupervisorInfo]:
        """Return every supervisor's record by id, read in one go.

        An unreadable record is left out, logged and counted. `callback` is called, once, when a
        supervisor comes or goes; not when a record changes, as that happens all the time.
        """
        if callback is not None:
            self.supervisors(callback)
        return self._records(SupervisorInfo, paths.SUPERVISORS)

    def nimbuses(self, callback: Callback | None = None) -> list[NimbusSummary]:
        """Return every Nimbus's record, in the order of node names.

        An unreadable record is left out, logged and counted. `callback` is called, once, when a
        Nimbus comes or goes.
        """
        if callback is not None:
            self._names(paths.NIMBUSES, callback)
        return list(self._records(NimbusSummary, paths.NIMBUSES).values())


class DaemonWrites(SessionWriter):
    """Registrations of a supervisor or a Nimbus."""

    _nimbus_places: dict[tuple[str, int], NimbusPlace]

    def supervisor_heartbeat(self, supervisor_id: str, info: SupervisorInfo) -> None:
        """Register a supervisor, or update its record.

        The registration lasts as long as the session, and is made again after a lost session.
        """
        self._state.set_ephemeral_node(
            paths.supervisor(supervisor_id), self._codec.write(checked(SupervisorInfo, info))
        )

    def add_nimbus_host(self, summary: NimbusSummary) -> None:
        """Register a Nimbus under its host, or update its record.

        If another live Nimbus, with another port, has the host's node, the name is ``host:port``.
        The registration lasts as long as the session, and is made again after a lost session,
        wherever there is a place. A node of an earlier life is replaced.
        """
        data = self._codec.write(checked(NimbusSummary, summary))
        nimbus = (summary.host, summary.port)
        place = NimbusPlace(self._state, self._codec, self._callbacks, *nimbus)
        self._nimbus_places.setdefault(nimbus, place).take(data)


class NimbusPlace:
    """The node of one Nimbus. Safe for many threads."""

    def __init__(
        self, state: ClusterState, codec: Codec, callbacks: WaitingCallbacks, host: str, port: int
    ) -> None:
        self._state = state
        self._codec = codec
        self._callbacks = callbacks
        self._port = port
        self._of_host = paths.nimbus(host)
        self._of_its_own = paths.nimbus(host_port(host, port))
        self._lock = threading.Lock()
        self._data = b""
        # Whether it waits for a connection; used by the store's callbacks alone.
        self._is_following = False
        #: Whether it registered under the host's name, and did not give that up.
        self._had_of_host = False

    def take(self, data: bytes) -> None:
        """Register `data`, replacing the node of an earlier life."""
        with self._lock:
            self._data = data
            self._settle(over_others=True)

    def _look_again(self) -> None:
        """Find a place again if another Nimbus has taken it, as after a lost session."""
        if not self._is_following:
            # Beforehand, so that a connection made during a failure is not missed.
            self._is_following = True
            self._state.add_listener(self._on_connection)
        try:
            with self._lock:
                self._settle(over_others=False)
        except StateClosedError:
            pass
        except StateError as error:
            log.warning(
                "the Nimbus of %s may not be registered, and looks for a place again when a"
                " connection is made: %s",
                self._of_its_own,
                error,
            )
            return
        self._is_following = False
        self._state.remove_listener(self._on_connection)

    def _on_connection(self, state: ConnectionState) -> None:
        if state is ConnectionState.CONNECTED:
            self._look_again()

    def _settle(self, *, over_others: bool) -> None:
        """Write until the node is there, and watched.

        `over_others`: replace the node of another life of this Nimbus.
        """
        path = self._of_host
        for _ in range(ROUNDS):
            node = self._watched(path)
            is_ours = node is not None and node.stat.owner == self._state.session_id
            if path == self._of_host and node is not None and self._is_anothers(node):
                self._callbacks.forget(WatchKind.NODE, path, self._look_again)
                self._withdraw(path, node)
                path = self._of_its_own
            elif is_ours and node is not None and node.data == self._data:
                if path == self._of_host:
                    self._leave(self._of_its_own)
                return
            elif node is None or is_ours or over_others:
                # A Nimbus that comes in between is replaced, and finds another place by its watch.
                self._state.set_ephemeral_node(path, self._data)
                self._had_of_host |= path == self._of_host
            else:
                self._callbacks.forget(WatchKind.NODE, path, self._look_again)
                return
        raise StateError(
            f"cannot register {self._of_its_own}: other Nimbuses took its place {ROUNDS} times"
        )

    def _watched(self, path: str) -> NodeData | None:
        with self._callbacks.once(WatchKind.NODE, path, self._look_again) as watch:
            [node] = self._state.read_many([path], watch)
        return node

    def _withdraw(self, path: str, node: NodeData) -> None:
        """Give up a place that another process has taken, so that it is not made again.

        The session's own other Nimbus keeps its registration there.
        """
        if self._had_of_host and node.stat.owner != self._state.session_id:
            self._had_of_host = False
            self._state.withdraw_registration(path)
            # The other Nimbus may have gone just now.
            self._leave(path)

    def _is_anothers(self, node: NodeData) -> bool:
        try:
            return self._codec.read(NimbusSummary, node.data).port != self._port
        except SerializationError:
            return False

    def _leave(self, path: str) -> None:
        stat = self._state.get_stat(path)
        if stat is not None and stat.owner == self._state.session_id:
            self._callbacks.forget(WatchKind.NODE, path, self._look_again)
            self._state.delete_node(path)
