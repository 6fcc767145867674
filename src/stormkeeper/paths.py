"""The paths of the cluster state: Storm's layout, built and parsed.

Paths are relative to ``storm.zookeeper.root``. A worker's heartbeat has the same path in ZooKeeper
and in Pacemaker.
"""

import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote_plus, unquote_plus

from stormkeeper.errors import InvalidPathError
from stormkeeper.names import host_port, path_fault

ASSIGNMENTS = "/assignments"
STORMS = "/storms"
SUPERVISORS = "/supervisors"
WORKERBEATS = "/workerbeats"
ERRORS = "/errors"
NIMBUSES = "/nimbuses"
BLOBSTORE = "/blobstore"
BLOB_KEY_SEQUENCES = "/blobstoremaxkeysequencenumber"
CREDENTIALS = "/credentials"
LOG_CONFIGS = "/logconfigs"
PROFILER_CONFIGS = "/profilerconfigs"
BACKPRESSURE = "/backpressure"

#: Ours: kept checkpoints of removed topologies.
CHECKPOINTS = "/checkpoints"

#: The queue of candidates, and Storm's Java-serialised record of the leader.
LEADER_LOCK = "/leader-lock"
LEADER_INFO = "/leader-info"

#: Storm's private keys of workers.
SECRET_KEYS = "/secretkeys"

#: Early Storm's task-level tree, kept beside the worker-level tree.
TASKS = "/tasks"
TASKBEATS = "/taskbeats"
TASKERRORS = "/taskerrors"

#: Nodes that every daemon makes at the start.
DIRECTORIES = (
    ASSIGNMENTS,
    STORMS,
    SUPERVISORS,
    WORKERBEATS,
    ERRORS,
    BLOBSTORE,
    NIMBUSES,
    LOG_CONFIGS,
    BACKPRESSURE,
)

#: Trees with a node per topology id, besides bases and assignments.
BESIDE_TOPOLOGIES = (
    ERRORS,
    WORKERBEATS,
    TASKBEATS,
    TASKERRORS,
    TASKS,
    CREDENTIALS,
    LOG_CONFIGS,
    PROFILER_CONFIGS,
    BACKPRESSURE,
)

_BY_TOPOLOGY = frozenset((ASSIGNMENTS, STORMS, *BESIDE_TOPOLOGIES))

#: Directly below the root.
FIRST_LEVEL = _BY_TOPOLOGY | {
    SUPERVISORS,
    NIMBUSES,
    BLOBSTORE,
    BLOB_KEY_SEQUENCES,
    CHECKPOINTS,
    LEADER_LOCK,
    LEADER_INFO,
    SECRET_KEYS,
}

_LAST_ERROR = "-last-error"
_ENDED = "-ended"
_CLAIMED = "-claimed"

_NIMBUS_ID = re.compile(
    r"(?P<host>[^:\[\]]+|\[[^\]]+\]):(?P<port>[0-9]{1,5})(:(?P<tls>[0-9]{1,5}))?"
)

#: A number in a name must fit 32 bits: any client may write paths.
_DIGITS = 9


def check(path: str) -> str:
    """Return `path` unless `names.path_fault` refuses; raises `InvalidPathError`."""
    if fault := path_fault(path):
        raise InvalidPathError(fault)
    return path


def parent(path: str) -> str:
    """Return the path of the parent; ``/`` for ``/``."""
    return path.rpartition("/")[0] or "/"


def is_at_or_below(path: str, top: str) -> bool:
    return top in ("/", path) or path.startswith(f"{top}/")


def first_level(path: str) -> str:
    """Return the first level of `path`, such as ``/storms``; ``/`` for ``/``."""
    return "/" + path.split("/", 2)[1]


