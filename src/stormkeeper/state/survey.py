"""Survey of all nodes of the cluster's state, for tools, and the problems found.

No snapshot: a topology that is submitted or removed meanwhile may be reported.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from stormkeeper import paths
from stormkeeper.errors import AccessDeniedError, StormkeeperError
from stormkeeper.state.node_values import Decoded, outline
from stormkeeper.state.storage import NodeData, StateReader

T = TypeVar("T")


class Pacemaker(Protocol):
    """Lists heartbeats, as a `PacemakerClient`."""

    def children(self, path: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Survey:
    """Nodes found at and below a node."""

    #: By path, parents first, in the order of names.
    nodes: dict[str, NodeData]
    #: In Pacemakers: ``/workerbeats/<id>``, ``/taskbeats/<id>``.
    in_pacemakers: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: Unreadable by ACL; nodes below are unknown too.
    denied: list[str] = field(default_factory=list)


def read(
    state: StateReader, top: str = "/", *, pacemakers: Mapping[str, Pacemaker] | None = None
) -> Survey:
    """Read all nodes at and below `top`, with two requests for each level of the tree.

    Asks all `pacemakers`, by address, for topologies with heartbeats. Forbidden nodes and silent
    Pacemakers become notes.
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
    if not wanted:
        return []
    try:
        return ask(wanted)
    except AccessDeniedError as error:
        if len(wanted) == 1:
            denied[wanted[0]] = error
            return [None]
    # ZooKeeper names only one refusal: halves find the others in few requests.
    half = len(wanted) // 2
    return _each(ask, wanted[:half], denied) + _each(ask, wanted[half:], denied)


#: By first level and depth below; and what follows from a persistent node there.
_EPHEMERAL: Final = {
    (paths.SUPERVISORS, 1): "the supervisor is taken to be alive for ever",
    (paths.NIMBUSES, 1): "the Nimbus is taken to be alive for ever",
    (paths.LEADER_LOCK, 1): "the lock is held for ever",
    (paths.BLOBSTORE, 2): "the Nimbus is taken to hold the blob for ever",
    (paths.BACKPRESSURE, 2): "the topology's spouts wait for this worker for ever",
    (paths.ERRORS, 3): "the error outlives its worker",
    (paths.TASKERRORS, 3): "the error outlives its worker",
}

_HOW: Final = (
    "with `storm.state.delete_node(path)` from Python, or with `deleteall` of ZooKeeper's shell"
)

#: By kind of problem, in the order of `check`.
ADVICE: Final[Mapping[str, str]] = {
    "assignment-without-topology": (
        f"{paths.STORMS} has no node of that name, so that no Nimbus ends what supervisors run of"
        f" it: delete the assignment, {_HOW}."
    ),
    "unreadable": (
        "Its readers fail or do without. Look at it with `storm state get`; have its owner write it"
        f" again (a supervisor or a worker does so with its next heartbeat), or delete it, {_HOW}."
    ),
    "ephemeral-without-session": (
        f"It is persistent, and does not end with any session: delete it, {_HOW}. A supervisor"
        " that runs registers again with its next heartbeat; a Nimbus, or the holder of a lock or"
        " blob, only after a restart. An error is not written again: if it is still of use, leave"
        " it; it goes with its topology, or when there are ten newer ones."
    ),
    "left-behind": (
        f"{paths.STORMS} has no node of that name: it was left behind when the topology was"
        f" removed. Delete it, with all below it, {_HOW}; in Pacemakers, with `heartbeats.remove`."
    ),
    "older-epoch": (
        "Two processes wrote as leaders. Make sure that only one goes on, and that each record is"
        " as the newer leader wants it. The record is reported until the present leader writes it"
        " again, or it is deleted: `storm deactivate` and `storm activate` write a topology's base,"
        " `storm rebalance` its assignment, `storm upload-credentials` its credentials, and"
        " `storm set_log_level` its log levels."
    ),
}

_OF_LEADERS: Final = frozenset(
    (
        (paths.ASSIGNMENTS, 1),
        (paths.STORMS, 1),
        (paths.CREDENTIALS, 1),
        (paths.LOG_CONFIGS, 1),
        (paths.PROFILER_CONFIGS, 2),
        (paths.TASKS, 2),
    )
)


class StateProblem(NamedTuple):
    """A problem in the cluster's state."""

    kind: str
    #: For heartbeats in Pacemakers: the topology's path there.
    path: str
    message: str


