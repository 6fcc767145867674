"""The conf that a topology is submitted with; pure.

It is what the topology brings along, under what the command line says with ``-c``. What the command
line says of the cluster's places is for the way there, and is not sent: a machine of the cluster
may reach them otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stormkeeper.conf import Conf, mistyped
from stormkeeper.conf.access_control import of_topology
from stormkeeper.conf.folders import is_relative
from stormkeeper.conf.keys import OF_THE_CLUSTER, is_secret, storm_keys
from stormkeeper.errors import ConfigError
from stormkeeper.topology import faults

#: How the keys begin that say how to reach Nimbus.
OF_THE_WAY: Final = ("nimbus.", "storm.nimbus.", "storm.thrift.")

_CHECKPOINTS: Final = "topology.checkpoint.dir"


def sent(own: Mapping[str, Any], conf: Conf, name: str) -> dict[str, Any]:
    """Return a topology's conf.

    Parameters
    ----------
    own
        What the topology brings along.
    conf
        The configuration of this command.
    name
        The topology's, for errors.

    Raises
    ------
    ConfigError
        If a value is not what its key may be, may be a secret, or is a folder for checkpoints that
        depends on where a worker is started; or a key is the cluster's.
    """
    given = {key: conf[key] for key in conf if conf.is_override(key) and not _is_of_the_way(key)}
    if foreign := sorted(OF_THE_CLUSTER.intersection(own)):
        raise ConfigError(
            f"the conf of the topology {name!r} has {', '.join(foreign)}, which only the cluster's"
            " storm.yaml sets: leave it out"
        )
    try:
        conf.with_values(own)
    except ConfigError as error:
        what = str(error).removeprefix("with_values: ")
        raise ConfigError(f"the conf of the topology {name!r}: {what}") from error
    values = {**own, **given}
    if values.get("spark.remote") or values.get("spark.api.mode") == "connect":
        raise ConfigError(f"the conf of the topology {name!r}: {faults.CONNECT}")
    checkpoints = values.get(_CHECKPOINTS)
    if isinstance(checkpoints, str) and is_relative(checkpoints):
        raise ConfigError(
            f"the conf of the topology {name!r}: {_CHECKPOINTS} is {checkpoints!r}, which every"
            " worker would look for in another folder: give a whole path, one below ~, or a URL"
            " such as s3a://bucket/checkpoints"
        )
    secret = sorted(key for key, value in values.items() if _holds_a_secret(key, value))
    if secret:
        raise ConfigError(
            f"the conf of the topology {name!r} has what may be a secret, by the name of the key:"
            f" {', '.join(secret)}. Everybody who reaches Nimbus can read the conf: send it in"
            " the file of --credentials, or give the key another name if it is none"
        )
    return values


def mistyped_own(own: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield what to say of keys that a topology brings along and that have no effect.

    Parameters
    ----------
    own, name
        As of `sent`.
    """
    for text in (*mistyped(own), *of_topology(own)):
        yield f"the conf of the topology {name!r}: {text}"


def mistyped_given(conf: Conf) -> Iterator[str]:
    """Yield what to say of keys that the command line gives a topology and that have no effect."""
    given = [key for key in conf if conf.is_override(key)]
    for text in (*mistyped(given), *of_topology(given)):
        yield f"-c: {text}"


def as_json(sent: Mapping[str, Any]) -> str:
    """Return a topology's conf as Nimbus takes it."""
    return json.dumps(sent)


def _is_of_the_way(key: str) -> bool:
    """Return whether a key of the command line says where the cluster is, and is not sent."""
    return key.startswith(OF_THE_WAY) or key in OF_THE_CLUSTER


def _holds_a_secret(key: str, value: Any) -> bool:
    """Return whether Nimbus would take a value for a secret; of Storm's own keys it takes none."""
    return bool(value) and isinstance(value, str) and is_secret(key) and key not in storm_keys()
