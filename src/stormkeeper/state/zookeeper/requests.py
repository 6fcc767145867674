"""Requests to ZooKeeper, through kazoo's own calls, and the translation of answers and errors.

Paths are whole paths.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, assert_never

from kazoo import exceptions as kazoo_errors
from kazoo.exceptions import KazooException, RolledBackError, RuntimeInconsistency
from kazoo.protocol import serialization as wire
from kazoo.security import OPEN_ACL_UNSAFE

from stormkeeper.errors import (
    AccessDeniedError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
    StateAuthenticationError,
    StateError,
    TransactionError,
    UnsupportedByServerError,
)
from stormkeeper.state.storage import Check, Create, Delete, Operation, Result, SetData
from stormkeeper.state.zookeeper.kazoo_client import (
    SentRequest,
    UnwritableRequestError,
    WatchTree,
)

#: Gives the ACL of a new node; None: open to all.
AccessLists = Callable[[Create], list[Any] | None]

#: Takes a watch's event, on kazoo's thread; must not block.
Watcher = Callable[[Any], None]

_EPHEMERAL: Final = 1
_SEQUENTIAL: Final = 2

_DOING: Final = {Check: "check", Create: "create", SetData: "write", Delete: "delete"}


class Request(NamedTuple):
    """A request to a server."""

    #: For messages: "read".
    what: str
    path: str
    #: Hands the request to kazoo; does not wait.
    send: Callable[[Any], SentRequest]
    #: Bytes sent; too many can cost the connection.
    size: int = 0


def get(path: str, watcher: Watcher | None = None) -> Request:
    """Request value and stat; no watch on an absent node."""
    return Request("read", path, lambda client: client.get_async(path, watcher))


def exists(path: str, watcher: Watcher | None = None) -> Request:
    """Request the stat, None if absent; leaves a watch."""
    return Request("look at", path, lambda client: client.exists_async(path, watcher))


def watch_tree(path: str) -> Request:
    """Request a watch that stays, at a node and everything below."""

    def send(client: Any) -> SentRequest:
        call: SentRequest = client.handler.async_result()
        client._call(WatchTree(path), call)
        return call

    return Request("watch", path, send)


def children(path: str, watcher: Watcher | None = None) -> Request:
    return Request("list", path, lambda client: client.get_children_async(path, watcher))


def set_data(path: str, data: bytes) -> Request:
    return Request("write", path, lambda client: client.set_async(path, data), len(data))


def delete(path: str) -> Request:
    return Request("delete", path, lambda client: client.delete_async(path))


def sync(path: str) -> Request:
    """Request that the server catch up with the ensemble's leader.

    kazoo queues its own call, which cannot be withdrawn, so the request counts as sent.
    """

    def send(client: Any) -> SentRequest:
        call: SentRequest = client.sync_async(path)
        call.claim()
        return call

    return Request("sync", path, send)


def transaction(operations: Sequence[Operation], acl: AccessLists) -> Request:
    def send(client: Any) -> SentRequest:
        transaction = client.transaction()
        # kazoo's own calls would check every path and value again.
        transaction.operations = [_in_bytes(operation, acl) for operation in operations]
        call: SentRequest = transaction.commit_async()
        return call

    return Request(
        "commit a transaction that begins at", operations[0].path, send, sum(map(_size, operations))
    )


def _in_bytes(operation: Operation, acl: AccessLists) -> Any:
    match operation:
        case Check(path, version):
            return wire.CheckVersion(path, version)
        case Create(path, data, ephemeral, sequential):
            flags = ephemeral * _EPHEMERAL | sequential * _SEQUENTIAL
            return wire.Create(path, data, acl(operation) or OPEN_ACL_UNSAFE, flags)
        case SetData(path, data, version):
            return wire.SetData(path, data, version)
        case Delete(path, version):
            return wire.Delete(path, version)
        case _:
            assert_never(operation)


def create(operation: Create, acl: AccessLists) -> Request:
    """Request one node, in a transaction of one operation.

    kazoo's ``create_async`` answers by its own call, which cannot be withdrawn.
    """
    request = transaction([operation], acl)
    return request._replace(what="create", size=len(operation.data))


def results(
    operations: Sequence[Operation],
    answers: Sequence[Any],
    translated: Callable[[Exception, str, str], StateError],
) -> list[Result]:
    """Return the result of each operation of a transaction.

    Raises `TransactionError` if an operation was refused, `StateError` if the server does not say
    which.
    """
    for index, (operation, answer) in enumerate(zip(operations, answers, strict=True)):
        # Operations before the refused one have the first, later operations the second.
        if isinstance(answer, KazooException) and not isinstance(
            answer, RolledBackError | RuntimeInconsistency
        ):
            reason = translated(answer, _DOING[type(operation)], operation.path)
            raise TransactionError(index, reason) from answer
    if any(isinstance(answer, KazooException) for answer in answers):
        raise StateError(
            f"the transaction that begins at {operations[0].path} was refused by ZooKeeper, which"
            " does not say why"
        )
    return [
        _result(operation, answer) for operation, answer in zip(operations, answers, strict=True)
    ]


def _result(operation: Operation, answer: Any) -> Result:
    match operation:
        case Create():
            return str(answer)
        case SetData():
            version: int = answer.version
            return version
        case _:
            return None


def _size(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data)


#: A server hangs up on a request above jute.maxbuffer, by default 1 MiB less one byte.
_LARGE_REQUEST = 1_000_000

#: A server answers MARSHALLINGERROR when a request fails midway, as at the end of its session.
_UNKNOWN_OUTCOME = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.MarshallingError,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
    kazoo_errors.ThrottledOpError,
)

#: kazoo's error, ours, and the reason.
_REFUSALS: tuple[tuple[type[Exception], type[StateError], str], ...] = (
    (kazoo_errors.NoNodeError, NoNodeError, "there is no such node"),
    (kazoo_errors.NodeExistsError, NodeExistsError, "there is such a node already"),
    (kazoo_errors.BadVersionError, BadVersionError, "it has changed meanwhile"),
    (kazoo_errors.NotEmptyError, NotEmptyError, "it has children"),
    (
        kazoo_errors.UnimplementedError,
        UnsupportedByServerError,
        "the server is too old for this request",
    ),
    (
        kazoo_errors.NoChildrenForEphemeralsError,
        StateError,
        "its parent is ephemeral and can have no children",
    ),
    (
        UnwritableRequestError,
        StateError,
        "a value is not bytes, or is not what ZooKeeper's protocol has a place for",
    ),
)


class ConnectionLostError(OutcomeUnknownError):
    """The connection or the server failed during a call."""


def is_outcome_unknown(error: Exception) -> bool:
    return isinstance(error, _UNKNOWN_OUTCOME)


def translated(
    error: Exception,
    what: str,
    path: str,
    ensemble: str,
    *,
    identities: Sequence[str] = (),
    size: int = 0,
) -> StateError:
    """Return our error for kazoo's, about a request of `size` bytes."""
    if isinstance(error, kazoo_errors.MarshallingError):
        return ConnectionLostError(
            f"cannot {what} {path}: ZooKeeper at {ensemble} failed in the middle of it, as while a"
            " session ends (MarshallingError); it may have been done or not"
        )
    if is_outcome_unknown(error):
        return ConnectionLostError(
            f"cannot {what} {path}: the connection to ZooKeeper at {ensemble} was lost meanwhile"
            f" ({type(error).__name__}); it may have been done or not{_size_hint(size)}"
        )
    if not isinstance(error, kazoo_errors.KazooException):
        return OutcomeUnknownError(
            f"cannot {what} {path}: the answer of ZooKeeper at {ensemble} cannot be read"
            f" ({error!r})"
        )
    return _refusal(error, what, path, identities)


