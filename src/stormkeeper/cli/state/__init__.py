"""``storm state``: what the cluster keeps in ZooKeeper, decoded; nothing is ever written."""

import functools
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stormkeeper.cli.groups import Group
from stormkeeper.cli.heartbeats import normal
from stormkeeper.cli.options import (
    ConfigFault,
    Fault,
    UnansweredFault,
    conf_options,
    examples,
    exit_with,
    faults,
    load_conf,
    until_interrupted,
    watch_option,
)

if TYPE_CHECKING:
    from stormkeeper.conf import Conf
    from stormkeeper.errors import NoNodeError
    from stormkeeper.state.storage import ClusterState
    from stormkeeper.state.survey import Pacemaker

T = TypeVar("T")

#: Exit code of `check` where something was found.
_FOUND = 1

#: How `printable` writes what it does not print; the paths of nodes have no control characters.
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}")

#: How soon a root that is not there is looked for again, in seconds.
_ROOT_SECS = 2.0

#: Tries of a Pacemaker after the first: a person waits, and can ask again.
_RETRIES = 2


def _checked(_: click.Context, __: click.Parameter, path: str) -> str:
    from stormkeeper import paths
    from stormkeeper.errors import InvalidPathError

    try:
        return paths.check(normal(path))
    except InvalidPathError as error:
        raise click.BadParameter(str(error)) from error


@click.group(
    cls=Group,
    epilog=examples(
        "storm state tree -c 'storm.zookeeper.servers=[localhost]' -c storm.zookeeper.port=2181",
        "storm state get /assignments/word-count-1-1700000000",
        "storm state watch /supervisors",
        "storm state check",
    ),
)
@conf_options
def state() -> None:
    r"""Look at the cluster's state: Storm's nodes in ZooKeeper, of 2.x, of 3.x or ours.

    It asks the servers of storm.zookeeper.servers and storm.zookeeper.port, and writes nothing.
    Every PATH is below storm.zookeeper.root; the first slash is optional. A name that was printed
    with an escape in it (\u202e) may be given back as it is. For heartbeats in Pacemakers use
    `storm heartbeats`.
    """


@state.command(
    epilog=examples(
        "storm state tree", "storm state tree /errors", "storm state tree /storms --json"
    )
)
@click.argument("path", default="/", callback=_checked)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@conf_options
def tree(path: str, as_json: bool) -> None:
    """Show all nodes at and below PATH: what each holds, its bytes, whether it is ephemeral.

    An ephemeral node is removed when the session of its maker ends. An unreadable node does not
    hold what Storm keeps at its path; `get` says why.

    Exit code 1: nothing is at PATH. 2: wrong usage or configuration. 3: ZooKeeper did not answer,
    or refused.
    """
    conf = load_conf()
    with looking(conf) as store:
        from stormkeeper.state import survey

        path = _meant(store, path)
        found = survey.read(store, path)
    if found.notes and not found.nodes:
        raise UnansweredFault("; ".join(found.notes))
    if not found.nodes:
        raise Fault(f"nothing at {path}{_below_root(conf, path)}")
    _tell_notes(found.notes)
    from stormkeeper.cli.state import showing

    if as_json:
        for place, node in found.nodes.items():
            click.echo(json.dumps(showing.summary(place, node)))
    else:
        for line in showing.tree(found.nodes, path):
            click.echo(line)


@state.command(
    "list",
    epilog=examples(
        "storm state list /",
        "storm state list /storms",
        "storm state list /errors/word-count-1-1700000000 --json",
        "storm state list /supervisors --watch",
    ),
)
@click.argument("path", callback=_checked)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@watch_option
@conf_options
def list_below(path: str, as_json: bool, is_watched: bool) -> None:
    """List the names of the nodes directly below PATH, one a line.

    --watch prints a line with the time for each name that comes (+) or goes (-); with --json it
    prints the whole list after each change. stderr says when ZooKeeper cannot be reached, and when
    it can again. PATH need not exist yet, nor the root. Ctrl-C ends it.

    Exit code 1: nothing is at PATH. 2: wrong usage or configuration. 3: ZooKeeper did not answer,
    or refused (with --watch: at the beginning).
    """
    conf = load_conf()
    if is_watched:
        from stormkeeper.cli.state import following

        wait = functools.partial(_wait_for_root, waited=[])
        with until_interrupted(), looking(conf, wait) as store:
            following.run_list(store, _meant(store, path), as_json=as_json)
        return
    with looking(conf) as store:
        path = _meant(store, path)
        names = _found(conf, path, store.children_many)
    from stormkeeper.names import printable

    if as_json:
        click.echo(json.dumps(names))
    else:
        for name in names:
            click.echo(printable(name))
        if not names:
            _tell_notes([f"{path} has no children; see `storm state get`"])