def storm_id_of(path: str) -> str | None:
    """Return the id of the topology to which `path` belongs, or None.

    Examples
    --------
    >>> storm_id_of("/errors/wc-1-1700000000/split/e0000000003")
    'wc-1-1700000000'
    >>> storm_id_of("/supervisors/sup-aaaa")
    """
    names = path.split("/", 3)
    return names[2] or None if len(names) > 2 and f"/{names[1]}" in _BY_TOPOLOGY else None


def _join(top: str, *names: str) -> str:
    for name in names:
        if "/" in name:
            raise InvalidPathError(f"{name!r} cannot be a name below {top}: it has a / in it")
    return check("/".join((top, *names)))


def _child_of(top: str) -> Callable[[str], str]:
    return lambda name: _join(top, name)


# Paths by the topology's id.
assignment = _child_of(ASSIGNMENTS)
storm = _child_of(STORMS)
workerbeats = _child_of(WORKERBEATS)
errors = _child_of(ERRORS)
credentials = _child_of(CREDENTIALS)
log_config = _child_of(LOG_CONFIGS)
profiler_configs = _child_of(PROFILER_CONFIGS)
backpressure_of_topology = _child_of(BACKPRESSURE)
tasks = _child_of(TASKS)
taskbeats = _child_of(TASKBEATS)
taskerrors = _child_of(TASKERRORS)

# Paths by a supervisor's id, a Nimbus's host or ``host:port``, a blob's key (holders, and highest
# version), and a checkpoint folder's name.
supervisor = _child_of(SUPERVISORS)
nimbus = _child_of(NIMBUSES)
blob = _child_of(BLOBSTORE)
blob_key_sequence = _child_of(BLOB_KEY_SEQUENCES)
checkpoints = _child_of(CHECKPOINTS)


def workerbeat(storm_id: str, node: str, port: int) -> str:
    """Path of a worker's heartbeat; `node` is the supervisor's id."""
    return _join(WORKERBEATS, storm_id, f"{node}-{port}")


class Slot(NamedTuple):
    """A place for a worker: a supervisor's id and a port."""

    node: str
    port: int


def parse_slot(name: str) -> Slot | None:
    """Parse the name ``node-port`` of a heartbeat or back-pressure node."""
    # A node's id has dashes of its own.
    node, port = _numbered(name)
    return None if port is None else Slot(node, port)


class WorkerId(NamedTuple):
    """A worker: the topology's id and the slot."""

    storm_id: str
    node: str
    port: int


def parse_workerbeat(path: str) -> WorkerId | None:
    """Return the worker of the heartbeat at `path`; None for other paths.

    Examples
    --------
    >>> parse_workerbeat("/workerbeats/wc-1-1700000000/sup-aaaa-10.0.0.1-6700")
    WorkerId(storm_id='wc-1-1700000000', node='sup-aaaa-10.0.0.1', port=6700)
    """
    names = _names_below(WORKERBEATS, path, 2)
    if names is None:
        return None
    slot = parse_slot(names[1])
    return WorkerId(names[0], *slot) if slot else None


def query_end(storm_id: str, query: str) -> str:
    """Path of the record that a query ended by itself; no slot has such a name."""
    return _join(WORKERBEATS, storm_id, _encode(query) + _ENDED)


def parse_query_end(name: str) -> str | None:
    return unquote_plus(name.removesuffix(_ENDED)) if name.endswith(_ENDED) else None


def query_claim(storm_id: str, query: str) -> str:
    """Path of a launch's claim of a query's checkpoint."""
    return _join(WORKERBEATS, storm_id, _encode(query) + _CLAIMED)


def parse_query_claim(name: str) -> str | None:
    return unquote_plus(name.removesuffix(_CLAIMED)) if name.endswith(_CLAIMED) else None


def component_errors(storm_id: str, component: str) -> str:
    """Path of a component's newest errors, sequential nodes ``e…``."""
    return _join(ERRORS, storm_id, _encode(component))


def error_prefix(storm_id: str, component: str) -> str:
    """Path of the next error, to which `create_sequential` adds a number."""
    return _join(component_errors(storm_id, component), "e")


