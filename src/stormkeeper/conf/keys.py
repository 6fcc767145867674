"""The names of all configuration keys of Storm, in any release, and of Spark.

``storm_keys.txt`` has Storm 3.0 and 2.x (``Config``, ``DaemonConfig`` and ``defaults.yaml``), 1.x
and 0.x. ``scripts/spark-keys`` derives ``spark_keys.txt`` from Spark's jars.
"""

import difflib
import functools
import itertools
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

#: Prefixes of open families of keys: Spark's settings, JVM system properties in Storm's files
#: (``java.security.auth.login.config``), and plug-ins for Storm's metrics. Applications add Spark
#: settings, so a key counts as misspelt only if much like one of Spark's.
FAMILIES = ("spark.", "java.", "storm.daemon.metrics.reporter.plugin.")

_SPARK = "spark."

#: Prefixes of Spark's keys with a free rest.
_FREE_OF_SPARK = re.compile(
    r"spark\.(hadoop|executorEnv|kafka|kubernetes|metrics\.conf|ssl|yarn\.appMasterEnv"
    r"|(executor|driver|task|worker)\.resource|sql\.catalog|sql\.streaming\.stateStore\.rocksdb"
    r"|[a-z]+\.io)\."
)

_SPARK_LIKENESS = 0.9

#: Keys of a cluster's servers and a machine's folders, which a topology cannot set, as workers
#: would look for the cluster elsewhere.
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

#: As Storm and Spark (``spark.redaction.regex``) mask keys.
_SECRET = re.compile(r"passw(or)?d|payload|secret|token|credential|(access|private)[._]?key", re.I)


_CANDIDATES = 5

#: Least similarity of the differing parts of two keys: two swapped letters of four leave 0.75, and
#: ``pacemaker.`` alone would make ``bogus`` similar to ``host``.
_OWN_LIKENESS = 0.7


@functools.cache
def storm_keys() -> frozenset[str]:
    return frozenset(Path(__file__).with_name("storm_keys.txt").read_text("utf-8").split())


@functools.cache
def spark_keys() -> frozenset[str]:
    return frozenset(Path(__file__).with_name("spark_keys.txt").read_text("utf-8").split())


def is_known(key: str) -> bool:
    """Return whether Storm knows `key`, or a family has the well-spelt `key`."""
    if key.startswith(_SPARK):
        return _of_spark(key) is None
    return key.startswith(FAMILIES) or key in storm_keys()


def is_secret(key: str) -> bool:
    """Return whether the name of `key` means a secret."""
    return _SECRET.search(key) is not None


def flattened(key: str, value: Any, also: Collection[str] = ()) -> tuple[str, Any] | None:
    """Return the first dotted key, with value, in a nested mapping, else None.

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
    """Return the most similar known key, or name in `also`, or None."""
    if key.startswith(_SPARK):
        return _of_spark(key)
    names = sorted(storm_keys().union(also))
    alike = difflib.get_close_matches(key, names, n=_CANDIDATES, cutoff=0.8)
    return next((name for name in alike if _own_likeness(key, name) >= _OWN_LIKENESS), None)


@functools.cache
def _of_spark(key: str) -> str | None:
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
    """Return the similarity, 0 to 1, of two keys without shared leading parts."""
    parts, others = key.split("."), name.split(".")
    pairs = zip(parts, others, strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    own, other = ".".join(parts[shared:]), ".".join(others[shared:])
    return difflib.SequenceMatcher(None, own, other).ratio()