@state.command(
    epilog=examples(
        "storm state get /storms/word-count-1-1700000000",
        "storm state get /storms/word-count-1-1700000000 --json",
        "storm state get /credentials/word-count-1-1700000000 --show-secrets",
    )
)
@click.argument("path", callback=_checked)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--show-secrets", is_flag=True, help="Print the values of credentials, too.")
@conf_options
def get(path: str, as_json: bool, show_secrets: bool) -> None:
    """Print what the node at PATH holds, decoded.

    If a value cannot be decoded, it is printed as text or in hexadecimal, and stderr says why. Of a
    very large one only the beginning is printed; --json prints all. Of credentials only the names
    are printed, with … for each value; of the keys below /secretkeys nothing, ever.

    Exit code 1: nothing is at PATH. 2: wrong usage or configuration. 3: ZooKeeper did not answer,
    or refused.
    """
    conf = load_conf()
    with looking(conf) as store:
        path = _meant(store, path)
        node = _found(conf, path, store.read_many)
    from stormkeeper.cli.state import showing
    from stormkeeper.state.decoding import decode

    found = decode(path, node.data, show_secrets=show_secrets)
    if as_json:
        click.echo(json.dumps(showing.detail(path, node, found)))
        return
    if found.text:
        click.echo(found.text)
    note = found.note
    if found.kind == "directory" and note is None:
        note = f"a directory of {_nodes(node.stat.children)}; see `storm state list {path}`"
    _tell_notes([note] if note else [])


