"""Everything that is in the cluster's state, read in one go, for tools to look at.

It is not a snapshot: what changes while it is read may be in it or not, and two nodes may be from
two moments.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from stormkeeper import paths
from stormkeeper.errors import AccessDeniedError, StormkeeperError
from stormkeeper.state.storage import NodeData, StateReader

T = TypeVar("T")


class Pacemaker(Protocol):
    """What is asked of one; `stormkeeper.pacemaker.client.single.PacemakerClient` has it."""

    def children(self, path: str) -> list[str]:
        """Return the names of the children of a path."""
        ...


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found at and below a node."""

    #: The nodes by their path, each before those below it, in the order of their names.
    nodes: dict[str, NodeData]
    #: Where the Pacemakers have heartbeats of topologies: ``/workerbeats/<id>``,
    #: ``/taskbeats/<id>``. Where they were not asked, or heartbeats are nodes, none.
    in_pacemakers: list[str] = field(default_factory=list)
    #: What could not be looked at, and why.
    notes: list[str] = field(default_factory=list)
    #: The nodes that may not be read; what is below them is not known either.
    denied: list[str] = field(default_factory=list)


def read(
    state: StateReader, top: str = "/", *, pacemakers: Mapping[str, Pacemaker] | None = None
) -> Survey:
    """Read all nodes at and below `top`.

    It costs two requests for each level of the tree, whatever is in it. A node that may not be read
    and a Pacemaker that does not answer, or refuses, become notes: one for each.

    Parameters
    ----------
    top
        Where to begin; where there is no node, the survey has none.
    pacemakers
        Who is asked, too, of which topologies they have heartbeats, by address. Each is asked for
        itself, and all at once: what the others say tells nothing of one that is silent.

    Raises
    ------
    StateError
        As `StateReader.read_many`, except that access was denied.
    """
    found: dict[str, NodeData] = {}
    denied: dict[str, AccessDeniedError] = {}
    level = [top]
    while level:
        values = _each(state.read_many, level, denied)
        there = {path: node for path, node in zip(level, values, strict=True) if node is not None}
        found |= there
        parents = [path for path, node in there.items() if node.stat.children]
        names = _each(state.children_many, parents, denied)
        level = [
            f"{path.removesuffix('/')}/{name}"
            for path, children in zip(parents, names, strict=True)
            for name in children or ()
        ]
    nodes = dict(sorted(found.items(), key=lambda entry: entry[0].split("/")))
    notes = [f"{path} was not looked at: {error}" for path, error in denied.items()]
    beating: set[str] = set()
    for address, answer in _beating(pacemakers or {}).items():
        if isinstance(answer, StormkeeperError):
            notes.append(f"the Pacemaker {address} was not looked at: {answer}")
        else:
            beating |= answer
    return Survey(nodes, sorted(beating), notes, list(denied))


def _beating(pacemakers: Mapping[str, Pacemaker]) -> dict[str, set[str] | StormkeeperError]:
    """Ask each of which topologies it has heartbeats."""

    def ask(pacemaker: Pacemaker) -> set[str] | StormkeeperError:
        try:
            return {
                f"{kind}/{name}"
                for kind in (paths.WORKERBEATS, paths.TASKBEATS)
                for name in pacemaker.children(kind)
            }
        except StormkeeperError as error:
            return error

    if not pacemakers:
        return {}
    with ThreadPoolExecutor(len(pacemakers)) as threads:
        return dict(zip(pacemakers, threads.map(ask, pacemakers.values()), strict=True))


def _each(
    ask: Callable[[Sequence[str]], list[T | None]],
    wanted: Sequence[str],
    denied: dict[str, AccessDeniedError],
) -> list[T | None]:
    """Ask for many paths at once; None for each that is denied, which is put down."""
    if not wanted:
        return []
    try:
        return ask(wanted)
    except AccessDeniedError as error:
        if len(wanted) == 1:
            denied[wanted[0]] = error
            return [None]
    # The refusal of one is all that is told: halves find the others in few requests.
    half = len(wanted) // 2
    return _each(ask, wanted[:half], denied) + _each(ask, wanted[half:], denied)
