"""Records of the daemons: topologies, assignments, credentials, log levels, kept checkpoints.

And registrations of supervisors and Nimbuses. A Nimbus's node has its host's name, as in Storm;
further Nimbuses on the machine add their ports.

A leader that removes a topology records what becomes of the checkpoints, and later perhaps from
which machines to remove them; the last such supervisor removes the record.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from stormkeeper import paths
from stormkeeper.errors import (
    BadVersionError,
    ChangedMeanwhileError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SerializationError,
    StateClosedError,
    StateError,
    StormkeeperError,
    TransactionError,
)
from stormkeeper.names import host_port
from stormkeeper.state.fenced_writer import batches
from stormkeeper.state.storage import (
    Check,
    ClusterState,
    ConnectionState,
    Create,
    Delete,
    NodeData,
    SetData,
)
from stormkeeper.state.storm.cluster_view import ClusterRecords
from stormkeeper.state.storm.record_io import (
    ROUNDS,
    LeaderWriter,
    RecordReader,
    SessionWriter,
    Versioned,
    checked,
    digest_of_workers,
)
from stormkeeper.state.watches import Callback, WaitingCallbacks, WatchKind
from stormkeeper.thrift.idl import schema_of
from stormkeeper.thrift.records import (
    Assignment,
    Checkpoints,
    Credentials,
    LogConfig,
    NimbusSummary,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec

#: Optional fields of a base but the epoch, which the writer sets.
_CLEARABLE: Final = frozenset(
    field.name for field in schema_of(StormBase).fields if not field.required
) - {"leader_epoch"}


#: In one transaction.
MOST_ASSIGNMENTS: Final = 50


class TopologyReads(RecordReader):
    """Reads of topologies, assignments, credentials, log levels and kept checkpoints.

    A read of one unreadable value raises `SerializationError`; a read of several leaves it out,
    logs it once and counts it.
    """

    def assignments(self, callback: Callback | None = None) -> list[str]:
        """List assigned topologies, sorted."""
        return self._names(paths.ASSIGNMENTS, callback)

    def assignment_info(self, storm_id: str, callback: Callback | None = None) -> Assignment | None:
        """Return a topology's assignment."""
        return self._record(Assignment, paths.assignment(storm_id), callback)

    def assignment_info_with_version(
        self, storm_id: str, callback: Callback | None = None
    ) -> Versioned[Assignment] | None:
        """Return an assignment and version."""
        return self._versioned(Assignment, paths.assignment(storm_id), callback)

    def assignment_version(self, storm_id: str, callback: Callback | None = None) -> int | None:
        """Return only an assignment's version."""
        return self._version(paths.assignment(storm_id), callback)

    def assignments_info(self) -> dict[str, Assignment]:
        """Return assignments by topology id."""
        return self._records(Assignment, paths.ASSIGNMENTS)

    def active_storms(self, callback: Callback | None = None) -> list[str]:
        """List all topologies, sorted."""
        return self._names(paths.STORMS, callback)

    def kept_storms(self) -> list[str]:
        """List topologies with nodes besides base and assignment, sorted."""
        names = self._state.children_many(paths.BESIDE_TOPOLOGIES)
        return sorted({storm_id for below in names for storm_id in below or ()})

    def storm_base(self, storm_id: str, callback: Callback | None = None) -> StormBase | None:
        """Return a topology's base."""
        return self._record(StormBase, paths.storm(storm_id), callback)

    def storm_bases(self) -> dict[str, StormBase]:
        """Return bases by topology id."""
        return self._records(StormBase, paths.STORMS)

    def storm_id_by_name(self, name: str) -> str | None:
        """Find a topology by name."""
        bases = self.storm_bases()
        return next((storm_id for storm_id, base in bases.items() if base.name == name), None)

    def credentials(self, storm_id: str, callback: Callback | None = None) -> Credentials | None:
        """Return a topology's credentials."""
        return self._record(Credentials, paths.credentials(storm_id), callback)

    def topology_log_config(
        self, storm_id: str, callback: Callback | None = None
    ) -> LogConfig | None:
        """Return a topology's log levels."""
        return self._record(LogConfig, paths.log_config(storm_id), callback)

    def all_checkpoints(self) -> dict[str, Checkpoints]:
        """Return records of checkpoints by folder."""
        return self._records(Checkpoints, paths.CHECKPOINTS)

    def checkpoints(self, id_: str) -> Versioned[Checkpoints] | None:
        """Return the record of a folder."""
        return self._versioned(Checkpoints, paths.checkpoints(id_))


