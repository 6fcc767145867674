"""The differences of two snapshots, found by comparing all nodes."""

from stormkeeper.state.subtrees import Difference, Snapshot, change_order


def differences(before: Snapshot, after: Snapshot) -> list[Difference]:
    """In the order that listeners get: removals first, the deepest first, then by zxid."""
    changes = []
    for root, nodes in after.trees.items():
        old = before.trees.get(root, {})
        found = {path: (old.get(path), nodes.get(path)) for path in old.keys() | nodes.keys()}
        changes += [
            Difference(path, *pair) for path, pair in found.items() if pair[0] is not pair[1]
        ]
    return sorted(changes, key=change_order)
