"""Nodes as lines for people and as objects for JSON."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stormkeeper import paths
from stormkeeper.names import printable
from stormkeeper.state.decoding import Decoded, outline
from stormkeeper.state.storage import NodeData

#: Names longer than this push what follows them out of its column.
_NAME_WIDTH: Final = 60

_INDENT: Final = "  "


def tree(nodes: Mapping[str, NodeData], top: str) -> Iterator[str]:
    """Yield a heading, and a line for each node: its name, indented, what it holds, its bytes.

    At the end of a line ``ephemeral`` and ``unreadable``, where a node is that.

    Parameters
    ----------
    nodes
        Each before those below it.
    top
        The node that all others are below; its line has the whole path.
    """
    rows = [("NODE", "HOLDS", "BYTES", "")]
    for path, node in nodes.items():
        name = path if path == top else _INDENT * _depth(path, top) + path.rpartition("/")[2]
        found = outline(path, node.data)
        marks = ["ephemeral"] * _is_ephemeral(node) + ["unreadable"] * bool(found.unreadable)
        rows.append((printable(name), found.kind, str(len(node.data)), ", ".join(marks)))
    name_width = min(_NAME_WIDTH, max(len(row[0]) for row in rows))
    kind_width = max(len(row[1]) for row in rows)
    size_width = max(len(row[2]) for row in rows)
    for name, kind, size, marked in rows:
        line = f"{name:<{name_width}}  {kind:<{kind_width}}  {size:>{size_width}}"
        yield f"{line}  {marked}" if marked else line


def summary(path: str, node: NodeData) -> dict[str, Any]:
    """Return what `tree` tells of a node, and its version and number of children."""
    found = outline(path, node.data)
    return {
        "path": path,
        "kind": found.kind,
        "bytes": len(node.data),
        "version": node.stat.version,
        "ephemeral": _is_ephemeral(node),
        "children": node.stat.children,
        "unreadable": found.unreadable,
    }


def detail(path: str, node: NodeData, found: Decoded) -> dict[str, Any]:
    """Return a node with its value, and which leader wrote it (None where it does not say)."""
    return {
        "path": path,
        "kind": found.kind,
        "value": found.value,
        "version": node.stat.version,
        "ephemeral": _is_ephemeral(node),
        "epoch": found.epoch,
        "note": found.note,
    }


def _is_ephemeral(node: NodeData) -> bool:
    return node.stat.owner != 0


def _depth(path: str, top: str) -> int:
    depth = 0
    while path != top:
        path, depth = paths.parent(path), depth + 1
    return depth
