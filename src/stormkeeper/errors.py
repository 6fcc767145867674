"""The error tree: every failure that crosses a room's boundary is one of these.

An error's message says what was wrong, with what value, and what to do about it. Exceptions of
libraries (kazoo, thriftpy2, py4j, sockets) are turned into these at the boundary of the room that
uses the library, with the original as ``__cause__``.
"""


class StormkeeperError(Exception):
    """Anything that Stormkeeper raises on purpose."""


class ConfigError(StormkeeperError):
    """A configuration key, value or file is wrong; commands end with exit code 2."""


class MissingExtraError(StormkeeperError, ImportError):
    """An extra of this package is not installed; commands end with exit code 69."""


class SerializationError(StormkeeperError):
    """Bytes are not the record that they were read as, or exceed a size limit."""


class ProtocolError(StormkeeperError):
    """A protocol, Pacemaker's or Thrift's, was broken."""


class LocalProtocolError(ProtocolError):
    """We were asked to send what the protocol cannot carry; our caller is at fault."""


class UnsupportedExtensionError(LocalProtocolError):
    """The server has not told that it has the extension that a request belongs to."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol does not allow; the connection cannot go on."""


class AuthenticationError(StormkeeperError):
    """A peer did not prove who it is, or did not keep to its mechanism; safe to log."""


class PacemakerError(StormkeeperError):
    """A Pacemaker could not be used."""


class PacemakerUnavailableError(PacemakerError):
    """No Pacemaker answered before the deadline."""


class PacemakerClosedError(PacemakerUnavailableError):
    """The client was closed, by us, before the request was answered or even made."""


class NotAuthorizedError(PacemakerError):
    """The Pacemaker refused the request, or would not take us for who we say we are."""


class UntrustedServerError(NotAuthorizedError):
    """Client and Pacemaker do not trust each other's certificates, or not both speak TLS."""


class RpcError(StormkeeperError):
    """A call of a Thrift service, as Nimbus's, failed."""


class RpcUnavailableError(RpcError):
    """The service was not reached in time; the call was not sent, unless a subclass says so."""


class RpcOutcomeUnknownError(RpcUnavailableError):
    """The call was sent and not answered: carried out or not; look before it is made again."""


class LeaderNotFoundError(RpcUnavailableError):
    """No Nimbus of ``nimbus.seeds`` told who leads before the deadline.

    Parameters
    ----------
    message
        What each of them said.
    is_electing
        Whether a Nimbus answered, which may come to lead, or knows soon who does.
    """

    def __init__(self, message: str, *, is_electing: bool = False) -> None:
        super().__init__(message)
        self.is_electing = is_electing