def last_error(storm_id: str, component: str) -> str:
    return component_errors(storm_id, component) + _LAST_ERROR


def parse_component_errors(name: str) -> str:
    """Return the component of a node of newest errors.

    Examples
    --------
    >>> parse_component_errors("a%2Fb")
    'a/b'
    """
    return unquote_plus(name)


def parse_last_error(name: str) -> str | None:
    quoted = name.removesuffix(_LAST_ERROR)
    return None if quoted == name else parse_component_errors(quoted)


class NimbusId(NamedTuple):
    """The addresses of a Nimbus, as in locks and blobs; `tls_port` is 0 without TLS."""

    host: str
    port: int
    tls_port: int

    def __str__(self) -> str:
        return f"{host_port(self.host, self.port)}:{self.tls_port}"


def parse_nimbus_id(text: str) -> NimbusId | None:
    """Parse ``host:port:tlsPort``, or ``host:port`` of Storm before 2.6.4."""
    match = _NIMBUS_ID.fullmatch(text)
    if match is None:
        return None
    return NimbusId(match["host"].strip("[]"), int(match["port"]), int(match["tls"] or 0))


def blob_holder(key: str, nimbus_id: str, version: int) -> str:
    """Path of a Nimbus's record of holding a version of a blob."""
    return _join(BLOBSTORE, key, f"{nimbus_id}-{version}")


class BlobHolder(NamedTuple):
    """The id of a Nimbus, and the version of a blob there."""

    nimbus: str
    version: int


def parse_blob_holder(name: str) -> BlobHolder | None:
    """Parse the name ``nimbus id-version`` of a holder."""
    nimbus_id, version = _numbered(name)
    return None if version is None else BlobHolder(nimbus_id, version)


def blob_record(key: str, nimbus_id: str, version: int) -> str:
    """Path of the lasting record of a holder, named as the holder."""
    return _join(BLOB_KEY_SEQUENCES, key, f"{nimbus_id}-{version}")


def profiler_config(storm_id: str, host: str, port: int, action: str) -> str:
    """Path of a worker's profiling request; `action` is a ``ProfileAction``'s name."""
    return _join(PROFILER_CONFIGS, storm_id, f"{host}_{port}_{action}")


def backpressure(storm_id: str, node: str, port: int) -> str:
    """Path of the start of a worker's back-pressure."""
    return _join(BACKPRESSURE, storm_id, f"{node}-{port}")


def task(storm_id: str, task_id: int) -> str:
    return _join(TASKS, storm_id, str(task_id))


def parse_task(name: str) -> int | None:
    return _number(name)


def taskbeat(storm_id: str, task_id: int) -> str:
    return _join(TASKBEATS, storm_id, str(task_id))


def task_errors(storm_id: str, task_id: int) -> str:
    return _join(TASKERRORS, storm_id, str(task_id))


def task_error_prefix(storm_id: str, task_id: int) -> str:
    return _join(task_errors(storm_id, task_id), "e")


def _names_below(top: str, path: str, count: int) -> list[str] | None:
    if not path.startswith(f"{top}/"):
        return None
    names = path[len(top) + 1 :].split("/")
    return names if len(names) == count and all(names) else None


def _numbered(name: str) -> tuple[str, int | None]:
    head, _, digits = name.rpartition("-")
    return (head, _number(digits)) if head else (name, None)


def _number(digits: str) -> int | None:
    if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS:
        return int(digits)
    return None


def _encode(name: str) -> str:
    """Encode as Java's URLEncoder, which keeps ``*`` and encodes ``~``; Python does the reverse."""
    try:
        return quote_plus(name, safe="*").replace("~", "%7E")
    except UnicodeEncodeError:
        raise InvalidPathError(
            f"{name!r} cannot be the name of a component: it has half of a surrogate pair in it"
        ) from None
