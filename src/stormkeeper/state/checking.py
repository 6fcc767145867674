"""What should not be in the cluster's state, and is: found in a survey, without asking anybody.

A survey is no snapshot, so a topology that was submitted or removed while it was made may be found
here; it is not there the next time.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from stormkeeper import paths
from stormkeeper.state.decoding import Decoded, outline
from stormkeeper.state.survey import Survey

#: Where Storm's layout has ephemeral nodes only, by first level and how many names are below it:
#: what it means that one stays.
_EPHEMERAL: Final = {
    (paths.SUPERVISORS, 1): "the supervisor is taken to be alive for ever",
    (paths.NIMBUSES, 1): "the Nimbus is taken to be alive for ever",
    (paths.LEADER_LOCK, 1): "the lock is held for ever",
    (paths.BLOBSTORE, 2): "the Nimbus is taken to hold the blob for ever",
    (paths.BACKPRESSURE, 2): "the topology's spouts wait for this worker for ever",
    (paths.ERRORS, 3): "the error outlives its worker",
    (paths.TASKERRORS, 3): "the error outlives its worker",
}

#: How nodes are deleted.
_HOW: Final = (
    "with `storm.state.delete_node(path)` from Python, or with `deleteall` of ZooKeeper's shell"
)

#: What there is to do about each kind of finding, in the order in which `check` has them.
ADVICE: Final[Mapping[str, str]] = {
    "assignment-without-topology": (
        f"{paths.STORMS} has no node of that name, so that no Nimbus ends what supervisors run of"
        f" it: delete the assignment, {_HOW}."
    ),
    "unreadable": (
        "Whoever needs it fails or does without. Look at it with `storm state get`; have it written"
        " again by whoever it belongs to (a supervisor or a worker does so with its next"
        f" heartbeat), or delete it, {_HOW}."
    ),
    "ephemeral-without-session": (
        f"It is persistent, and nobody's session takes it away: delete it, {_HOW}. A supervisor"
        " that runs is there again with its next heartbeat; a Nimbus, or who holds a lock or a"
        " blob, only when it is started again. Nobody writes an error again: leave it, if it is"
        " still of use, and it goes with its topology, or when ten newer ones are there."
    ),
    "left-behind": (
        f"{paths.STORMS} has no node of that name: it was left behind when the topology was"
        f" removed. Delete it, with all below it, {_HOW}; in Pacemakers, with `heartbeats.remove`."
    ),
    "older-epoch": (
        "Two processes wrote as leaders. See that only one goes on, and that each record says what"
        " the newer leader means. It is found until it is written again by the leader of now, or"
        " deleted: `storm deactivate` and `storm activate` write a topology's base,"
        " `storm rebalance` its assignment, `storm upload-credentials` and `storm set_log_level`"
        " what they are named after."
    ),
}

#: Where leaders write records that say which leader it was.
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


class Finding(NamedTuple):
    """One thing that should not be."""

    #: One of those that `ADVICE` has.
    kind: str

    #: At which node; for heartbeats in Pacemakers, where the topology's are there.
    path: str

    #: What is wrong with it; what to do is the same for all of a kind.
    message: str


class _Written(NamedTuple):
    """A leader's record: when it was written, in the store's count of changes, and by whom."""

    change: int
    epoch: int
    path: str


def check(survey: Survey) -> list[Finding]:
    """Return what should not be there, by kind, and within one in the order of the paths.

    - ``assignment-without-topology``: a topology is assigned and has no ``StormBase``, so nobody
      knows it, and supervisors run it.
    - ``unreadable``: a value that is not what Storm's layout has at that path.
    - ``ephemeral-without-session``: a persistent node where only a session's own should be; it
      says for ever that somebody is there.
    - ``left-behind``: errors, heartbeats, credentials and the like of a topology that is gone.
    - ``older-epoch``: a record that a leader wrote after a newer leader had written another one.
      Locks prevent that; who writes without one does not. Records older than the newest leader's
      are no finding: nobody had to write them again.

    What is left behind is nothing else besides: one deletion ends it.

    Parameters
    ----------
    survey
        Of everything, from ``/``. What could not be looked at is taken to be there.
    """
    names = _names(survey)
    topologies = set(names[paths.STORMS])
    decoded = {path: outline(path, node.data) for path, node in survey.nodes.items()}
    left: list[Finding] = []
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
    """Return the path of what a first level has of the topology that `path` is of."""
    return "/".join(path.split("/", 3)[:3])


def _without_topology(names: dict[str, list[str]], topologies: set[str]) -> Iterator[Finding]:
    for storm_id in names[paths.ASSIGNMENTS]:
        if storm_id not in topologies:
            yield Finding(
                "assignment-without-topology",
                paths.assignment(storm_id),
                f"{storm_id} is assigned and is no topology",
            )


def _unreadable(decoded: Mapping[str, Decoded]) -> Iterator[Finding]:
    for path, found in decoded.items():
        if found.unreadable is not None:
            yield Finding("unreadable", path, found.unreadable)


def _without_session(survey: Survey, kept: Mapping[str, Decoded]) -> Iterator[Finding]:
    for path in kept:
        meaning = _EPHEMERAL.get(_place(path))
        if meaning is not None and not survey.nodes[path].stat.owner:
            yield Finding("ephemeral-without-session", path, f"it is persistent: {meaning}")


def _left_behind(
    survey: Survey, names: dict[str, list[str]], topologies: set[str]
) -> Iterator[Finding]:
    for top in paths.BESIDE_TOPOLOGIES:
        for storm_id in names[top]:
            if storm_id not in topologies:
                yield _left(f"{top}/{storm_id}", storm_id)
    for path in survey.in_pacemakers:
        if (storm_id := path.rpartition("/")[2]) not in topologies:
            yield _left(path, storm_id, " in the Pacemakers")


def _left(path: str, storm_id: str, where: str = "") -> Finding:
    return Finding(
        "left-behind",
        path,
        f"it is kept{where} of {storm_id}, which is no topology",
    )


def _of_older_epochs(survey: Survey, decoded: Mapping[str, Decoded]) -> Iterator[Finding]:
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


def _older(record: _Written, newer: _Written) -> Finding:
    return Finding(
        "older-epoch",
        record.path,
        f"the leader of epoch {record.epoch} wrote it (change {record.change}) after the one of"
        f" epoch {newer.epoch} had written {newer.path} (change {newer.change})",
    )


def _names(survey: Survey) -> dict[str, list[str]]:
    """Return the names directly below each first level; what could not be looked at is there."""
    names: dict[str, list[str]] = defaultdict(list)
    for path in sorted({*survey.nodes, *survey.denied}):
        top, count = _place(path)
        if count == 1:
            names[top].append(path.rpartition("/")[2])
    return names


def _place(path: str) -> tuple[str, int]:
    """Return the first level of a path, and how many names are below it."""
    top = paths.first_level(path)
    return top, path.count("/") - 1
