"""The error tree: every failure that crosses a room's boundary.

Messages say which value was wrong, and the remedy. The room that uses a library (kazoo, thriftpy2,
py4j, sockets) converts the library's exceptions, with the original as ``__cause__``.
"""


class StormkeeperError(Exception):
    """The base of all errors that Stormkeeper raises on purpose."""


class ConfigError(StormkeeperError):
    """A wrong configuration key, value or file; commands end with exit code 2."""


class MissingExtraError(StormkeeperError, ImportError):
    """An extra of this package is not installed; commands end with exit code 69."""


class SerializationError(StormkeeperError):
    """Bytes are not the expected record, or exceed a size limit."""


class ProtocolError(StormkeeperError):
    """A violation of a protocol, Pacemaker's or Thrift's."""


class LocalProtocolError(ProtocolError):
    """The protocol cannot carry our caller's message."""


class UnsupportedExtensionError(LocalProtocolError):
    """The server has not announced the extension of a request."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol; the connection must end."""


class AuthenticationError(StormkeeperError):
    """A peer failed to authenticate, or violated the mechanism. The text has no secret."""


class PacemakerError(StormkeeperError):
    """A Pacemaker cannot be used."""


class PacemakerUnavailableError(PacemakerError):
    """No Pacemaker answered before the deadline."""


class PacemakerClosedError(PacemakerUnavailableError):
    """The client was closed here, before the answer."""


class NotAuthorizedError(PacemakerError):
    """The Pacemaker refused the request, or our authentication."""


class UntrustedServerError(NotAuthorizedError):
    """Client and Pacemaker reject each other's certificates, or only one speaks TLS."""


class RpcError(StormkeeperError):
    """A call of a Thrift service failed."""


class RpcUnavailableError(RpcError):
    """The service was not reached in time; the call was not sent, except in a subclass."""


class RpcOutcomeUnknownError(RpcUnavailableError):
    """The call was sent and not answered; check the effect before a retry."""


class LeaderNotFoundError(RpcUnavailableError):
    """No Nimbus of ``nimbus.seeds`` named a leader before the deadline.

    `is_electing`: a Nimbus answered, so there may soon be a leader.
    """

    def __init__(self, message: str, *, is_electing: bool = False) -> None:
        super().__init__(message)
        self.is_electing = is_electing


class RpcRefusedError(RpcError):
    """The service answered with an error, of Thrift's `kind`.

    0: the caller's mistake, 1: no such method, 5: no result, 6: an internal error, 7: unreadable
    arguments.
    """

    def __init__(self, message: str, kind: int, reason: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.reason = reason or message


class RefusedError(StormkeeperError):
    """Nimbus refuses a request."""


class NotAliveError(RefusedError):
    """No topology has that name or id."""


class LogsError(StormkeeperError):
    """A machine does not serve workers' logs."""


class CallRefusedError(RpcError):
    """A server cannot carry out a call now; the caller gets the message."""


class CallerError(CallRefusedError):
    """Every server would refuse the call."""


class SimulationError(StormkeeperError):
    """A simulation may not begin, or cannot continue."""


class StateError(StormkeeperError):
    """An operation on the cluster state failed."""


class StateUnavailableError(StateError):
    """The store was not reached in time; nothing was done, except in a subclass."""


class OutcomeUnknownError(StateUnavailableError):
    """A lost connection or the deadline interrupted a write; read again."""


class StateClosedError(StateError):
    """The session with the store was closed here."""


class InvalidPathError(StateError):
    """No node of the cluster state can have that path."""


class RecordTooLargeError(StateError):
    """A record is larger than a node may be; nothing was written."""


class NoNodeError(StateError):
    """The path does not exist."""


class NodeExistsError(StateError):
    """The path exists."""


class BadVersionError(StateError):
    """The node has another version than expected."""


class NotEmptyError(StateError):
    """The node has children."""


class AccessDeniedError(StateError):
    """A node's ACL denies access; the message names our identity."""


class ChangedMeanwhileError(StateError):
    """What a write was decided from has changed: nothing was written, so decide again."""


class UnsupportedByServerError(StateError):
    """The server of the cluster's state is too old for a request."""


class StateAuthenticationError(StateError):
    """The store refused our authentication."""


class NotLeaderError(StateError):
    """The caller does not lead, or no longer; nothing was written."""


class NoLeaderError(StateError):
    """No Nimbus leads."""


class TransactionError(StateError):
    """An operation of a transaction was refused, so none was done."""

    def __init__(self, index: int, reason: StateError) -> None:
        super().__init__(index, reason)
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"operation {self.index} was refused, and so nothing was done: {self.reason}"


class TopologyError(StormkeeperError):
    """A topology is malformed: the author's mistake."""


class UnknownComponentError(StormkeeperError):
    """A topology has no such component; the message lists the components."""


class StatusError(StormkeeperError):
    """A command does not fit a topology's status; nothing was changed."""


class CheckpointsError(StormkeeperError):
    """A topology cannot continue from checkpoints, or these cannot be removed."""


class WorkerError(StormkeeperError):
    """A worker could not start or continue."""

    def __init__(self, message: str = "", component: str | None = None) -> None:
        super().__init__(message)
        self.component = component


class EnvironmentBuildError(StormkeeperError):
    """A topology's requirements could not be installed."""


class ClaimedError(WorkerError):
    """A later worker has claimed a query of this worker."""


class OccupiedError(ClaimedError):
    """Another topology has claimed the checkpoint of a query."""


class SupervisorError(StormkeeperError):
    """A supervisor cannot use a folder, or start or end a worker."""


class ChildError(StormkeeperError):
    """A child process could not start, was not ready in time, or ended early."""


class CodeError(StormkeeperError):
    """A blob could not be stored, found, copied or deleted."""


class InvalidBlobKeyError(CodeError):
    """No blob can have that key."""


class BlobNotFoundError(CodeError):
    """No blob has that key."""


class BlobExistsError(CodeError):
    """A blob has that key, or a newer version than expected."""


class BlobInUseError(CodeError):
    """A topology needs the blob."""


class BlobStorageError(CodeError):
    """The disk failed to store or return a blob; partial data are removed."""


class TransferEndedError(CodeError):
    """An upload or download was finished, cancelled, or idle for too long."""


class PeerError(CodeError):
    """Another Nimbus did not send a blob correctly; others may."""


class PeerUnavailableError(PeerError):
    """Another Nimbus was not reached, or did not answer in time."""


class LocalClusterError(StormkeeperError):
    """A process of a local cluster did not start or ended early."""


class ListenError(StormkeeperError):
    """A daemon cannot listen on the configured address."""


class EngineError(StormkeeperError):
    """Spark did not start, or a query on Spark failed."""


class TableError(StormkeeperError):
    """A table of the heartbeat pipeline cannot be read or written."""
