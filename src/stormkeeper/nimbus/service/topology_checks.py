"""Checks of a submitted topology, alone and against the package; pure.

Messages of checks that Storm's Nimbus has are Storm's. In addition the topology's record must match
its package: the package runs, and the record is displayed.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from stormkeeper.nimbus.submitted import MOST_TASKS, TASKS, commons
from stormkeeper.statistics.executor_reports import is_system
from stormkeeper.thrift.nimbus import ComponentCommon, InvalidTopologyException, StormTopology
from stormkeeper.topology.description import Description, ExecutorDescription


def check(topology: StormTopology) -> None:
    """Check a topology by itself; raises `InvalidTopologyException`."""
    every = [*topology.spouts, *topology.bolts, *topology.state_spouts]
    twice = sorted(id_ for id_, count in Counter(every).items() if count > 1)
    if twice:
        raise InvalidTopologyException(f"Duplicate component ids: [{', '.join(twice)}]")
    if not every:
        raise InvalidTopologyException("the topology has no component")
    components = commons(topology)
    _check_components(components)
    for spout in topology.spouts.values():
        if spout.common.inputs:
            raise InvalidTopologyException("May not declare inputs for a spout")
    _check_inputs(components)


def _check_components(components: Mapping[str, ComponentCommon]) -> None:
    for id_, common in components.items():
        if is_system(id_):
            raise InvalidTopologyException(f"{id_} is not a valid component id")
        for stream in common.streams:
            if is_system(stream):
                raise InvalidTopologyException(f"{stream} is not a valid stream id")
        if common.parallelism_hint is not None and common.parallelism_hint < 1:
            raise InvalidTopologyException("Number of executors must be greater than 0")
        _conf_of(id_, common)


def _check_inputs(components: Mapping[str, ComponentCommon]) -> None:
    for id_, common in components.items():
        for source in common.inputs:
            if source.componentId not in components:
                raise InvalidTopologyException(
                    f"Component: [{id_}] subscribes from non-existent component"
                    f" [{source.componentId}]"
                )
            if source.streamId not in components[source.componentId].streams:
                raise InvalidTopologyException(
                    f"Component: [{id_}] subscribes from non-existent stream: [{source.streamId}]"
                    f" of component [{source.componentId}]"
                )


def check_package(topology: StormTopology, description: Description) -> None:
    """Check that a valid topology matches the package's description.

    Raises `InvalidTopologyException` if they differ, or the topology has too many tasks.
    """
    recorded = {
        id_: ("spout" if id_ in topology.spouts else "bolt", _hint(common), _sources(common))
        for id_, common in commons(topology).items()
    }
    described: dict[str, tuple[str, int, frozenset[str]]] = {
        each.id: (each.kind, each.parallelism, frozenset(each.inputs))
        for each in description.components
    }
    if description.kind == "script":
        described = {description.name: ("spout", 1, frozenset())}
    if recorded != described:
        names = {name for name, _ in recorded.items() ^ described.items()}
        raise InvalidTopologyException(
            f"the topology is not the one in its package: they differ in {', '.join(sorted(names))}"
        )
    check_tasks(description.executors)


def check_tasks(executors: Iterable[ExecutorDescription]) -> None:
    """Check the number of tasks of a topology; raises `InvalidTopologyException`."""
    tasks = sum(each.task_end - each.task_start + 1 for each in executors)
    if tasks > MOST_TASKS:
        raise InvalidTopologyException(
            f"the topology has {tasks:,} tasks, and may have {MOST_TASKS:,}"
        )


def check_limits(
    workers: int, executors: int, cluster: Mapping[str, Any], *, what: str = "submit"
) -> None:
    """Check the size of a topology against the operator's limits.

    `cluster` has ``nimbus.slots.perTopology`` and ``nimbus.executors.perTopology``; null: no limit.
    `what` is the requested command, for the message.

    Raises
    ------
    InvalidTopologyException
        A limit is exceeded.
    """
    for asked, key, things in (
        (workers, "nimbus.slots.perTopology", "workers"),
        (executors, "nimbus.executors.perTopology", "executors"),
    ):
        most = cluster.get(key)
        if most is not None and asked > most:
            raise InvalidTopologyException(
                f"Failed to {what} topology. Topology requests more than {most} {things}."
            )


def normalised(topology: StormTopology, description: Description) -> StormTopology:
    """Return a topology in which each component's conf has the number of tasks."""
    tasks: Counter[str] = Counter()
    for each in description.executors:
        tasks[each.component] += each.task_end - each.task_start + 1
    found = copy.copy(topology)
    for group in ("spouts", "bolts"):
        parts = {}
        for id_, part in getattr(topology, group).items():
            whole, common = copy.copy(part), copy.copy(part.common)
            conf = {**_conf_of(id_, common), TASKS: tasks[id_] or _hint(common)}
            common.json_conf = json.dumps(conf)
            whole.common = common
            parts[id_] = whole
        setattr(found, group, parts)
    return found


def check_rebalance(name: str, components: Iterable[str], num_executors: Mapping[str, int]) -> None:
    """Check the executors that a rebalance asks for.

    Raises `InvalidTopologyException` if a component is unknown, or the number is out of range.
    """
    known = sorted(components)
    for id_, number in num_executors.items():
        if id_ not in known:
            raise InvalidTopologyException(
                f"Invalid component {id_} for topology {name}, valid values are {','.join(known)}"
            )
        if number < 1:
            raise InvalidTopologyException("Number of executors must be greater than 0")
        if number > MOST_TASKS:
            raise InvalidTopologyException(f"Number of executors must be {MOST_TASKS:,} or less")


def _hint(common: ComponentCommon) -> int:
    return 1 if common.parallelism_hint is None else common.parallelism_hint


def _sources(common: ComponentCommon) -> frozenset[str]:
    return frozenset(source.componentId for source in common.inputs)


def _conf_of(id_: str, common: ComponentCommon) -> dict[str, Any]:
    try:
        conf = json.loads(common.json_conf or "{}")
    except (ValueError, RecursionError):
        conf = None
    if not isinstance(conf, dict):
        raise InvalidTopologyException(f"the conf of the component {id_} is no mapping in JSON")
    return conf
