"""Transactions on a tree of nodes in memory: every operation, or none."""

from collections.abc import Sequence

from stormkeeper.errors import BadVersionError, StateError, TransactionError
from stormkeeper.state.memory.tree import NOBODY, Event, MemoryTree
from stormkeeper.state.transactions import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Operation,
    Result,
    SetData,
)


def apply(
    tree: MemoryTree, operations: Sequence[Operation], owner: int
) -> tuple[list[Result], list[Event]]:
    """Apply operations in order, as one change of the tree.

    Parameters
    ----------
    tree
        What they are applied to; as it was if this raises.
    operations
        Each sees what those before it did.
    owner
        Of the ephemeral nodes among them.

    Returns
    -------
    results
        For each operation: the path that was made, the new version, or None.
    events
        What happened.

    Raises
    ------
    TransactionError
        An operation was refused; which one, and why.
    """
    results: list[Result] = []
    events: list[Event] = []
    with tree.all_or_nothing():
        for index, operation in enumerate(operations):
            try:
                result, happened = _apply(tree, operation, owner)
            except StateError as error:
                raise TransactionError(index, error) from error
            results.append(result)
            events += happened
    return results, events


def _apply(tree: MemoryTree, operation: Operation, owner: int) -> tuple[Result, list[Event]]:
    match operation:
        case Check(path, version):
            _expect(tree, path, version)
            return None, []
        case Create(path, data, ephemeral, sequential):
            made = tree.numbered(path) if sequential else path
            return made, tree.create(made, data, owner if ephemeral else NOBODY)
        case SetData(path, data, version):
            _expect(tree, path, version)
            events = tree.set_value(path, data)
            return tree.get(path).version, events
        case Delete(path, version):
            _expect(tree, path, version)
            return None, tree.remove(path)


def _expect(tree: MemoryTree, path: str, version: int) -> None:
    found = tree.get(path).version
    if version not in (ANY_VERSION, found):
        raise BadVersionError(f"{path} has version {found}, and not {version}")
