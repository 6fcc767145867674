"""What a slot is to run, and what a restarted supervisor must know of a slot.

All of these are values. `local_state` writes them as JSON, so what they hold is plain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

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


class SlotOutcome(StrEnum):
    """How an assignment ended that is not run again."""

    COMPLETED = "completed"
    FAILED = "failed"

    def stands_under(self, restart: Restart) -> bool:
        """Return whether what ended so is still not run again where that is said."""
        is_never = restart is Restart.NEVER
        return is_never or (self is SlotOutcome.COMPLETED and restart is Restart.ON_FAILURE)


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
    outcome: SlotOutcome | None = None
    crashing_since: int = 0


# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The slot is to run this, and nothing where it is None. May be said as often as one likes."""

    assignment: SlotAssignment | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """The code is there, or the environment: the answer to `FetchCode`, `PrepareEnvironment`."""

    request: int


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """The code could not be fetched, or the environment not be made."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The worker's process was started: the answer to `LaunchWorker`."""

    worker_id: str
    process: ProcessId


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """No process of the worker was started, nor will be: the other answer to `LaunchWorker`."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerBeat:
    """The worker gave a sign of life: its ready line or a heartbeat."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """The worker and all that it has started take so much memory."""

    worker_id: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The worker's own process has ended. Others that it started may be left."""

    worker_id: str
    #: Negative where a signal ended it. None if that is unknown: an adopted worker was started by
    #: another process, which alone could be told.
    exit_code: int | None
    #: Whether the kernel ended some process of it, as it took more memory than it may.
    is_too_large: bool = False
    #: Whether the exit code is that of a worker that has done its work, and the worker did not say
    #: so: code of the topology has ended the process.
    is_premature: bool = False


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """No process of the worker is left; `WorkerEnded` comes first, if the end is to be judged."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Say first what else has happened: silence is judged here."""


Event = (
    Wanted
    | Prepared
    | PreparationFailed
    | WorkerStarted
    | LaunchFailed
    | WorkerBeat
    | MemoryMeasured
    | WorkerEnded
    | WorkerGone
    | Tick
)

# --- instructions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveRecord:
    """Write this down. A `LaunchWorker` that follows it is `LaunchFailed` where that fails."""

    record: SlotRecord


@dataclass(frozen=True, slots=True)
class FetchCode:
    """See that the topology's code and configuration are there, whole."""

    request: int
    assignment: SlotAssignment


@dataclass(frozen=True, slots=True)
class PrepareEnvironment:
    """See that the topology's Python environment is there."""

    request: int
    assignment: SlotAssignment


@dataclass(frozen=True, slots=True)
class AbandonRequest:
    """Nobody waits for the answer to this request any more."""

    request: int


@dataclass(frozen=True, slots=True)
class LaunchWorker:
    """Start the worker's process. It must be answered, by `WorkerStarted` or `LaunchFailed`."""

    worker_id: str
    assignment: SlotAssignment


@dataclass(frozen=True, slots=True)
class TerminateWorker:
    """Ask the worker's own process to end.

    It alone: it knows how to end the others, which need not survive the question. Spark's Python
    workers, for one, would end in the midst of the batch that the worker lets run out.
    """

    worker_id: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End all processes of the worker by force."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class ReportCrash:
    """A worker ended that was not asked to, or had to be ended."""

    assignment: SlotAssignment
    worker_id: str
    reason: str
    #: How often in a row this work crashed.
    crashes: int
    #: The worker's own process; None: it is not known, or none was started.
    process: ProcessId | None


@dataclass(frozen=True, slots=True)
class ReportProblem:
    """Something keeps the slot from what it is to do: say so where the topology's user looks."""

    assignment: SlotAssignment
    reason: str


@dataclass(frozen=True, slots=True)
class RemoveWorkerFiles:
    """Remove the worker's own files. Its log stays."""

    worker_id: str


Instruction = (
    SaveRecord
    | FetchCode
    | PrepareEnvironment
    | AbandonRequest
    | LaunchWorker
    | TerminateWorker
    | KillWorker
    | ReportCrash
    | ReportProblem
    | RemoveWorkerFiles
)


#: How long a worker that is asked to end takes at most, to finish its batches: `END_SECS` of
#: `worker.process`, which is above this room.
WORKER_END_SECS: Final = 27.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTimeouts:
    """The limits of each step.

    Parameters
    ----------
    start
        From the launch to the first sign of life.
    silence
        Between two signs of life.
    grace
        From the question to end to the use of force.
    linger
        From the end of the worker's own process to the use of force against what it has left: a JVM
        ends about two seconds after the Python that started it.
    kill_again
        Between two uses of force, as what is killed may have started others meanwhile.
    stuck
        From the first use of force until it is reported that even that did not help, and between
        two reports.
    code, environment
        For fetching the code and for making the environment, which `environments` ends before.
    first_retry, last_retry
        Before what could not be prepared is tried again: at first, and at most. Each wait is twice
        the one before.
    first_delay, last_delay
        The same before a worker is started again. The first crash is followed by no wait.
    stable
        How long a worker must have run for its earlier crashes not to count any more.
    """

    start: float = 120.0
    silence: float = 30.0
    grace: float = 30.0
    linger: float = 5.0
    kill_again: float = 1.0
    stuck: float = 120.0
    code: float = 600.0
    environment: float = 2100.0
    first_retry: float = 3.0
    last_retry: float = 60.0
    first_delay: float = 1.0
    last_delay: float = 60.0
    stable: float = 300.0

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> "SlotTimeouts":
        """Return the times of a configuration.

        Storm's key for the wait before the use of force is three seconds by default, in which no
        batch is done. So it comes on top of what our workers need.
        """
        return cls(
            start=conf["supervisor.worker.start.timeout.secs"],
            silence=conf["supervisor.worker.timeout.secs"],
            grace=WORKER_END_SECS + conf["supervisor.worker.shutdown.sleep.secs"],
        )

    def retry(self, failures: int) -> float:
        """Return the wait after this many failures to prepare in a row, from 1."""
        return _doubled(self.first_retry, failures - 1, self.last_retry)

    def delay(self, crashes: int) -> float:
        """Return the wait after this many crashes in a row, from 1."""
        return 0.0 if crashes < 2 else _doubled(self.first_delay, crashes - 2, self.last_delay)


def _doubled(first: float, times: int, most: float) -> float:
    # 2.0**1024 is too large for a float.
    return min(most, first * 2.0 ** min(times, 60))
