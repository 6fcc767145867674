"""Topologies: what runs (``StormBase``), where (``Assignment``), and with what set for it."""

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

#: Fields that a base need not have; who wrote it is not for others to say.
_CLEARABLE: Final = frozenset(
    field.name for field in schema_of(StormBase).fields if not field.required
) - {"leader_epoch"}


class TopologyReads(RecordReader):
    """Reads of topologies, their assignments, credentials and log levels.

    Notes
    -----
    Reads of one record raise `SerializationError`, with the path, where a node holds no such
    record. Those of several leave it out, log it once and count it (`RecordReader.unreadable`).
    """

    def assignments(self, callback: Callback | None = None) -> list[str]:
        """Return the ids of the topologies that have an assignment, sorted.

        The callback is told once when one is added or removed.
        """
        return self._names(paths.ASSIGNMENTS, callback)

    def assignment_info(self, storm_id: str, callback: Callback | None = None) -> Assignment | None:
        """Return a topology's assignment, None where it has none; told once when it changes."""
        return self._record(Assignment, paths.assignment(storm_id), callback)

    def assignment_info_with_version(
        self, storm_id: str, callback: Callback | None = None
    ) -> Versioned[Assignment] | None:
        """Return a topology's assignment and its node's version; else as `assignment_info`."""
        return self._versioned(Assignment, paths.assignment(storm_id), callback)

    def assignment_version(self, storm_id: str, callback: Callback | None = None) -> int | None:
        """Return the version of an assignment's node alone; else as `assignment_info`."""
        return self._version(paths.assignment(storm_id), callback)

    def assignments_info(self) -> dict[str, Assignment]:
        """Return all assignments by their topologies' ids, read in one go."""
        return self._records(Assignment, paths.ASSIGNMENTS)

    def active_storms(self, callback: Callback | None = None) -> list[str]:
        """Return the ids of all topologies, sorted, whatever their status: Storm's name for them.

        The callback is told once when one is added or removed.
        """
        return self._names(paths.STORMS, callback)

    def kept_storms(self) -> list[str]:
        """Return the ids of the topologies of which anything is kept, sorted.

        That is what is in ZooKeeper beside base and assignment, whether or not these are there.
        """
        names = self._state.children_many(paths.BESIDE_TOPOLOGIES)
        return sorted({storm_id for below in names for storm_id in below or ()})

    def storm_base(self, storm_id: str, callback: Callback | None = None) -> StormBase | None:
        """Return a topology's base, None where there is none; told once when it changes."""
        return self._record(StormBase, paths.storm(storm_id), callback)

    def storm_bases(self) -> dict[str, StormBase]:
        """Return the bases of all topologies by their ids, read in one go."""
        return self._records(StormBase, paths.STORMS)

    def storm_id_by_name(self, name: str) -> str | None:
        """Return the id of the topology of that name, None where there is none."""
        bases = self.storm_bases()
        return next((storm_id for storm_id, base in bases.items() if base.name == name), None)

    def credentials(self, storm_id: str, callback: Callback | None = None) -> Credentials | None:
        """Return a topology's credentials, None where it has none; told once when they change."""
        return self._record(Credentials, paths.credentials(storm_id), callback)

    def topology_log_config(
        self, storm_id: str, callback: Callback | None = None
    ) -> LogConfig | None:
        """Return a topology's log levels, None where none are set; told once when they change."""
        return self._record(LogConfig, paths.log_config(storm_id), callback)

    def all_checkpoints(self) -> dict[str, Checkpoints]:
        """Return all by their folders' names, read in one go; what is unreadable is left out."""
        return self._records(Checkpoints, paths.CHECKPOINTS)

    def checkpoints(self, id_: str) -> Versioned[Checkpoints] | None:
        """Return what is kept of a folder, and its node's version; None where nothing is.

        Raises
        ------
        SerializationError
            What is there is no such record.
        """
        return self._versioned(Checkpoints, paths.checkpoints(id_))


