"""A topology's configuration, as sent by a client and as saved by Nimbus; pure.

Anyone who reaches Nimbus can read the saved conf, and every machine that runs the topology has it.
So it contains no secrets: neither the cluster's (Storm's Nimbus saves its whole configuration) nor
the topology's own, which are credentials.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from stormkeeper.conf.folders import is_relative
from stormkeeper.conf.key_types import Key
from stormkeeper.conf.keys import OF_THE_CLUSTER, is_secret, storm_keys
from stormkeeper.conf.schema import SCHEMA
from stormkeeper.errors import ConfigError
from stormkeeper.nimbus import checkpoints
from stormkeeper.thrift.nimbus import InvalidTopologyException

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


def read(text: str) -> dict[str, Any]:
    """Return the configuration that a client sent.

    Raises
    ------
    InvalidTopologyException
        It is malformed; a value has the wrong type; a key belongs to the cluster; the checkpoint
        folder is a relative path; or a key may hold a secret.
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
    return _without_secrets({k: v for k, v in conf.items() if not _is_the_clusters(k)})


def read_overrides(text: str) -> dict[str, Any]:
    """Return the conf changes that a rebalance asks for.

    Raises
    ------
    InvalidTopologyException
        As `read`; also for a key that rebalances cannot change, or without a value.
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
    return _without_secrets(conf)


def saved(
    own: Mapping[str, Any],
    cluster: Mapping[str, Any],
    *,
    storm_id: str,
    name: str,
    principal: str,
    user: str,
) -> dict[str, Any]:
    """Return the configuration to save for a topology.

    `own` is the result of `read`; `cluster` has defaults of the topology's keys. While
    authentication is off, `principal` is '' and `user` the operating system's.
    """
    needed = {
        key: value
        for key, value in cluster.items()
        if key.startswith(_TOPOLOGYS) and value is not None and not is_secret(key)
    }
    return {
        **needed,
        **own,
        "storm.id": storm_id,
        "topology.name": name,
        PRINCIPAL: principal,
        USER: user,
    }


def _parsed(text: str) -> dict[str, Any]:
    try:
        conf = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidTopologyException(f"the topology's conf is no JSON: {error}") from error
    if not isinstance(conf, dict):
        raise InvalidTopologyException("the topology's conf is no mapping")
    return conf


def _checked(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Check the values against their keys; drop unset ones."""
    checked = {}
    for name, value in conf.items():
        key = SCHEMA.get(name)
        if key is None:
            checked[name] = value
        elif value is not None and not key.is_unset(value):
            checked[name] = _converted(key, value)
    return checked


def _without_secrets(conf: dict[str, Any]) -> dict[str, Any]:
    secret = sorted(name for name, value in conf.items() if _holds_a_secret(name, value))
    if secret:
        raise InvalidTopologyException(
            f"the topology's conf has what may be a secret, by the name of the key:"
            f" {', '.join(secret)}; everybody who reaches Nimbus can read a conf, so send it as a"
            " credential, or give the key another name if it is none"
        )
    return conf


def without_secrets(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without keys that may hold secrets."""
    return {key: value for key, value in conf.items() if not is_secret(key)}


def _is_the_clusters(name: str) -> bool:
    """Return whether a key is the cluster's, not a topology's."""
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


def _converted(key: Key, value: Any) -> Any:
    try:
        return key.convert(value)
    except ConfigError as error:
        raise InvalidTopologyException(f"{_fault(key, value)} ({error})") from error


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


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")
