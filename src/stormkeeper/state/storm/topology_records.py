"""Records of topologies: ``StormBase``, ``Assignment``, credentials, log levels, kept checkpoints.

When a leader removes a topology, it records what becomes of the checkpoints (`Checkpoints`). Later
it may record that they must be removed, and on which machines. Each supervisor that has removed
them says so, and the last one removes the record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from stormkeeper import paths
from stormkeeper.errors import (
    BadVersionError,
    NoNodeError,
    NotEmptyError,
    StateError,
    TransactionError,
)
from stormkeeper.state.storage import Delete, SetData
from stormkeeper.state.storm.record_io import (
    ROUNDS,
    LeaderWriter,
    RecordReader,
    SessionWriter,
    Versioned,
    checked,
)
from stormkeeper.state.storm.subscriptions import Callback
from stormkeeper.thrift.idl import schema_of
from stormkeeper.thrift.records import (
    Assignment,
    Checkpoints,
    Credentials,
    LogConfig,
    StormBase,
    TopologyStatus,
)

#: Optional fields of a base, without the epoch, which the writer sets.
_CLEARABLE: Final = frozenset(
    field.name for field in schema_of(StormBase).fields if not field.required
) - {"leader_epoch"}


class TopologyReads(RecordReader):
    """Reads of topologies, assignments, credentials, log levels and kept checkpoints.

    A read of one record raises `SerializationError`, with the path, if the value is unreadable. A
    read of several leaves the value out, logs it once and counts it (`RecordReader.unreadable`). A
    callback is called once, at the next change.
    """

    def assignments(self, callback: Callback | None = None) -> list[str]:
        """Return the sorted ids of the topologies that have an assignment.

        The callback is called when one is added or removed.
        """
        return self._names(paths.ASSIGNMENTS, callback)

    def assignment_info(self, storm_id: str, callback: Callback | None = None) -> Assignment | None:
        """Return a topology's assignment, None if absent."""
        return self._record(Assignment, paths.assignment(storm_id), callback)

    def assignment_info_with_version(
        self, storm_id: str, callback: Callback | None = None
    ) -> Versioned[Assignment] | None:
        """Return a topology's assignment and its node's version, None if absent."""
        return self._versioned(Assignment, paths.assignment(storm_id), callback)

    def assignment_version(self, storm_id: str, callback: Callback | None = None) -> int | None:
        """Return the version of an assignment's node alone, None if absent."""
        return self._version(paths.assignment(storm_id), callback)

    def assignments_info(self) -> dict[str, Assignment]:
        """Return all assignments by topology id, read in one go."""
        return self._records(Assignment, paths.ASSIGNMENTS)

    def active_storms(self, callback: Callback | None = None) -> list[str]:
        """Return the sorted ids of all topologies, whatever their status: Storm's name.

        The callback is called when one is added or removed.
        """
        return self._names(paths.STORMS, callback)

    def kept_storms(self) -> list[str]:
        """Return the sorted ids of topologies with nodes besides base and assignment."""
        names = self._state.children_many(paths.BESIDE_TOPOLOGIES)
        return sorted({storm_id for below in names for storm_id in below or ()})

    def storm_base(self, storm_id: str, callback: Callback | None = None) -> StormBase | None:
        """Return a topology's base, None if absent."""
        return self._record(StormBase, paths.storm(storm_id), callback)

    def storm_bases(self) -> dict[str, StormBase]:
        """Return the bases of all topologies by id, read in one go."""
        return self._records(StormBase, paths.STORMS)

    def storm_id_by_name(self, name: str) -> str | None:
        """Return the id of the topology of that name, None if absent."""
        bases = self.storm_bases()
        return next((storm_id for storm_id, base in bases.items() if base.name == name), None)

    def credentials(self, storm_id: str, callback: Callback | None = None) -> Credentials | None:
        """Return a topology's credentials, None if absent."""
        return self._record(Credentials, paths.credentials(storm_id), callback)

    def topology_log_config(
        self, storm_id: str, callback: Callback | None = None
    ) -> LogConfig | None:
        """Return a topology's log levels, None if none are set."""
        return self._record(LogConfig, paths.log_config(storm_id), callback)

    def all_checkpoints(self) -> dict[str, Checkpoints]:
        """Return all records of kept checkpoints by folder name, read in one go."""
        return self._records(Checkpoints, paths.CHECKPOINTS)

    def checkpoints(self, id_: str) -> Versioned[Checkpoints] | None:
        """Return the record of a folder's checkpoints, with the node's version, None if absent."""
        return self._versioned(Checkpoints, paths.checkpoints(id_))