def _refusal(error: Exception, what: str, path: str, identities: Sequence[str]) -> StateError:
    doing = f"cannot {what} {path}"
    for refused, ours, reason in _REFUSALS:
        if isinstance(error, refused):
            return ours(f"{doing}: {reason}")
    if isinstance(error, kazoo_errors.NoAuthError):
        return AccessDeniedError(
            f"{doing}: the node's ACL does not allow it to this client"
            f" {identities_text(identities)}"
        )
    if isinstance(error, kazoo_errors.InvalidACLError):
        return StateAuthenticationError(
            f"{doing}: ZooKeeper does not take the ACL that the node would get from this client"
            f" {identities_text(identities)}: an ACL needs a user that the servers know, and"
            " storm.zookeeper.superACL a scheme that they have"
        )
    if isinstance(error, kazoo_errors.SessionClosedRequireSaslError | kazoo_errors.AuthFailedError):
        return StateAuthenticationError(
            f"{doing}: ZooKeeper serves only clients that authenticate in its way, and not this"
            f" client {identities_text(identities)}"
        )
    return StateError(f"{doing}: ZooKeeper refused ({type(error).__name__})")


def identities_text(identities: Sequence[str]) -> str:
    if not identities:
        return "(which does not authenticate: see storm.zookeeper.auth.scheme)"
    return f"({' and '.join(identities)})"


def _size_hint(size: int) -> str:
    if size < _LARGE_REQUEST:
        return ""
    return (
        f"; what was sent has {size} bytes, and a server hangs up on more than its jute.maxbuffer"
        " (1 MiB unless set otherwise)"
    )
