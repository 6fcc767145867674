"""Values of a slot: assignment, records that outlive a supervisor, timeouts, events, instructions.

Events carry the request's number or the worker's id, so that late events are recognised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from stormkeeper.supervisor.process_table import ProcessId

# --- assignments and records ---------------------------------------------------------------------


class Restart(StrEnum):
    """``topology.restart``: whether a worker that has ended by itself starts again."""

    ALWAYS = "always"
    #: Unless its exit code is 0: all queries are done.
    ON_FAILURE = "on-failure"
    NEVER = "never"

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> "Restart":
        return cls(conf["topology.restart"])


class SlotOutcome(StrEnum):
    """How an assignment ended that is not run again."""

    COMPLETED = "completed"
    FAILED = "failed"

    def stands_under(self, restart: Restart) -> bool:
        """Return whether the assignment is still not run again with this setting."""
        is_never = restart is Restart.NEVER
        return is_never or (self is SlotOutcome.COMPLETED and restart is Restart.ON_FAILURE)


@dataclass(frozen=True, slots=True)
class CrashSeries:
    """Crashes of the same queries in a row."""

    count: int
    since_secs: int
    error: str


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """The work of a slot. A change of any field but `restart` and `crashes` is a new start."""

    storm_id: str
    claims: dict[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    restart: Restart = Restart.ON_FAILURE
    #: Of the same queries before this start, in any slot.
    crashes: CrashSeries | None = None

    def is_same_start(self, other: "SlotAssignment | None") -> bool:
        if other is None:
            return False
        # An older Nimbus that rewrites an assignment leaves `crashes` out.
        return replace(other, restart=self.restart, crashes=self.crashes) == self

    def is_same_work(self, other: "SlotAssignment | None") -> bool:
        return (
            other is not None
            and self.storm_id == other.storm_id
            and self.claims.keys() == other.claims.keys()
        )


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A start of a worker, recorded before the process exists, and again with the process."""

    #: The mark of the processes of this start; a new start has a new id.
    worker_id: str
    assignment: SlotAssignment
    process: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """A slot's state for the next supervisor."""

    wanted: SlotAssignment | None = None
    #: The start of which processes may be left, even of an earlier assignment.
    worker: WorkerRecord | None = None
    crashes: int = 0
    outcome: SlotOutcome | None = None
    crashing_since: int = 0


# --- timeouts ------------------------------------------------------------------------------------

#: Longest end of a worker after SIGTERM: `END_SECS` of `worker.shutdown`, a higher room.
WORKER_END_SECS: Final = 27.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTimeouts:
    """Timeouts of a slot's steps, in seconds."""

    start: float = 120.0
    silence: float = 30.0
    grace: float = 30.0
    #: From the main process's end to SIGKILL for the rest: a JVM ends two seconds later.
    linger: float = 5.0
    #: Between two SIGKILLs: killed processes may have started others.
    kill_again: float = 1.0
    #: From the first SIGKILL to the report that it has no effect, and between two reports.
    stuck: float = 120.0
    #: Of code and environment; longer than the timeouts of both.
    preparation: float = 2700.0
    #: Pauses before a preparation is retried, doubled each time.
    first_retry: float = 3.0
    last_retry: float = 60.0
    #: Pauses before a worker starts again, doubled each time; none after the first crash.
    first_delay: float = 1.0
    last_delay: float = 60.0
    #: Run time after which earlier crashes no longer count.
    stable: float = 300.0

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> "SlotTimeouts":
        """Storm's pause before SIGKILL, too short for a batch, is added to ours."""
        return cls(
            start=conf["supervisor.worker.start.timeout.secs"],
            silence=conf["supervisor.worker.timeout.secs"],
            grace=WORKER_END_SECS + conf["supervisor.worker.shutdown.sleep.secs"],
        )

    def retry(self, failures: int) -> float:
        """Return the pause after this many failed preparations in a row, from 1."""
        return _doubled(self.first_retry, failures - 1, self.last_retry)

    def delay(self, crashes: int) -> float:
        """Return the pause after this many crashes in a row, from 1."""
        return 0.0 if crashes < 2 else _doubled(self.first_delay, crashes - 2, self.last_delay)


def _doubled(first: float, times: int, most: float) -> float:
    # 2.0**1024 is too large for a float.
    return min(most, first * 2.0 ** min(times, 60))


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The slot's assignment, if any; may be repeated."""

    assignment: SlotAssignment | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Answer to `Prepare`."""

    request: int


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """A `Prepare` failed."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """Answer to `StartWorker`."""

    worker_id: str
    process: ProcessId


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A `StartWorker` failed: no process was started."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """A sign of life of the worker."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """Memory of the worker with all children."""

    worker_id: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The worker's main process has ended; others may be left."""

    worker_id: str
    #: Negative after a signal; None for an adopted worker.
    exit_code: int | None
    #: Whether the kernel ended a process at the worker's memory limit.
    is_too_large: bool = False
    #: Whether user code ended the process, with an exit code that the worker did not write.
    is_premature: bool = False


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """No process of the worker is left; follows `WorkerEnded`, if any."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; follows all other events, as silence is judged."""


WorkerEvent = WorkerStarted | StartFailed | SignOfLife | MemoryMeasured | WorkerEnded | WorkerGone
Event = Wanted | Prepared | PreparationFailed | WorkerEvent | Tick

# --- instructions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveRecord:
    """Save the slot's record. If that fails, a following `StartWorker` fails, too."""

    record: SlotRecord


@dataclass(frozen=True, slots=True)
class Prepare:
    """Fetch the topology's code, and build its Python environment, as far as needed."""

    request: int
    assignment: SlotAssignment


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start the worker's process; answer `WorkerStarted` or `StartFailed` before other events."""

    worker_id: str
    assignment: SlotAssignment


@dataclass(frozen=True, slots=True)
class TerminateWorker:
    """Send SIGTERM to the worker's main process alone.

    Spark's Python workers would end within the batch that the worker lets finish.
    """

    worker_id: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Send SIGKILL to all processes of the worker."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class ReportCrash:
    """Report a worker that ended by itself, or had to be ended."""

    assignment: SlotAssignment
    worker_id: str
    reason: str
    crashes: int
    #: None if the main process is unknown, or none was started.
    process: ProcessId | None


@dataclass(frozen=True, slots=True)
class ReportProblem:
    """Report why the slot does not run."""

    assignment: SlotAssignment
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveWorkerFiles:
    """Remove the worker's files, but not the log."""

    worker_id: str


Instruction = (
    SaveRecord
    | Prepare
    | StartWorker
    | TerminateWorker
    | KillWorker
    | ReportCrash
    | ReportProblem
    | RemoveWorkerFiles
)