class TopologyWrites(LeaderWriter):
    """A leader's decisions about topologies.

    Every call may raise `NotLeaderError` (at least its last step wrote nothing) and
    `OutcomeUnknownError` (the connection was lost during the write: read again). `topology_conf` is
    the topology's own configuration. If it names a user for the topology's workers
    (``storm.zookeeper.topology.auth.payload``), the ACLs of new nodes let that user in.
    """

    def set_assignment(
        self,
        storm_id: str,
        assignment: Assignment,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Set where a topology runs."""
        self._put(Assignment, paths.assignment(storm_id), assignment, topology_conf)

    def activate_storm(
        self, storm_id: str, base: StormBase, topology_conf: Mapping[str, Any] | None = None
    ) -> None:
        """Set a topology's base."""
        self._put(StormBase, paths.storm(storm_id), base, topology_conf)

    def update_storm(
        self, storm_id: str, changes: StormBase, *, clear: Collection[str] = ()
    ) -> None:
        """Merge `changes` into a topology's base, also beside concurrent writers.

        A field of `changes` that is None, empty or 0 stays as it was. ``component_executors`` and
        ``component_debug`` are merged by component; a component's debug options are replaced as a
        whole. (Storm adds the old and the new sampling percentage, which no caller can want.)
        Fields named in `clear`, such as ``("prev_status",)``, are cleared first. Raises
        `NoNodeError` for an unknown topology.
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

        `change` returns a new base and leaves its argument unchanged; it is called again with the
        newer base after a concurrent write. Its exceptions are raised, and nothing is written.
        Raises `NoNodeError` for an unknown topology.
        """
        path = paths.storm(storm_id)
        for attempt in range(ROUNDS):
            if attempt:
                # The server may lag behind.
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
        """Stop a topology's spouts until the next activation; errors as `change_storm`."""
        self.change_storm(storm_id, _inactive)

    def remove_storm(self, storm_id: str) -> None:
        """Remove a topology's records; fine if some or all are gone.

        Log levels, profiling requests, credentials and tasks go first, then base and assignment in
        one step. After a crash in between, a leader finds the base or the assignment and calls this
        again. Heartbeats, errors and back-pressure have their own calls, as in Storm: workers may
        still be writing them.
        """
        self.remove_settings(storm_id)
        self._delete_together([paths.storm(storm_id), paths.assignment(storm_id)])

    def remove_settings(self, storm_id: str) -> None:
        """Remove a topology's log levels, profiling requests, credentials and tasks."""
        for path in (
            paths.log_config(storm_id),
            paths.profiler_configs(storm_id),
            paths.credentials(storm_id),
            paths.tasks(storm_id),
        ):
            self._writer.delete_node(path)

    def _delete_together(self, remaining: list[str]) -> None:
        """Delete nodes in one step, in order, without absent nodes.

        The store is not asked beforehand: a lagging server could answer with an old state.
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
        """Record what becomes of checkpoints, replacing any earlier record."""
        self._put(Checkpoints, paths.checkpoints(record.folder), record)

    def change_checkpoints(self, record: Checkpoints, version: int) -> bool:
        """Replace a record of checkpoints if the version is unchanged; return whether it was."""
        path = paths.checkpoints(record.folder)
        return self._commit([SetData(path, self._encoded(record), version)])

    def forget_checkpoints(self, id_: str, version: int) -> bool:
        """Delete a record of checkpoints if the version is unchanged; return whether it was."""
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
        """Report that checkpoints are gone from a supervisor's machine."""
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
