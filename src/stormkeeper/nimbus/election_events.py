"""What an `Election` is told, and what it says is to be done: its events and its instructions."""

from dataclasses import dataclass

from stormkeeper.state.leader_lock import Lock

# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stand:
    """To lead is wanted from now on."""


@dataclass(frozen=True, slots=True)
class StandAside:
    """To lead is wanted, but not in the next `secs` seconds."""

    secs: float


@dataclass(frozen=True, slots=True)
class Withdraw:
    """To lead is not wanted any more."""


@dataclass(frozen=True, slots=True)
class ConnectionChanged:
    """The connection to the store was made, or has broken, or the session has ended."""

    is_connected: bool


@dataclass(frozen=True, slots=True)
class QueueChanged:
    """A watch has told that the queue may be another one."""


@dataclass(frozen=True, slots=True)
class Recheck:
    """The code or the disk of this Nimbus has changed, so the last `Check` may not hold."""


@dataclass(frozen=True, slots=True)
class Saw:
    """What a `Look` saw."""

    #: All locks, the first one's first.
    line: tuple[Lock, ...]

    #: The session that looked, and how long the store keeps it without hearing of it, in seconds.
    session_id: int
    timeout_secs: float

    #: When the look began.
    began_at: float


@dataclass(frozen=True, slots=True)
class Wrote:
    """A `Take` or a `GiveUp` has ended."""


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """A `Look` has failed; or a `Take` or a `GiveUp`, which may be done or not."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a `Check` found."""

    #: The ids of the topologies whose code is not here, and that another Nimbus has.
    lacking: frozenset[str] = frozenset()

    #: The ids of those that a Java Nimbus leads, and that are not to be taken over.
    foreign: frozenset[str] = frozenset()

    #: Whether this Nimbus cannot write to its disk and one that can is in the queue.
    yields: bool = False


@dataclass(frozen=True, slots=True)
class CheckFailed:
    """A `Check` could not be made."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A `Fetch` has ended, well or not: the next `Check` will tell."""


@dataclass(frozen=True, slots=True)
class Told:
    """The Nimbus knows what an `Elect` or a `Depose` has to tell."""


@dataclass(frozen=True, slots=True)
class NotTold:
    """The Nimbus could not be told that it leads."""

    #: Whether it cannot lead, so that another one has to. Else it is tried again.
    is_unfit: bool


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is later."""


StoreAnswer = Saw | Wrote | StoreFailed
NimbusAnswer = Checked | CheckFailed | Fetched | Told | NotTold
Event = (
    Stand
    | StandAside
    | Withdraw
    | ConnectionChanged
    | QueueChanged
    | Recheck
    | StoreAnswer
    | NimbusAnswer
    | TimePassed
)

# --- instructions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """Look at the queue, and leave a watch on our lock and the one before; then `Saw`."""


@dataclass(frozen=True, slots=True)
class Take:
    """Take a lock."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Delete a lock of ours."""

    lock: Lock


@dataclass(frozen=True, slots=True)
class Check:
    """Look at the code, the disk and the topologies; then `Checked`."""

    #: The first lock, if it is ours: a good answer allows to lead by it.
    lock: Lock | None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Copy the code of topologies from those who have it."""

    storm_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Elect:
    """Tell the Nimbus that it leads by a lock."""

    lock: Lock


@dataclass(frozen=True, slots=True)
class Depose:
    """Tell the Nimbus that it does not lead any more, or not for now."""


StoreInstruction = Look | Take | GiveUp
NimbusInstruction = Check | Fetch | Elect | Depose
Instruction = StoreInstruction | NimbusInstruction