class NewAssignment(NamedTuple):
    """An assignment to write, and the topology's new base, if it changes; not changed any more."""

    storm_id: str
    assignment: Assignment
    topology_conf: Mapping[str, Any] | None = None
    base: StormBase | None = None


class _AssignmentWrite(NamedTuple):
    new: NewAssignment
    base: Check | SetData
    assignment: Create | SetData

    def size(self) -> int:
        base = b"" if isinstance(self.base, Check) else self.base.data
        return len(base) + len(self.assignment.data)


class TopologyWrites(LeaderWriter):
    """A leader's decisions about topologies.

    If `topology_conf` names a user for the workers (``storm.zookeeper.topology.auth.payload``), the
    ACLs of new nodes let that user in.
    """

    def set_assignment(
        self,
        storm_id: str,
        assignment: Assignment,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Set where a topology runs."""
        self._put(Assignment, paths.assignment(storm_id), assignment, topology_conf)

    def set_assignments(
        self,
        assignments: Iterable[NewAssignment],
        *,
        seen: ClusterRecords,
        on_written: Callable[[NewAssignment], None],
    ) -> None:
        """Set where topologies run, as decided from `seen`, many in one transaction.

        An assignment is refused with `ChangedMeanwhileError` if the topology's base or assignment
        has changed. After a refusal the others of the transaction are written, and no further
        transaction begins. An assignment that cannot be encoded keeps no other from being written.
        """
        if paths.ASSIGNMENTS not in seen.nodes[paths.ASSIGNMENTS]:
            self._writer.mkdirs(paths.ASSIGNMENTS)
        unfit: list[StormkeeperError] = []

        def writes() -> Iterator[_AssignmentWrite]:
            for new in assignments:
                try:
                    write = self._assignment_write(new, seen)
                except StormkeeperError as error:
                    unfit.append(error)
                else:
                    yield write

        for batch in batches(writes(), _AssignmentWrite.size, MOST_ASSIGNMENTS):
            refusals = self._write_unrefused(batch)
            for each in batch:
                on_written(each.new)
            if refusals:
                raise refusals[0]
        if unfit:
            raise unfit[0]

    def _assignment_write(self, new: NewAssignment, seen: ClusterRecords) -> _AssignmentWrite:
        path, base_path = paths.assignment(new.storm_id), paths.storm(new.storm_id)
        data = self._encoded(checked(Assignment, new.assignment), is_followed=True)
        version = seen.version(path)
        write = (
            Create(path, data, workers_digest=digest_of_workers(new.topology_conf))
            if version is None
            else SetData(path, data, version)
        )
        base_version = seen.version(base_path) or 0
        if new.base is None:
            return _AssignmentWrite(new, Check(base_path, base_version), write)
        base = self._encoded(checked(StormBase, new.base), is_followed=True)
        return _AssignmentWrite(new, SetData(base_path, base, base_version), write)

    def _write_unrefused(self, batch: list[_AssignmentWrite]) -> list[StateError]:
        """Write assignments together, without refused ones, which leave `batch`."""
        refusals = []
        while batch:
            try:
                self._writer.commit([operation for _, *both in batch for operation in both])
            except TransactionError as error:
                storm_id, reason = batch.pop(error.index // 2).new.storm_id, error.reason
                if isinstance(reason, BadVersionError | NoNodeError | NodeExistsError):
                    reason = ChangedMeanwhileError(
                        f"{storm_id} was not assigned, as it has changed since it was read:"
                        f" {reason}"
                    )
                refusals.append(reason)
            else:
                break
        return refusals

    def activate_storm(
        self, storm_id: str, base: StormBase, topology_conf: Mapping[str, Any] | None = None
    ) -> None:
        """Set a topology's base."""
        self._put(StormBase, paths.storm(storm_id), base, topology_conf)

    def update_storm(
        self, storm_id: str, changes: StormBase, *, clear: Collection[str] = ()
    ) -> None:
        """Merge `changes` into a topology's base, also beside concurrent writers.

        Fields in `clear` are cleared; other fields that are None, empty or 0 in `changes` stay.
        ``component_executors`` and ``component_debug`` are merged by component. (Storm adds up
        sampling percentages, which no caller can want.)
        """
        checked(StormBase, changes)
        for name in clear:
            if name not in _CLEARABLE:
                raise ValueError(
                    f"{name!r} of a StormBase cannot be cleared; these can:"
                    f" {', '.join(sorted(_CLEARABLE))}"
                )
        self.change_storm(storm_id, lambda base: _merged(_without(base, clear), changes))

    def change_storm(self, storm_id: str, change: Callable[[StormBase], StormBase]) -> None:
        """Write `change` of a topology's base, also beside concurrent writers.

        `change` returns a new base, again after a concurrent write. Raises `NoNodeError` for an
        unknown topology.
        """
        path = paths.storm(storm_id)
        for attempt in range(ROUNDS):
            if attempt:
                self._state.sync_path(path)
            found = self._versioned(StormBase, path)
            if found is None:
                if attempt:
                    raise NoNodeError(f"there is no topology {storm_id}: {path} does not exist")
                continue
            data = self._encoded(change(found.record))
            try:
                self._writer.commit([SetData(path, data, found.version)])
            except TransactionError as error:
                if not isinstance(error.reason, BadVersionError | NoNodeError):
                    raise error.reason from error
            else:
                return
        raise StateError(
            f"cannot change {path}: other sessions changed it {ROUNDS} times meanwhile"
        )

    def deactivate_storm(self, storm_id: str) -> None:
        """Stop a topology's spouts until activation."""
        self.change_storm(storm_id, _inactive)

    def remove_storm(self, storm_id: str) -> None:
        """Remove a topology's records; fine if some or all are gone.

        Base and assignment go last, in one step: a leader finds them after a crash. Heartbeats,
        errors and back-pressure have their own calls, as workers may still write them.
        """
        self.remove_settings(storm_id)
        self._delete_together([paths.storm(storm_id), paths.assignment(storm_id)])

    def remove_settings(self, storm_id: str) -> None:
        """Remove log levels, profiling requests, credentials and tasks."""
        for path in (
            paths.log_config(storm_id),
            paths.profiler_configs(storm_id),
            paths.credentials(storm_id),
            paths.tasks(storm_id),
        ):
            self._writer.delete_node(path)

    def _delete_together(self, remaining: list[str]) -> None:
        """Delete nodes in one step, in order, without absent nodes.

        A read beforehand could come from a server that lags.
        """
        for _ in range(ROUNDS):
            try:
                self._writer.commit(list(map(Delete, remaining)))
            except TransactionError as error:
                refused = remaining[error.index]
                if isinstance(error.reason, NoNodeError):
                    remaining.remove(refused)
                elif isinstance(error.reason, NotEmptyError):
                    for name in self._names(refused):
                        self._writer.delete_node(f"{refused}/{name}")
                else:
                    raise error.reason from error
            else:
                return
        raise StateError(
            f"cannot delete {' and '.join(remaining)}: other sessions keep adding nodes below"
        )

    def set_credentials(
        self,
        storm_id: str,
        credentials: Credentials,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Replace a topology's credentials."""
        self._put(Credentials, paths.credentials(storm_id), credentials, topology_conf)

    def set_topology_log_config(
        self,
        storm_id: str,
        log_config: LogConfig,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Replace a topology's log levels."""
        self._put(LogConfig, paths.log_config(storm_id), log_config, topology_conf)

    def set_checkpoints(self, record: Checkpoints) -> None:
        """Record the fate of checkpoints."""
        self._put(Checkpoints, paths.checkpoints(record.folder), record)

    def change_checkpoints(self, record: Checkpoints, version: int) -> bool:
        """Replace a record; False if changed meanwhile."""
        path = paths.checkpoints(record.folder)
        return self._commit([SetData(path, self._encoded(record), version)])

    def forget_checkpoints(self, id_: str, version: int) -> bool:
        """Delete a record; False if changed meanwhile."""
        return self._commit([Delete(paths.checkpoints(id_), version)])

    def _commit(self, operations: list[SetData | Delete]) -> bool:
        try:
            self._writer.commit(operations)
        except TransactionError as error:
            if isinstance(error.reason, BadVersionError | NoNodeError):
                return False
            raise error.reason from error
        return True


def _without(base: StormBase, fields: Collection[str]) -> StormBase:
    without = copy.copy(base)
    for name in fields:
        setattr(without, name, None)
    return without


def _merged(base: StormBase, changes: StormBase) -> StormBase:
    merged = copy.copy(base)
    for field in schema_of(StormBase).fields:
        value = getattr(changes, field.name)
        if isinstance(value, Mapping):
            value = {**(getattr(base, field.name) or {}), **value}
        if value:
            setattr(merged, field.name, value)
    return merged


def _inactive(base: StormBase) -> StormBase:
    inactive = copy.copy(base)
    inactive.status = TopologyStatus.INACTIVE
    return inactive


class CheckpointRemovalWrites(SessionWriter, TopologyReads):
    """A supervisor's reports of removed checkpoints."""

    def checkpoints_removed(self, id_: str, supervisor_id: str) -> None:
        """Report checkpoints gone from a supervisor's machine."""
        path = paths.checkpoints(id_)
        for _ in range(ROUNDS):
            found = self.checkpoints(id_)
            if found is None or supervisor_id not in (found.record.remove_on or ()):
                return
            record = copy.copy(found.record)
            record.remove_on = [each for each in record.remove_on or () if each != supervisor_id]
            operation = (
                SetData(path, self._codec.write(record), found.version)
                if record.remove_on
                else Delete(path, found.version)
            )
            try:
                self._state.commit([operation])
            except TransactionError as error:
                if not isinstance(error.reason, BadVersionError | NoNodeError):
                    raise error.reason from error
            else:
                return
        raise StateError(
            f"cannot change {path}: other sessions changed it {ROUNDS} times meanwhile"
        )


log = logging.getLogger(__name__)


class DaemonReads(RecordReader):
    """Reads of registered supervisors and Nimbuses."""

    def supervisors(self, callback: Callback | None = None) -> list[str]:
        """List registered supervisors, sorted."""
        return self._names(paths.SUPERVISORS, callback)

    def supervisor_info(
        self, supervisor_id: str, callback: Callback | None = None
    ) -> SupervisorInfo | None:
        """Return a supervisor's record."""
        return self._record(SupervisorInfo, paths.supervisor(supervisor_id), callback)

    def all_supervisor_info(self, callback: Callback | None = None) -> dict[str, SupervisorInfo]:
        """Return readable records by supervisor id.

        Changes of records, which are frequent, do not call the callback.
        """
        if callback is not None:
            self.supervisors(callback)
        return self._records(SupervisorInfo, paths.SUPERVISORS)

    def nimbuses(self, callback: Callback | None = None) -> list[NimbusSummary]:
        """Return readable records."""
        if callback is not None:
            self._names(paths.NIMBUSES, callback)
        return list(self._records(NimbusSummary, paths.NIMBUSES).values())


class DaemonWrites(SessionWriter):
    """Registrations of a supervisor or a Nimbus, made again after a lost session."""

    _nimbus_places: dict[tuple[str, int], NimbusPlace]

    def supervisor_heartbeat(self, supervisor_id: str, info: SupervisorInfo) -> None:
        """Register, or update the record."""
        self._state.set_ephemeral_node(
            paths.supervisor(supervisor_id), self._codec.write(checked(SupervisorInfo, info))
        )

    def add_nimbus_host(self, summary: NimbusSummary) -> None:
        """Register a Nimbus under its host, or update the record.

        Beside another live Nimbus with the host's node, the name is ``host:port``. A node of an
        earlier life is replaced.
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
        # Waits for a connection; used by the store's callbacks alone.
        self._is_following = False
        #: Registered under the host's name, and did not give that up.
        self._had_of_host = False

    def take(self, data: bytes) -> None:
        """Register, replacing the node of an earlier start."""
        with self._lock:
            self._data = data
            self._settle(over_others=True)

    def _look_again(self) -> None:
        """Find a place again after another Nimbus took the last."""
        if not self._is_following:
            # First, so that a connection made during a failure is not missed.
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
        """Write until the node is there, and watched."""
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
                # A Nimbus that comes between is replaced; its watch finds it another place.
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
        """Give up a place that another process has, for later sessions too."""
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
