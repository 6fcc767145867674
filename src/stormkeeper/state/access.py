"""Access to nodes of the cluster's state: Storm's rules, path by path.

A node gets its ACL from the process that makes it. Daemons keep their nodes to themselves, but let
a topology's workers read the topology's records and make nodes in the directories for reports.
Workers give the daemons all rights to the workers' nodes.
"""

import base64
import hashlib
from enum import Enum
from typing import Final, NamedTuple

from stormkeeper import paths
from stormkeeper.errors import ConfigError


class Role(Enum):
    """The kind of a process, as far as the cluster's state is concerned."""

    #: Nimbus, a supervisor, a tool: a process with the daemons' credentials.
    SERVER = "server"
    #: A worker, which has only the topology's credentials.
    WORKER = "worker"


class Permission(Enum):
    """Rights that an ACL grants."""

    READ = "read"
    #: Reading, writing, making and deleting children, changing the ACL.
    ALL = "all"


class Grant(NamedTuple):
    """An entry of a node's ACL."""

    #: ZooKeeper's authentication scheme: "digest", "sasl", or "auth" for the node's maker.
    scheme: str
    id: str
    permission: Permission


#: The maker of the node, under every identity that it has proved.
CREATOR: Final = Grant("auth", "", Permission.ALL)

#: Where a topology's workers may read: at and below ``<directory>/<topology id>``.
_READ: Final = frozenset(
    (paths.STORMS, paths.ASSIGNMENTS, paths.CREDENTIALS, paths.LOG_CONFIGS, paths.TASKS)
)

#: Where the workers have all rights to ``<directory>/<topology id>`` itself, and so make nodes
#: below. Nodes that a daemon makes there stay the daemon's.
_REPORT: Final = frozenset(
    (paths.WORKERBEATS, paths.ERRORS, paths.BACKPRESSURE, paths.TASKBEATS, paths.TASKERRORS)
)


class AccessRules:
    """Grants on nodes that this process makes. Safe for threads.

    Without authentication nodes are open to all. `topology_digest` is the workers' `digest_id` for
    topologies without their own; `super_acl` is a worker's grant to the daemons.
    """

    def __init__(
        self,
        *,
        authenticated: bool,
        role: Role = Role.SERVER,
        topology_digest: str | None = None,
        super_acl: Grant | None = None,
    ) -> None:
        self._authenticated = authenticated
        self._role = role
        self._topology_digest = topology_digest
        self._workers_own = (CREATOR,) if super_acl is None else (CREATOR, super_acl)

    def grants(self, path: str, workers: str | None = None) -> tuple[Grant, ...]:
        """Return the grants on a node made at `path`; ``()``: open to all.

        `path` is relative to ``storm.zookeeper.root``. `workers` is the `digest_id` of the
        topology's workers; None: `topology_digest`.
        """
        if not self._authenticated:
            return ()
        if self._role is Role.WORKER:
            return self._workers_own
        permission = _of_workers(path)
        digest = workers or self._topology_digest
        is_a_topology_s = paths.storm_id_of(path) is not None
        if permission is None or digest is None or not is_a_topology_s:
            return (CREATOR,)
        return (CREATOR, Grant("digest", digest, permission))


def _of_workers(path: str) -> Permission | None:
    """Return the workers' permission on a node that a daemon makes."""
    top = paths.first_level(path)
    if top in _READ:
        return Permission.READ
    is_a_topology_s = path.count("/") == 2
    return Permission.ALL if top in _REPORT and is_a_topology_s else None


#: Without authentication: all nodes are open to all.
OPEN: Final = AccessRules(authenticated=False)


def digest_id(payload: str) -> str:
    """Return the ACL id of a user, from ``user:password``.

    As ZooKeeper's ``DigestAuthenticationProvider``: the user, and the SHA-1 of the whole in base64.
    Raises `ConfigError`, which does not contain `payload`, without a colon.

    Examples
    --------
    >>> digest_id("storm:secret")
    'storm:jTZg6y+meeRlzuZs+/JjMmmZIlk='
    """
    # May come from a topology's configuration, which is not validated.
    user, colon, _ = payload.partition(":") if isinstance(payload, str) else ("", "", "")
    if not colon:
        raise ConfigError("a digest is of user:password, and what is configured has no colon")
    try:
        digest = hashlib.sha1(payload.encode()).digest()
    except UnicodeEncodeError:
        raise ConfigError("a digest is of text, and what is configured is not Unicode") from None
    return f"{user}:{base64.b64encode(digest).decode()}"
