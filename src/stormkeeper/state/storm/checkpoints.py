"""What becomes of checkpoints whose topologies are gone: `stormkeeper.thrift.records.Checkpoints`.

A leader says it when it removes a topology. It may say later that they are to be removed, and on
which machines. A supervisor that has removed them says so, and the last one removes the record.
"""

from __future__ import annotations

import copy

from stormkeeper import paths
from stormkeeper.errors import BadVersionError, NoNodeError, StateError, TransactionError
from stormkeeper.state.storm.records import (
    ROUNDS,
    LeaderWriter,
    RecordReader,
    SessionWriter,
    Versioned,
)
from stormkeeper.state.transactions import Delete, SetData
from stormkeeper.thrift.records import Checkpoints


class CheckpointReads(RecordReader):
    """Which checkpoints are kept, or are to be removed."""

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


class CheckpointWrites(LeaderWriter):
    """What a leader decides about checkpoints; errors as in `TopologyWrites`."""

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


class CheckpointRemovals(SessionWriter, CheckpointReads):
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