class TopologyWrites(LeaderWriter):
    """What a leader decides about topologies, and sets for them.

    Notes
    -----
    Every call may raise `NotLeaderError` (nothing was written, at least by its last step) and
    `OutcomeUnknownError` (the connection was lost in mid-write: read again). `topology_conf` is the
    topology's own configuration. If it names a user for the topology's workers
    (``storm.zookeeper.topology.auth.payload``), the ACL of what is made lets that user in.
    """

    def set_assignment(
        self,
        storm_id: str,
        assignment: Assignment,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Say where a topology is to run."""
        self._put(Assignment, paths.assignment(storm_id), assignment, topology_conf)

    def activate_storm(
        self, storm_id: str, base: StormBase, topology_conf: Mapping[str, Any] | None = None
    ) -> None:
        """Make a topology known, or write its base anew."""
        self._put(StormBase, paths.storm(storm_id), base, topology_conf)

    def update_storm(
        self, storm_id: str, changes: StormBase, *, clear: Collection[str] = ()
    ) -> None:
        """Change a topology's base where `changes` says something, whoever else changes it.

        Parameters
        ----------
        storm_id : str
            The topology.
        changes : StormBase
            A field that is None, empty or 0 stays as it was. ``component_executors`` and
            ``component_debug`` are merged by component, a component's debug options being replaced
            as a whole: Storm adds the old and the new sampling percentage up, which no caller can
            want.
        clear : collection of str, optional
            Names of fields that are to be absent, such as ``("prev_status",)``. They are cleared
            first: what `changes` says of one of them is all that is there then.

        Raises
        ------
        NoNodeError
            There is no such topology.
        ValueError
            A name in `clear` is none of a field that may be absent.
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
        """Write what `change` makes of a topology's base, whoever else changes it meanwhile.

        Parameters
        ----------
        storm_id : str
            The topology.
        change : callable
            Returns another base than the one that it is given, which stays as it is. It is called
            again, with the newer base, when somebody has written one meanwhile. What it raises is
            raised, and nothing is written.

        Raises
        ------
        NoNodeError
            There is no such topology.
        """
        path = paths.storm(storm_id)
        for attempt in range(ROUNDS):
            if attempt:
                # The server that was asked may lag behind.
                self._state.sync_path(path)
            found = self._versioned(StormBase, path)
            if found is None:
                if attempt:
                    raise NoNodeError(f"there is no topology {storm_id}: {path} does not exist")
                continue
            data = self._stamped(change(found.record))
            try:
                self._writer.commit([SetData(path, data, found.version)])
            except TransactionError as error:
                if not isinstance(error.reason, BadVersionError | NoNodeError):
                    raise error.reason from error
            else:
                return
        raise StateError(f"cannot change {path}: others changed it {ROUNDS} times meanwhile")

    def deactivate_storm(self, storm_id: str) -> None:
        """Have a topology's spouts emit nothing until it is activated again.

        Raises
        ------
        NoNodeError
            There is no such topology.
        """
        self.change_storm(storm_id, _inactive)

    def remove_storm(self, storm_id: str) -> None:
        """Remove all that was written about a topology; one that is gone, or half gone, is fine.

        Its log levels, profiling requests, credentials and tasks go first, then base and assignment
        in one step. Whoever finds a base (or an assignment) after a crash in between calls this
        again, and nothing is left of which nobody knows. Heartbeats, errors and back-pressure are
        removed on their own, as in Storm: workers may be writing them still.
        """
        self.remove_settings(storm_id)
        self._delete_together([paths.storm(storm_id), paths.assignment(storm_id)])

    def remove_settings(self, storm_id: str) -> None:
        """Remove what was set for a topology, and leave it where it is; none is fine.

        That is its log levels, profiling requests, credentials and tasks.
        """
        for path in (
            paths.log_config(storm_id),
            paths.profiler_configs(storm_id),
            paths.credentials(storm_id),
            paths.tasks(storm_id),
        ):
            self._writer.delete_node(path)

    def _delete_together(self, remaining: list[str]) -> None:
        """Delete nodes in one step, in order; what is absent is left out of it.

        The store is not asked beforehand: a server that lags could answer with what was.
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
        raise StateError(f"cannot delete {' and '.join(remaining)}: others keep adding nodes below")

    def set_credentials(
        self,
        storm_id: str,
        credentials: Credentials,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Give a topology credentials in place of those it has."""
        self._put(Credentials, paths.credentials(storm_id), credentials, topology_conf)

    def set_topology_log_config(
        self,
        storm_id: str,
        log_config: LogConfig,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Give a topology log levels in place of those it has."""
        self._put(LogConfig, paths.log_config(storm_id), log_config, topology_conf)

    def set_checkpoints(self, record: Checkpoints) -> None:
        """Say what becomes of checkpoints, whatever was said before."""
        self._put(Checkpoints, paths.checkpoints(record.folder), record)

    def change_checkpoints(self, record: Checkpoints, version: int) -> bool:
        """Say it if nobody has said anything since that version; return whether it was said."""
        path = paths.checkpoints(record.folder)
        return self._commit([SetData(path, self._stamped(record), version)])

    def forget_checkpoints(self, id_: str, version: int) -> bool:
        """Forget checkpoints if nobody has said anything since; return whether that was done."""
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
    """What a supervisor says of checkpoints."""

    def checkpoints_removed(self, id_: str, supervisor_id: str) -> None:
        """Say that checkpoints are gone from a supervisor's machine.

        Raises
        ------
        StateError
            It could not be said.
        """
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
        raise StateError(f"cannot change {path}: others changed it {ROUNDS} times meanwhile")
