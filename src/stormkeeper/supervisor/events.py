"""What happens to a slot, and what its machine has done about it.

Events and instructions about preparations carry the number of the request that they belong to, and
those about a worker its id. So what comes too late, about a request or a worker of before, is told
from what counts.
"""

from dataclasses import dataclass

from stormkeeper.supervisor.process_table import ProcessId
from stormkeeper.supervisor.records import SlotAssignment, SlotRecord

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
class NotPrepared:
    """The code could not be fetched, or the environment not be made."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """The worker's process was started: the answer to `Launch`."""

    worker_id: str
    process: ProcessId


@dataclass(frozen=True, slots=True)
class NotStarted:
    """No process of the worker was started, nor will be: the other answer to `Launch`."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Beaten:
    """The worker gave a sign of life: its ready line or a heartbeat."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The worker and all that it has started take so much memory."""

    worker_id: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Ended:
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
class Gone:
    """No process of the worker is left. `Ended` is said before, if anything is to be said of it."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Say first what else has happened: silence is judged here."""


Event = (
    Wanted | Prepared | NotPrepared | Started | NotStarted | Beaten | Measured | Ended | Gone | Tick
)

# --- instructions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Write this down. A `Launch` that follows it is `NotStarted` where that fails."""

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
class Abandon:
    """Nobody waits for the answer to this request any more."""

    request: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the worker's process. It must be answered, by `Started` or `NotStarted`."""

    worker_id: str
    assignment: SlotAssignment


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the worker's own process to end.

    It alone: it knows how to end the others, which need not survive the question. Spark's Python
    workers, for one, would end in the midst of the batch that the worker lets run out.
    """

    worker_id: str


@dataclass(frozen=True, slots=True)
class Kill:
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
class CleanUp:
    """Remove the worker's own files. Its log stays."""

    worker_id: str


Instruction = (
    Record
    | FetchCode
    | PrepareEnvironment
    | Abandon
    | Launch
    | Terminate
    | Kill
    | ReportCrash
    | ReportProblem
    | CleanUp
)
