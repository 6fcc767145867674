"""``storm state``: show and check the cluster's state in ZooKeeper, decoded. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stormkeeper import paths
from stormkeeper.cli.connections import PACEMAKER_RETRIES, open_state
from stormkeeper.cli.options import (
    ConfigFault,
    Fault,
    UnansweredFault,
    as_path,
    command,
    command_group,
    exit_with,
    load_conf,
    normal_path,
    watch_option,
)
from stormkeeper.cli.output import aligned, note, print_json
from stormkeeper.daemon.logs import counted
from stormkeeper.names import printable

if TYPE_CHECKING:
    from stormkeeper.conf import Conf
    from stormkeeper.state.node_values import Decoded
    from stormkeeper.state.storage import NodeData
    from stormkeeper.state.survey import Pacemaker

T = TypeVar("T")

_INDENT: Final = "  "


@command_group(
    "storm state tree -c 'storm.zookeeper.servers=[localhost]' -c storm.zookeeper.port=2181",
    "storm state get /assignments/word-count-1-1700000000",
    "storm state watch /supervisors",
    "storm state check",
)
def state() -> None:
    """Show the cluster's state: the znodes of Storm 2.x, Storm 3.x or Stormkeeper.

    The commands read storm.zookeeper.servers at storm.zookeeper.port, and write nothing. Every PATH
    is below storm.zookeeper.root; the first slash is optional. For heartbeats in Pacemakers use
    `storm heartbeats`.
    """


@command(
    "storm state tree", "storm state tree /errors", "storm state tree /storms --json", group=state
)
@click.argument("path", default="/", callback=as_path)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def tree(path: str, as_json: bool) -> None:
    """Show all nodes at and below PATH: content type, size in bytes, and ephemeral nodes.

    An ephemeral node ends with the session that created it. An unreadable node does not hold what
    Storm keeps at its path; `get` says why.

    Exit code 1: nothing is at PATH. 2: wrong usage or configuration. 3: ZooKeeper did not answer,
    or refused.
    """
    conf = load_conf()
    with open_state(conf) as store:
        from stormkeeper.state import survey

        found = survey.read(store, path)
    if found.notes and not found.nodes:
        raise UnansweredFault("; ".join(found.notes))
    if not found.nodes:
        raise Fault(f"nothing at {path}{_root_hint(conf, path)}")
    for each in found.notes:
        note(each)
    if as_json:
        for place, node in found.nodes.items():
            print_json(node_summary(place, node))
    else:
        for line in tree_lines(found.nodes, path):
            click.echo(line)


@command(
    "storm state list /",
    "storm state list /storms",
    "storm state list /errors/word-count-1-1700000000 --json",
    "storm state list /supervisors --watch",
    name="list",
    group=state,
)
@click.argument("path", callback=as_path)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@watch_option
def list_below(path: str, as_json: bool, is_watched: bool) -> None:
    """List the names of the nodes directly below PATH, one a line.

    --watch prints a line with the time for each name that comes (+) or goes (-), with --json the
    whole list, until Ctrl-C. stderr says when the connection to ZooKeeper is lost, and back. PATH
    need not exist yet.

    Exit code 1: nothing is at PATH. 2: wrong usage or configuration. 3: ZooKeeper did not answer,
    or refused (with --watch: at the beginning).
    """
    conf = load_conf()
    if is_watched:
        from stormkeeper.cli import watches

        with suppress(KeyboardInterrupt), open_state(conf) as store:
            watches.print_names(store, path, as_json=as_json)
        return
    with open_state(conf) as store:
        names = _found(conf, path, store.children_many)
    if as_json:
        print_json(names)
    else:
        for name in names:
            click.echo(printable(name))
        if not names:
            note(f"{path} has no children; see `storm state get`")


@command(
    "storm state get /storms/word-count-1-1700000000",
    "storm state get /storms/word-count-1-1700000000 --json",
    "storm state get /credentials/word-count-1-1700000000 --show-secrets",
    group=state,
)
@click.argument("path", callback=as_path)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--show-secrets", is_flag=True, help="Print the values of credentials, too.")
def get(path: str, as_json: bool, show_secrets: bool) -> None:
    """Print the value of the node at PATH, decoded.

    A value that cannot be decoded is printed as text or in hexadecimal, and stderr says why. --json
    prints very large values whole. Credentials are printed as names with …, and the keys below
    /secretkeys never.

    Exit code 1: nothing is at PATH. 2: wrong usage or configuration. 3: ZooKeeper did not answer,
    or refused.
    """
    conf = load_conf()
    with open_state(conf) as store:
        node = _found(conf, path, store.read_many)
    from stormkeeper.state.node_values import decode

    found = decode(path, node.data, show_secrets=show_secrets)
    if as_json:
        print_json(node_detail(path, node, found))
        return
    if found.text:
        click.echo(found.text)
    if found.note:
        note(found.note)
    elif found.kind == "directory":
        children = counted(node.stat.children, "node")
        note(f"a directory of {children}; see `storm state list {path}`")


@command(
    "storm state watch /supervisors",
    "storm state watch /assignments --recursive",
    "storm state watch /storms --json",
    group=state,
)
@click.argument("path", callback=as_path)
@click.option(
    "--recursive",
    "-r",
    is_flag=True,
    help="Watch everything below PATH, too: two requests and watches for each node.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def watch(path: str, recursive: bool, as_json: bool) -> None:
    """Print a line for each change of the node at PATH: its value, and the names below it.

    A line has the time, then `created`, `deleted`, `changed` (the value) or `children` (with + and
    - before the names that came and went), then the path. Fast changes, and those while the
    connection is lost, are printed as one. stderr says when the connection to ZooKeeper is lost,
    and back. PATH need not exist yet. Ctrl-C ends the command.

    Exit code 2: wrong usage or configuration. 3: at the beginning ZooKeeper did not answer, or
    refused.
    """
    from stormkeeper.cli import watches

    conf = load_conf()
    with suppress(KeyboardInterrupt), open_state(conf) as store:
        watches.print_changes(store, path, recursive=recursive, as_json=as_json)


@command("storm state check", "storm state check --json", group=state)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(as_json: bool) -> None:
    """Find nodes that should not be there: one finding a line, with kind, path and fault.

    Below the findings of a kind, an indented line says what to do. The kinds:
    assignment-without-topology; unreadable: a value that is not what Storm keeps at its path;
    ephemeral-without-session: a node that should go with its session and will stay; left-behind:
    remains of dead topologies; older-epoch: a record that an earlier leader wrote after a later
    one.

    stderr names nodes and Pacemakers that cannot be read. While topologies come and go, check
    twice: Nimbus removes a topology in several steps.

    Exit code 0: all is well. 1: there are findings. 2: wrong usage or configuration. 3: no
    findings, but something could not be read.
    """
    conf = load_conf()
    with _unread_is_unanswered(), open_state(conf) as store:
        from stormkeeper.state import survey

        with _pacemakers(conf) as pacemakers:
            found = survey.read(store, pacemakers=pacemakers)
        if not found.nodes:
            raise Fault("; ".join(found.notes) or "nothing at /")
        findings = survey.check(found)
    if as_json:
        values: dict[str, Any] = {
            "findings": [finding._asdict() for finding in findings],
            "advice": {
                kind: advice
                for kind, advice in survey.ADVICE.items()
                if any(finding.kind == kind for finding in findings)
            },
            "notes": found.notes,
        }
        print_json(values)
    else:
        for kind, of_kind in groupby(findings, lambda finding: finding.kind):
            for finding in of_kind:
                click.echo(printable(f"{kind} {finding.path}: {finding.message}"))
            click.echo(click.wrap_text(survey.ADVICE[kind], 100, "  ", "  "))
        for each in found.notes:
            note(each)
        nodes = counted(len(found.nodes), "node")
        if not findings and found.notes:
            note(f"no findings in {nodes}, but not all could be read")
        elif not findings:
            note(f"{nodes}, all well")
    exit_with(1 if findings else UnansweredFault.exit_code if found.notes else 0)


def tree_lines(nodes: Mapping[str, NodeData], top: str) -> Iterator[str]:
    """Yield a heading, the whole path of `top`, and the indented names of the nodes below."""
    from stormkeeper.state.node_values import outline

    rows = [("NODE", "HOLDS", "BYTES", "")]
    for path, node in nodes.items():
        name = path if path == top else _INDENT * _depth(path, top) + path.rpartition("/")[2]
        found = outline(path, node.data)
        marks = ["ephemeral"] * _is_ephemeral(node) + ["unreadable"] * bool(found.unreadable)
        rows.append((printable(name), found.kind, str(len(node.data)), ", ".join(marks)))
    yield from aligned(rows, right=[2])


def node_summary(path: str, node: NodeData) -> dict[str, Any]:
    """Return a node without the value, for `tree --json`."""
    from stormkeeper.state.node_values import outline

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


def node_detail(path: str, node: NodeData, found: Decoded) -> dict[str, Any]:
    """Return a node with the value, for `get --json`; a missing epoch is None."""
    return {
        "path": path,
        "kind": found.kind,
        "value": found.value,
        "version": node.stat.version,
        "ephemeral": _is_ephemeral(node),
        "epoch": found.epoch,
        "note": found.note,
    }


@contextmanager
def _unread_is_unanswered() -> Iterator[None]:
    """End `check` with exit code 3 if nothing could be read."""
    try:
        yield
    except ConfigFault:
        raise
    except Fault as fault:
        raise UnansweredFault(fault.message) from fault


@contextmanager
def _pacemakers(conf: Conf) -> Iterator[Mapping[str, Pacemaker]]:
    """Yield a client of each Pacemaker by address; none if heartbeats are in ZooKeeper."""
    from stormkeeper.pacemaker.client import pool
    from stormkeeper.state.backends import in_pacemaker

    if not in_pacemaker(conf):
        yield {}
        return

    with pool.connect(conf, name="storm-state", retries=PACEMAKER_RETRIES) as pacemakers:
        yield {str(address): client for address, client in pacemakers.clients.items()}


def _found(conf: Conf, path: str, read: Callable[[list[str]], list[T | None]]) -> T:
    (found,) = read([path])
    if found is not None:
        return found
    from stormkeeper.state.backends import in_pacemaker

    if not in_pacemaker(conf) or not paths.is_at_or_below(path, paths.WORKERBEATS):
        raise Fault(f"nothing at {path}{_root_hint(conf, path)}")
    raise Fault(
        f"nothing at {path}: heartbeats are in Pacemakers; see `storm heartbeats list {path}`"
    )


def _root_hint(conf: Conf, path: str) -> str:
    """Return a hint for a path that includes the root."""
    root = normal_path(conf["storm.zookeeper.root"])
    if root == "/" or not paths.is_at_or_below(path, root):
        return ""
    below = path.removeprefix(root) or "/"
    return f": paths are below storm.zookeeper.root, which is {root}; try {below}"


def _is_ephemeral(node: NodeData) -> bool:
    return node.stat.owner != 0


def _depth(path: str, top: str) -> int:
    return path.rstrip("/").count("/") - top.rstrip("/").count("/")