class _Written(NamedTuple):
    """A leader's record, with change (mzxid) and epoch."""

    change: int
    epoch: int
    path: str


def check(survey: Survey) -> list[StateProblem]:
    """Return the problems in a survey of ``/``, by kind, then by path.

    - ``assignment-without-topology``: supervisors run it, and no Nimbus knows it.
    - ``unreadable``: does not fit Storm's layout.
    - ``ephemeral-without-session``: a persistent node in a place for ephemeral nodes.
    - ``left-behind``: anything else of a topology that is gone; excludes other problems.
    - ``older-epoch``: a leader's record, written after a newer leader's: only a writer without a
      lock can do that.
    """
    names = _names(survey)
    topologies = set(names[paths.STORMS])
    decoded = {path: outline(path, node.data) for path, node in survey.nodes.items()}
    left: list[StateProblem] = []
    if paths.STORMS not in survey.denied:
        left += _left_behind(survey, names, topologies)
    is_left = {finding.path for finding in left}
    kept = {path: node for path, node in decoded.items() if _of_topology(path) not in is_left}
    return [
        *(_without_topology(names, topologies) if paths.STORMS not in survey.denied else ()),
        *_unreadable(kept),
        *_without_session(survey, kept),
        *left,
        *(finding for finding in _of_older_epochs(survey, decoded) if finding.path in kept),
    ]


def _of_topology(path: str) -> str:
    return "/".join(path.split("/", 3)[:3])


def _without_topology(names: dict[str, list[str]], topologies: set[str]) -> Iterator[StateProblem]:
    for storm_id in names[paths.ASSIGNMENTS]:
        if storm_id not in topologies:
            yield StateProblem(
                "assignment-without-topology",
                paths.assignment(storm_id),
                f"{storm_id} is assigned and is no topology",
            )


def _unreadable(decoded: Mapping[str, Decoded]) -> Iterator[StateProblem]:
    for path, found in decoded.items():
        if found.unreadable is not None:
            yield StateProblem("unreadable", path, found.unreadable)


def _without_session(survey: Survey, kept: Mapping[str, Decoded]) -> Iterator[StateProblem]:
    for path in kept:
        meaning = _EPHEMERAL.get(_place(path))
        if meaning is not None and not survey.nodes[path].stat.owner:
            yield StateProblem("ephemeral-without-session", path, f"it is persistent: {meaning}")


def _left_behind(
    survey: Survey, names: dict[str, list[str]], topologies: set[str]
) -> Iterator[StateProblem]:
    for top in paths.BESIDE_TOPOLOGIES:
        for storm_id in names[top]:
            if storm_id not in topologies:
                yield _left(f"{top}/{storm_id}", storm_id)
    for path in survey.in_pacemakers:
        if (storm_id := path.rpartition("/")[2]) not in topologies:
            yield _left(path, storm_id, " in the Pacemakers")


def _left(path: str, storm_id: str, where: str = "") -> StateProblem:
    return StateProblem(
        "left-behind",
        path,
        f"it is kept{where} of {storm_id}, which is no topology",
    )


def _of_older_epochs(survey: Survey, decoded: Mapping[str, Decoded]) -> Iterator[StateProblem]:
    written = sorted(_written_by_leaders(survey, decoded))
    newest: _Written | None = None
    found = []
    for each in written:
        if newest is not None and each.epoch < newest.epoch:
            found.append(_older(each, newest))
        else:
            newest = each
    yield from sorted(found, key=lambda finding: finding.path.split("/"))


def _written_by_leaders(survey: Survey, decoded: Mapping[str, Decoded]) -> Iterator[_Written]:
    for path, found in decoded.items():
        if _place(path) in _OF_LEADERS and found.epoch is not None:
            yield _Written(survey.nodes[path].stat.modified, found.epoch, path)


def _older(record: _Written, newer: _Written) -> StateProblem:
    return StateProblem(
        "older-epoch",
        record.path,
        f"the leader of epoch {record.epoch} wrote it (change {record.change}) after the one of"
        f" epoch {newer.epoch} had written {newer.path} (change {newer.change})",
    )


def _names(survey: Survey) -> dict[str, list[str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for path in sorted({*survey.nodes, *survey.denied}):
        top, count = _place(path)
        if count == 1:
            names[top].append(path.rpartition("/")[2])
    return names


def _place(path: str) -> tuple[str, int]:
    top = paths.first_level(path)
    return top, path.count("/") - 1
