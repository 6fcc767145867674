"""The names of all configuration keys that Storm knows, in any release.

A real cluster's ``storm.yaml`` is full of keys that nothing here reads; they are accepted by name.
The names stand in ``storm_keys.txt``, one per line: those of Storm 3.0 and 2.x (``Config``,
``DaemonConfig`` and ``defaults.yaml``) and the retired ones of 1.x and 0.x. The file is read only
when there is a name to look up. So is ``spark_keys.txt``, which ``scripts/spark-keys`` derives from
Spark's jars.
"""

import difflib
import functools
import itertools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

#: Beginnings of keys whose rest is not ours to choose: Spark's own configuration, the JVM system
#: properties that Storm's files carry (``java.security.auth.login.config``), and what each plug-in
#: of Storm's metrics reporters reads for itself. Applications and connectors add settings to
#: Spark's. So only a key that is much like one of Spark's counts as misspelt.
FAMILIES = ("spark.", "java.", "storm.daemon.metrics.reporter.plugin.")

_SPARK = "spark."

#: Keys of Spark's whose rest the user chooses, or Spark composes: of these, any is known.
_FREE_OF_SPARK = re.compile(
    r"spark\.(hadoop|executorEnv|kafka|kubernetes|metrics\.conf|ssl|yarn\.appMasterEnv"
    r"|(executor|driver|task|worker)\.resource|sql\.catalog|sql\.streaming\.stateStore\.rocksdb"
    r"|[a-z]+\.io)\."
)

#: How much a misspelt key of Spark's is like the one that is meant.
_SPARK_LIKENESS = 0.9

#: Keys that say where the servers of a cluster and the folders of a machine are. A topology has no
#: say in them: its workers would look for the cluster elsewhere.
OF_THE_CLUSTER = frozenset(
    {
        "blobstore.dir",
        "nimbus.host",
        "nimbus.seeds",
        "nimbus.thrift.port",
        "pacemaker.host",
        "pacemaker.port",
        "pacemaker.servers",
        "storm.cluster.state.store",
        "storm.local.dir",
        "storm.log.dir",
        "storm.zookeeper.port",
        "storm.zookeeper.root",
        "storm.zookeeper.servers",
        "storm.zookeeper.ssl.enable",
    }
)

#: Storm masks keys by such names in what it shows, Spark likewise (``spark.redaction.regex``).
_SECRET = re.compile(r"passw(or)?d|payload|secret|token|credential|(access|private)[._]?key", re.I)


#: Names that are written most like a key, of which one may be meant.
_CANDIDATES = 5

#: How much the parts of two keys that differ must be alike. Two letters of four that have changed
#: places leave 0.75; ``pacemaker.`` alone makes ``bogus`` look like ``host``.
_OWN_LIKENESS = 0.7


@functools.cache
def storm_keys() -> frozenset[str]:
    """Return the names of Storm's keys."""
    return frozenset(Path(__file__).with_name("storm_keys.txt").read_text("utf-8").split())


@functools.cache
def spark_keys() -> frozenset[str]:
    """Return the names of Spark's settings."""
    return frozenset(Path(__file__).with_name("spark_keys.txt").read_text("utf-8").split())


def is_known(key: str) -> bool:
    """Return whether Storm knows `key`, or it belongs to a family and is not misspelt there."""
    if key.startswith(_SPARK):
        return _of_spark(key) is None
    return key.startswith(FAMILIES) or key in storm_keys()


def is_secret(key: str) -> bool:
    """Return whether the value of `key` may be a password or the like, by its name."""
    return _SECRET.search(key) is not None


def flattened(key: str, value: Any, also: Collection[str] = ()) -> tuple[str, Any] | None:
    """Return the dotted key, and its value, that a key with a mapping as its value stands for.

    Parameters
    ----------
    key
        An unknown key.
    value
        Its value.
    also
        Further names that would have been known.

    Returns
    -------
    The first of the keys that were meant, and its value. None if no known key begins with `key` and
    a dot, or there is nothing in the mapping.

    Examples
    --------
    >>> flattened("pacemaker", {"auth": {"method": "SCRAM"}})
    ('pacemaker.auth.method', 'SCRAM')
    """
    names = storm_keys().union(FAMILIES, also)
    if not value or not any(name.startswith(f"{key}.") for name in names):
        return None
    name = key
    while isinstance(value, dict) and value and name not in names:
        inner, value = next(iter(value.items()))
        name = f"{name}.{inner}"
    return None if name == key else (name, value)


def nearest(key: str, also: Collection[str] = ()) -> str | None:
    """Return the known key that is most similar to `key`, or None if none is similar.

    Parameters
    ----------
    key
        An unknown key.
    also
        Further names that would have been known.
    """
    if key.startswith(_SPARK):
        return _of_spark(key)
    names = sorted(storm_keys().union(also))
    alike = difflib.get_close_matches(key, names, n=_CANDIDATES, cutoff=0.8)
    return next((name for name in alike if _own_likeness(key, name) >= _OWN_LIKENESS), None)


@functools.cache
def _of_spark(key: str) -> str | None:
    """Return the setting of Spark that is meant by a misspelt one; None where it is none."""
    if key in spark_keys() or _FREE_OF_SPARK.match(key):
        return None
    for name in difflib.get_close_matches(key, spark_keys(), n=_CANDIDATES, cutoff=_SPARK_LIKENESS):
        is_as_deep = key.count(".") == name.count(".") or _undotted(key) == _undotted(name)
        if is_as_deep and _own_likeness(key, name) >= _OWN_LIKENESS:
            return name
    return None


def _undotted(key: str) -> str:
    return key.replace(".", "").lower()


def _own_likeness(key: str, name: str) -> float:
    """Return the similarity, 0 to 1, of two keys without the leading parts that they share."""
    parts, others = key.split("."), name.split(".")
    pairs = zip(parts, others, strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    own, other = ".".join(parts[shared:]), ".".join(others[shared:])
    return difflib.SequenceMatcher(None, own, other).ratio()
