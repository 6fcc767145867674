"""Transactions as kazoo sends them, and what ZooKeeper answers.

Paths here are whole paths, with ``storm.zookeeper.root``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, assert_never

from kazoo.exceptions import KazooException, RolledBackError, RuntimeInconsistency
from kazoo.protocol import serialization as wire
from kazoo.security import OPEN_ACL_UNSAFE

from stormkeeper.errors import StateError, TransactionError
from stormkeeper.state.transactions import Check, Create, Delete, Operation, Result, SetData
from stormkeeper.state.zookeeper.connection import Connection

#: Returns the access control list of a node to be made; None where it is open to everyone.
AccessLists = Callable[[str], list[Any] | None]

#: The flags of a node to be made, in ZooKeeper's protocol.
_EPHEMERAL: Final = 1
_SEQUENTIAL: Final = 2

#: What is asked of a node by an operation, in words.
_DOING = {Check: "check", Create: "create", SetData: "write", Delete: "delete"}


def commit(
    connection: Connection, operations: Sequence[Operation], acl: AccessLists, deadline: float
) -> list[Result]:
    """Apply operations, all or none; errors as `Transaction.commit`.

    Parameters
    ----------
    connection
        Through which.
    operations
        At least one.
    acl
        Who may use the nodes that are made.
    deadline
        When to give up, on the monotonic clock.
    """
    size = sum(_size(operation) for operation in operations)
    request = wire.Transaction([_request(operation, acl) for operation in operations])
    answers = connection.call(
        "commit a transaction that begins at", operations[0].path, request, deadline, size=size
    )
    for index, (operation, answer) in enumerate(zip(operations, answers, strict=True)):
        # The operations before the one that was refused have the first of these, those behind it
        # the second.
        if isinstance(answer, KazooException) and not isinstance(
            answer, RolledBackError | RuntimeInconsistency
        ):
            reason = connection.translated(answer, _DOING[type(operation)], operation.path)
            raise TransactionError(index, reason) from answer
    if any(isinstance(answer, KazooException) for answer in answers):
        raise StateError(
            f"the transaction that begins at {operations[0].path} was refused by ZooKeeper, which"
            " does not say why"
        )
    return [
        _result(operation, answer) for operation, answer in zip(operations, answers, strict=True)
    ]


def create_request(operation: Create, acl: AccessLists) -> Any:
    """Return what makes a node, alone or in a transaction."""
    flags = operation.ephemeral * _EPHEMERAL | operation.sequential * _SEQUENTIAL
    return wire.Create(
        operation.path, operation.data, acl(operation.path) or OPEN_ACL_UNSAFE, flags
    )


def _request(operation: Operation, acl: AccessLists) -> Any:
    match operation:
        case Check(path, version):
            return wire.CheckVersion(path, version)
        case Create():
            return create_request(operation, acl)
        case SetData(path, data, version):
            return wire.SetData(path, data, version)
        case Delete(path, version):
            return wire.Delete(path, version)
        case _:
            assert_never(operation)


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
    """Return about how many bytes an operation takes."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data)