@state.command(
    epilog=examples(
        "storm state watch /supervisors",
        "storm state watch /assignments --recursive",
        "storm state watch /storms --json",
    )
)
@click.argument("path", callback=_checked)
@click.option(
    "--recursive",
    "-r",
    is_flag=True,
    help="Watch everything below PATH, too: two requests, and watches, for each node.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@conf_options
def watch(path: str, recursive: bool, as_json: bool) -> None:
    """Print a line for each change of the node at PATH: of its value, and of the names below it.

    A line has the time, then `created`, `deleted`, `changed` (its value) or `children` (with + and
    - before the names that came and went), then the path. Two changes are printed as one if they
    come faster than they can be read, or while ZooKeeper cannot be reached. stderr says when it
    cannot, and when it can again. PATH need not exist yet, nor the root. Ctrl-C ends it.

    Exit code 2: wrong usage or configuration. 3: at the beginning ZooKeeper did not answer, or
    refused.
    """
    from stormkeeper.cli.state import following

    conf = load_conf()
    waited: list[str] = []
    wait = functools.partial(_wait_for_root, waited=waited)
    with until_interrupted(), looking(conf, wait) as store:
        path = _meant(store, path)
        following.run(store, path, recursive=recursive, as_json=as_json, was_absent=bool(waited))


@state.command(epilog=examples("storm state check", "storm state check --json"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@conf_options
def check(as_json: bool) -> None:
    """Find nodes that should not be there: one finding a line, with kind, path and fault.

    Below all findings of a kind, indented, it says what to do. The kinds:
    assignment-without-topology; unreadable: a value that is not what Storm keeps at its path;
    ephemeral-without-session: a node that should be removed with its session and will not be;
    left-behind: what dead topologies left; older-epoch: a record that a leader wrote after a newer
    one.

    stderr names what may not be read, and each Pacemaker that does not answer or refuses. While
    topologies come and go, check twice: a topology is removed in several steps.

    Exit code 0: all is well. 1: something was found. 2: wrong usage or configuration. 3: nothing
    was found, but something, or everything, could not be read.
    """
    conf = load_conf()
    with _what_was_not_seen(), looking(conf) as store:
        from stormkeeper.state import checking, survey

        with _pacemakers(conf) as pacemakers:
            found = survey.read(store, pacemakers=pacemakers)
        if not found.nodes:
            raise Fault("; ".join(found.notes) or "nothing at /")
        findings = checking.check(found)
    if as_json:
        told: dict[str, Any] = {
            "findings": [
                {"kind": finding.kind, "path": finding.path, "message": finding.message}
                for finding in findings
            ],
            "advice": {
                kind: advice
                for kind, advice in checking.ADVICE.items()
                if any(finding.kind == kind for finding in findings)
            },
            "notes": found.notes,
        }
        click.echo(json.dumps(told))
    else:
        from stormkeeper.names import printable

        for kind, of_kind in groupby(findings, lambda finding: finding.kind):
            for finding in of_kind:
                click.echo(printable(f"{kind} {finding.path}: {finding.message}"))
            click.echo(click.wrap_text(checking.ADVICE[kind], 100, "  ", "  "))
        _tell_notes(found.notes)
        nodes = _nodes(len(found.nodes))
        if not findings and found.notes:
            _tell_notes([f"nothing found in {nodes}, but not all could be looked at"])
        elif not findings:
            _tell_notes([f"{nodes}, all well"])
    exit_with(_FOUND if findings else UnansweredFault.exit_code if found.notes else 0)


@contextmanager
def _what_was_not_seen() -> Iterator[None]:
    """End `check` with exit code 3 if nothing could be read."""
    try:
        yield
    except ConfigFault:
        raise
    except Fault as fault:
        raise UnansweredFault(fault.message) from fault


@contextmanager
def _pacemakers(conf: "Conf") -> Iterator[Mapping[str, "Pacemaker"]]:
    """Yield a client of each Pacemaker by its address; none if heartbeats are in ZooKeeper."""
    from stormkeeper.pacemaker.client import pool
    from stormkeeper.state.factory import in_pacemaker

    if not in_pacemaker(conf):
        yield {}
        return

    with pool.connect(conf, name="storm-state", retries=_RETRIES) as pacemakers:
        yield {str(address): client for address, client in pacemakers.clients.items()}


def _wait_for_root(error: "NoNodeError", waited: list[str]) -> None:
    """Wait a moment for a missing root; say so the first time."""
    if not waited:
        _tell_notes([f"{error}; waiting for it"])
    waited.append(str(error))
    time.sleep(_ROOT_SECS)


@contextmanager
def _warnings_of(name: str) -> Iterator[None]:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("storm: warning: %(message)s"))
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def _asked() -> Iterator[None]:
    """End the command with exit code 3 if ZooKeeper did not answer, or refused."""
    from stormkeeper.errors import (
        AccessDeniedError,
        StateAuthenticationError,
        StateUnavailableError,
    )

    with faults():
        try:
            yield
        except (StateUnavailableError, StateAuthenticationError, AccessDeniedError) as error:
            raise UnansweredFault(str(error)) from error


@contextmanager
def looking(
    conf: "Conf | None" = None, wait: "Callable[[NoNodeError], None] | None" = None
) -> Iterator["ClusterState"]:
    """Yield the store. While it has no root, call `wait` and try again."""
    conf = conf or load_conf()
    from stormkeeper.errors import NoNodeError
    from stormkeeper.state import factory

    # What the clients have to say is in the errors, or told by the command, but why it waits.
    logging.getLogger("stormkeeper").addHandler(logging.NullHandler())
    store = None
    with _asked(), _warnings_of("stormkeeper.state.zookeeper.overrides"):
        while store is None:
            try:
                store = factory.connect(conf, read_only=True)
            except NoNodeError as error:
                if wait is None:
                    raise
                wait(error)
    with _asked():
        try:
            # Others may ask a server that is behind.
            store.sync_path("/")
            yield store
        finally:
            store.close()


def _meant(store: "ClusterState", path: str) -> str:
    """Return the path that is meant. If nothing is there, it may be a path as we printed it."""
    from stormkeeper import paths
    from stormkeeper.errors import InvalidPathError

    plain = _ESCAPE.sub(lambda escape: chr(int(escape[0][2:], 16)), path)
    try:
        paths.check(plain)
    except InvalidPathError:
        return path
    if plain == path or store.read_many([path]) != [None]:
        return path
    return plain


def _found(
    conf: "Conf",
    path: str,
    ask: Callable[[list[str]], list[T | None]],
) -> T:
    (found,) = ask([path])
    if found is not None:
        return found
    from stormkeeper import paths
    from stormkeeper.state.factory import in_pacemaker

    if not in_pacemaker(conf) or not paths.is_at_or_below(path, paths.WORKERBEATS):
        raise Fault(f"nothing at {path}{_below_root(conf, path)}")
    raise Fault(
        f"nothing at {path}: heartbeats are in Pacemakers; see `storm heartbeats list {path}`"
    )


def _below_root(conf: "Conf", path: str) -> str:
    """Return a hint for a path that has the root in it."""
    from stormkeeper import paths

    root = normal(conf["storm.zookeeper.root"])
    if root == "/" or not paths.is_at_or_below(path, root):
        return ""
    meant = path.removeprefix(root) or "/"
    return f": paths are below storm.zookeeper.root, which is {root}; try {meant}"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _tell_notes(notes: list[str]) -> None:
    if not notes:
        return
    from stormkeeper.names import printable

    for note in notes:
        click.echo(f"storm: {printable(note)}", err=True)