class RpcRefusedError(RpcError):
    """The service answered that it could not carry out the call.

    Parameters
    ----------
    message
        Whose answer it was, and its words.
    kind
        Thrift's number for it: 0 the caller's own mistake, 1 no such method, 5 no result, 6 an
        internal error, 7 arguments that it could not read.
    reason
        Its words alone.
    """

    def __init__(self, message: str, kind: int, reason: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.reason = reason or message


class RefusedError(StormkeeperError):
    """Nimbus does not do what it was asked, for the reason that the message says."""


class NotAliveError(RefusedError):
    """There is no topology of that name or id."""


class LogsError(StormkeeperError):
    """A machine does not give its workers' logs."""


class CallRefusedError(RpcError):
    """A server cannot carry out a call now; the message goes to the caller."""


class CallerError(CallRefusedError):
    """A call is wrong in itself: it would fail on every server."""


class SimulationError(StormkeeperError):
    """A simulation of workers may not begin, or cannot go on."""


class StateError(StormkeeperError):
    """An operation on the cluster state failed."""


class StateUnavailableError(StateError):
    """The store was not reached before the deadline; nothing was done, unless a subclass says."""


class OutcomeUnknownError(StateUnavailableError):
    """The connection was lost, or the deadline passed, in mid-write: done or not; read again."""


class StateClosedError(StateError):
    """The session with the store was closed by ourselves."""


class InvalidPathError(StateError):
    """No node of the cluster's state can have that path."""


class RecordTooLargeError(StateError):
    """A record has more bytes than a node may have; nothing was written."""


class NoNodeError(StateError):
    """The path does not exist."""


class NodeExistsError(StateError):
    """The path exists already."""


class BadVersionError(StateError):
    """The node has another version than the one expected."""


class NotEmptyError(StateError):
    """The node has children."""


class AccessDeniedError(StateError):
    """A node's ACL does not allow it; the message names who we are."""


class StateAuthenticationError(StateError):
    """The store did not take us for who we say we are."""


class NotLeaderError(StateError):
    """We do not lead, or not any more: somebody else may; nothing was written."""


class NoLeaderError(StateError):
    """No Nimbus leads at present."""


class TransactionError(StateError):
    """One operation of a transaction was refused, and so all were.

    Parameters
    ----------
    index
        Which operation, from 0, in the order in which they were added.
    reason
        Why: `NoNodeError`, `NodeExistsError`, `BadVersionError`, `NotEmptyError`,
        `AccessDeniedError`, or another `StateError`.
    """

    def __init__(self, index: int, reason: StateError) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"operation {self.index} was refused, and so nothing was done: {self.reason}"


class TopologyError(StormkeeperError):
    """A topology is not well formed; its author is at fault."""


class UnknownComponentError(StormkeeperError):
    """A topology has no component of that name; the message names those that it has."""


class StatusError(StormkeeperError):
    """A topology's status does not take the command; nothing was changed."""


class CheckpointsError(StormkeeperError):
    """A topology cannot go on from the checkpoints that it names, or they cannot be removed."""


class WorkerError(StormkeeperError):
    """A worker could not start or went on no longer.

    Parameters
    ----------
    message
        What is wrong.
    component
        The id of the component that it happened in; None where it is of no single one.
    """

    def __init__(self, message: str = "", component: str | None = None) -> None:
        super().__init__(message)
        self.component = component


class EnvironmentBuildError(StormkeeperError):
    """What a topology requires could not be installed."""


class ClaimedError(WorkerError):
    """A later launch has claimed a query, so that this worker does not run it."""


class OccupiedError(ClaimedError):
    """Another topology has claimed the checkpoint of a query."""


class SupervisorError(StormkeeperError):
    """A supervisor cannot use its folders, or cannot start or end a worker."""


class ChildError(StormkeeperError):
    """A child process could not be started, or was not ready in time, or ended before it was."""


class CodeError(StormkeeperError):
    """A blob, such as a topology's code, could not be stored, found, copied or deleted."""


class InvalidBlobKeyError(CodeError):
    """No blob can have that key."""


class BlobNotFoundError(CodeError):
    """There is no blob of that key."""


class BlobExistsError(CodeError):
    """There is a blob of that key, or a newer version of it than the one that was to follow."""


class BlobInUseError(CodeError):
    """A topology that is there needs the blob."""


class BlobStorageError(CodeError):
    """The disk did not take a blob, or did not give it back; what was begun is removed."""


class TransferEndedError(CodeError):
    """No such upload or download is under way: it was finished, cancelled, or idle for too long."""


class PeerError(CodeError):
    """Another Nimbus did not send a blob as it should have; others may."""


class PeerUnavailableError(PeerError):
    """Another Nimbus could not be reached, or did not answer by the deadline."""


class LocalClusterError(StormkeeperError):
    """A process of a local cluster did not start or ended on its own."""


class ListenError(StormkeeperError):
    """A daemon cannot listen on the address that it is configured for."""


class EngineError(StormkeeperError):
    """Spark did not start, or a query on it failed."""


class TableError(StormkeeperError):
    """A table of the heartbeat pipeline cannot be read or written."""
