"""What a slot is to run, and what a restarted supervisor must know of a slot.

All of these are values. `local_state` writes them as JSON, so what they hold is plain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from stormkeeper.supervisor.process_table import ProcessId


class Restart(StrEnum):
    """``topology.restart``: whether a worker that has ended by itself is started again."""

    ALWAYS = "always"
    #: Unless its exit code is 0, by which a worker says that all of its queries are done.
    ON_FAILURE = "on-failure"
    NEVER = "never"

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> "Restart":
        """Return what a topology's configuration says."""
        return cls(conf["topology.restart"])


class Outcome(StrEnum):
    """How an assignment ended that is not run again."""

    COMPLETED = "completed"
    FAILED = "failed"

    def stands_under(self, restart: Restart) -> bool:
        """Return whether what ended so is still not run again where that is said."""
        is_never = restart is Restart.NEVER
        return is_never or (self is Outcome.COMPLETED and restart is Restart.ON_FAILURE)


@dataclass(frozen=True, slots=True)
class CrashSeries:
    """Crashes of the same work in a row: how many, since when (1970), how the last one ended."""

    count: int
    since_secs: int
    error: str


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """What a slot is to run. A change of anything but `restart` and `crashes` is a new launch.

    Parameters
    ----------
    storm_id
        The topology's id.
    claims
        The claim that each query is run with, as it is written, by the query's id.
    version
        Of code and configuration: whatever changes when they do.
    memory_bytes
        What the worker and all that it starts may take; None: no limit.
    restart
        What to do when it ends by itself.
    crashes
        Of the same queries before this launch, in whichever slots; None: none is known.
    """

    storm_id: str
    claims: dict[str, str] = field(default_factory=dict)
    version: str = ""
    memory_bytes: int | None = None
    restart: Restart = Restart.ON_FAILURE
    crashes: CrashSeries | None = None

    def is_same_launch(self, other: "SlotAssignment | None") -> bool:
        """Return whether a worker of `other` has all that this one is launched with."""
        if other is None:
            return False
        # An older Nimbus that writes an assignment again leaves `crashes` out.
        return replace(other, restart=self.restart, crashes=self.crashes) == self

    def is_same_work(self, other: "SlotAssignment | None") -> bool:
        """Return whether `other` has the same queries of the same topology, by whatever claim."""
        return (
            other is not None
            and self.storm_id == other.storm_id
            and self.claims.keys() == other.claims.keys()
        )


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A launch: noted before its process is started, and again with the process.

    Parameters
    ----------
    worker_id
        Names the launch. Its processes carry it as their mark.
    assignment
        What it was launched for.
    process
        The worker's own process; None while it is not known whether one was started.
    """

    worker_id: str
    assignment: SlotAssignment
    process: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """What must outlive a supervisor of one slot.

    Parameters
    ----------
    wanted
        What the slot is to run.
    worker
        The launch of which processes may be left, also if it is of an earlier assignment.
    crashes
        How often in a row a worker crashed, without a long run in between.
    outcome
        How `wanted` has ended, if it is not run again.
    crashing_since
        When the first of these crashes was, in seconds since 1970; 0: there was none.
    """

    wanted: SlotAssignment | None = None
    worker: WorkerRecord | None = None
    crashes: int = 0
    outcome: Outcome | None = None
    crashing_since: int = 0
