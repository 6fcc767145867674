"""Checks of submissions: a topology, alone and against the package, and the conf; pure.

Messages are Storm's where Storm's Nimbus has the check. In addition the topology's record, which is
displayed, must match the package, which runs.

Anyone who reaches Nimbus, and every machine that runs the topology, can read the saved conf. So it
has no secrets: neither the cluster's (Storm's Nimbus saves its whole configuration) nor the
topology's own, which are credentials.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from stormkeeper.conf.folders import is_relative
from stormkeeper.conf.key_types import Key
from stormkeeper.conf.keys import OF_THE_CLUSTER, is_secret, storm_keys
from stormkeeper.conf.schema import SCHEMA
from stormkeeper.errors import ConfigError
from stormkeeper.nimbus import checkpoints
from stormkeeper.nimbus.submitted import MOST_TASKS, TASKS, commons
from stormkeeper.statistics.executor_reports import is_system
from stormkeeper.thrift.nimbus import ComponentCommon, InvalidTopologyException, StormTopology
from stormkeeper.topology.description import Description, ExecutorDescription

#: Keys of a machine or of Nimbus, which are not saved with a topology.
_NOT_A_TOPOLOGYS: Final = (
    "storm.local.hostname",
    "storm.workers.artifacts.dir",
    "storm.zookeeper.superACL",
    "storm.zookeeper.topology.auth.scheme",
)

_TOPOLOGYS: Final = "topology."

#: Keys of the submitter in a saved conf: principal and operating system's user.
PRINCIPAL: Final = "topology.submitter.principal"
USER: Final = "topology.submitter.user"

#: Keys that rebalances cannot change, with the reason.
_FIXED: Final = {
    "storm.id": "it is given once",
    "topology.name": "a topology keeps its name",
    PRINCIPAL: "a topology stays with its submitter",
    USER: "a topology stays with its submitter",
    **dict.fromkeys(
        (
            *(checkpoints.DIR, checkpoints.FROM, checkpoints.QUERIES),
            *(checkpoints.ABANDON, checkpoints.SHARED, checkpoints.SCRIPTS),
        ),
        "its checkpoints stay where they are",
    ),
    "topology.workers": "the number of workers is an option of its own (`storm rebalance -n`)",
}

#: Java classes of JSON values, and of each kind of key, for Storm's messages.
_JAVA: Final[Mapping[type, str]] = {
    bool: "java.lang.Boolean",
    int: "java.lang.Long",
    float: "java.lang.Double",
    str: "java.lang.String",
    list: "java.util.ArrayList",
    dict: "java.util.HashMap",
}
_KINDS: Final[tuple[tuple[object, str], ...]] = (
    (1, "java.lang.Number"),
    (True, "java.lang.Boolean"),
    ([], "java.util.List"),
)

# The topology: all checks raise `InvalidTopologyException`.


def check(topology: StormTopology) -> None:
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
    """Check that a valid topology matches the package's description, and the number of tasks."""
    recorded = {
        id_: (
            "spout" if id_ in topology.spouts else "bolt",
            _hint(common),
            frozenset(source.componentId for source in common.inputs),
        )
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
    tasks = sum(each.task_end - each.task_start + 1 for each in executors)
    if tasks > MOST_TASKS:
        raise InvalidTopologyException(
            f"the topology has {tasks:,} tasks, and may have {MOST_TASKS:,}"
        )


def check_limits(
    workers: int, executors: int, cluster: Mapping[str, Any], *, what: str = "submit"
) -> None:
    """Check the size of a topology against the operator's limits in the cluster's conf.

    `what` is the command, for the message.
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


def check_rebalance(name: str, components: Iterable[str], num_executors: Mapping[str, int]) -> None:
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


def _hint(common: ComponentCommon) -> int:
    return 1 if common.parallelism_hint is None else common.parallelism_hint


def _conf_of(id_: str, common: ComponentCommon) -> dict[str, Any]:
    try:
        conf = json.loads(common.json_conf or "{}")
    except (ValueError, RecursionError):
        conf = None
    if not isinstance(conf, dict):
        raise InvalidTopologyException(f"the conf of the component {id_} is no mapping in JSON")
    return conf


# The conf


def read_conf(text: str) -> dict[str, Any]:
    """Return the configuration that a client sent.

    Raises `InvalidTopologyException` for malformed JSON, a value of a wrong type, a key of the
    cluster, a relative folder of checkpoints, or a possible secret.
    """
    conf = _checked(_parsed(text))
    if foreign := sorted(OF_THE_CLUSTER.intersection(conf)):
        raise InvalidTopologyException(
            f"the topology's conf has {', '.join(foreign)}, which only the cluster's storm.yaml"
            " sets: leave it out"
        )
    folder = conf.get(checkpoints.DIR)
    if folder is not None and is_relative(folder):
        raise InvalidTopologyException(
            f"the topology's conf: {checkpoints.DIR} is {folder!r}, which every worker would look"
            " for in another folder: give a whole path, one below ~, or a URL"
        )
    return _refuse_secrets({k: v for k, v in conf.items() if not _is_the_clusters(k)})


def read_overrides(text: str) -> dict[str, Any]:
    """Return the conf changes that a rebalance asks for.

    Raises `InvalidTopologyException` as `read_conf` does; also for a key that rebalances cannot
    change, or without a value.
    """
    given = _parsed(text)
    for name in sorted(given):
        why = _FIXED.get(name)
        if why is None and _is_the_clusters(name):
            why = "it is the cluster's"
        if why is not None:
            raise InvalidTopologyException(f"a rebalance cannot change {name}: {why}")
    conf = _checked(given)
    empty = sorted(name for name in given if conf.get(name) is None)
    if empty:
        raise InvalidTopologyException(
            f"a rebalance cannot take away {', '.join(empty)}: give a value, such as the default"
        )
    return _refuse_secrets(conf)


def saved_conf(
    own: Mapping[str, Any], cluster: Mapping[str, Any], *, storm_id: str, name: str, user: str
) -> dict[str, Any]:
    """Return a topology's conf to save: the cluster's defaults below the topology's values.

    Without authentication there is no principal, and `user` is the operating system's.
    """
    needed = {
        key: value
        for key, value in cluster.items()
        if key.startswith(_TOPOLOGYS) and value is not None and not is_secret(key)
    }
    ids = {"storm.id": storm_id, "topology.name": name, PRINCIPAL: "", USER: user}
    return {**needed, **own, **ids}


def without_secrets(conf: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in conf.items() if not is_secret(key)}


def _parsed(text: str) -> dict[str, Any]:
    try:
        conf = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidTopologyException(f"the topology's conf is no JSON: {error}") from error
    if not isinstance(conf, dict):
        raise InvalidTopologyException("the topology's conf is no mapping")
    return conf


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def _checked(conf: Mapping[str, Any]) -> dict[str, Any]:
    checked = {}
    for name, value in conf.items():
        key = SCHEMA.get(name)
        if key is None:
            checked[name] = value
        elif value is not None and not key.is_unset(value):
            try:
                checked[name] = key.convert(value)
            except ConfigError as error:
                raise InvalidTopologyException(f"{_fault(key, value)} ({error})") from error
    return checked


def _refuse_secrets(conf: dict[str, Any]) -> dict[str, Any]:
    secret = sorted(name for name, value in conf.items() if _holds_a_secret(name, value))
    if secret:
        raise InvalidTopologyException(
            f"the topology's conf has what may be a secret, by the name of the key:"
            f" {', '.join(secret)}; everybody who reaches Nimbus can read a conf, so send it as a"
            " credential, or give the key another name if it is none"
        )
    return conf


def _is_the_clusters(name: str) -> bool:
    if name.startswith(_TOPOLOGYS):
        return False
    return (
        name in _NOT_A_TOPOLOGYS
        or name in OF_THE_CLUSTER
        or (is_secret(name) and name in storm_keys())
    )


def _holds_a_secret(name: str, value: Any) -> bool:
    # None of Storm's topology keys holds a secret.
    return is_secret(name) and name not in storm_keys() and isinstance(value, str) and value != ""


def _fault(key: Key, value: Any) -> str:
    expected = next((java for sample, java in _KINDS if _takes(key, sample)), "java.lang.String")
    if expected == _KINDS[0][1] and isinstance(value, int | float) and not isinstance(value, bool):
        if value <= 0:
            return f"Field {key.name} must be a Positive Number"
        return f"Field {key.name} must be an Integer within type range."
    return (
        f"Field {key.name} must be of type class {expected}."
        f" Object: {value} actual type: class {_JAVA.get(type(value), 'java.lang.Object')}"
    )


def _takes(key: Key, value: object) -> bool:
    try:
        key.convert(value)
    except ConfigError:
        return False
    return True
