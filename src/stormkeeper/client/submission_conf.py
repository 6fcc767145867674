"""The conf for a submission: the topology's own conf, overridden by ``-c``; pure.

Keys of ``-c`` for the connection to the cluster are not sent, because another machine may reach
Nimbus by other addresses.
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

#: Prefixes of the keys for the connection to Nimbus.
CONNECTION_PREFIXES: Final = ("nimbus.", "storm.nimbus.", "storm.thrift.")

_CHECKPOINTS: Final = "topology.checkpoint.dir"


def conf_to_send(own: Mapping[str, Any], conf: Conf, name: str) -> dict[str, Any]:
    """Return the topology's `own` conf with the overrides of the command's `conf`.

    Raises `ConfigError` for a wrong value, a possible secret, a relative folder for checkpoints, or
    a key that only the cluster sets.
    """
    given = {key: conf[key] for key in conf if conf.is_override(key) and not _stays_here(key)}
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
    secret = sorted(key for key, value in values.items() if _is_a_secret(key, value))
    if secret:
        raise ConfigError(
            f"the conf of the topology {name!r} has what may be a secret, by the name of the key:"
            f" {', '.join(secret)}. Anyone who can reach Nimbus can read the conf: send the secret"
            " in the file of --credentials, or rename the key if it is not a secret"
        )
    return values


def own_conf_warnings(own: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each key of the topology's own conf without effect."""
    for text in (*mistyped(own), *of_topology(own)):
        yield f"the conf of the topology {name!r}: {text}"


def command_line_warnings(conf: Conf) -> Iterator[str]:
    """Yield a warning for each key of ``-c`` without effect."""
    given = [key for key in conf if conf.is_override(key)]
    for text in (*mistyped(given), *of_topology(given)):
        yield f"-c: {text}"


def as_json(values: Mapping[str, Any]) -> str:
    """Return a topology's conf for Nimbus."""
    return json.dumps(values)


def _stays_here(key: str) -> bool:
    return key.startswith(CONNECTION_PREFIXES) or key in OF_THE_CLUSTER


def _is_a_secret(key: str, value: Any) -> bool:
    """Return whether Nimbus would treat a value as a secret; Storm's own keys are none."""
    return bool(value) and isinstance(value, str) and is_secret(key) and key not in storm_keys()
