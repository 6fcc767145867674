"""Who may do what with a node of the cluster's state: Storm's rules, path by path.

A node gets its rules when it is made, from whoever makes it. Daemons keep what they make to
themselves, but let a topology's workers read what is theirs to know, and make nodes of their own
in the directories where they report. Workers let the daemons at what they make.
"""

import base64
import hashlib
from enum import Enum
from typing import Final, NamedTuple

from stormkeeper import paths
from stormkeeper.errors import ConfigError


class Role(Enum):
    """What a process is to the cluster's state."""

    #: Nimbus, a supervisor, a tool: whoever has the daemons' credentials.
    SERVER = "server"
    #: A topology's worker, which has its topology's alone.
    WORKER = "worker"


class Permission(Enum):
    """What is granted."""

    READ = "read"
    #: Reading, writing, making and deleting children, changing who may.
    ALL = "all"


class Grant(NamedTuple):
    """One entry of a node's access control list, as ZooKeeper knows them."""

    #: How the other one proves who it is: "digest", "sasl", or "auth" for the maker itself.
    scheme: str
    id: str
    permission: Permission


#: Whoever makes the node, under every identity that it has proved.
CREATOR: Final = Grant("auth", "", Permission.ALL)

#: Where a topology's workers may read: at and below ``<directory>/<topology id>``.
_READ: Final = frozenset(
    (paths.STORMS, paths.ASSIGNMENTS, paths.CREDENTIALS, paths.LOG_CONFIGS, paths.TASKS)
)

#: Where they may do everything with ``<directory>/<topology id>`` itself, and so make nodes below
#: it. What a daemon has made there is the daemon's.
_REPORT: Final = frozenset(
    (paths.WORKERBEATS, paths.ERRORS, paths.BACKPRESSURE, paths.TASKBEATS, paths.TASKERRORS)
)


class AccessRules:
    """What is granted on a node that this process makes. Safe for threads.

    Parameters
    ----------
    authenticated
        Whether this process proves who it is; if not, all it makes is open to everyone.
    role
        What it is.
    topology_digest
        The workers' `digest_id` where no topology has one of its own; None for none.
    super_acl
        What a worker grants the daemons.
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
        """Return what is granted on a node made at `path`; ``()``: everything, to everyone.

        Parameters
        ----------
        path
            Relative to ``storm.zookeeper.root``, as everywhere: "/assignments/wc-1-1700000000".
        workers
            The `digest_id` of the topology's own workers; None: `topology_digest`.
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
    """Return what a topology's workers may do with a node that a daemon makes."""
    top = paths.first_level(path)
    if top in _READ:
        return Permission.READ
    is_a_topology_s = path.count("/") == 2
    return Permission.ALL if top in _REPORT and is_a_topology_s else None


#: Nothing is proved, and so everything is open to everyone.
OPEN: Final = AccessRules(authenticated=False)


def digest_id(payload: str) -> str:
    """Return the id by which access control lists name the user of ``user:password``.

    As ZooKeeper's ``DigestAuthenticationProvider``: the user, and the SHA-1 of the whole in base64.

    Raises
    ------
    ConfigError
        `payload` is no text, or has no colon; it is not in the message.

    Examples
    --------
    >>> digest_id("storm:secret")
    'storm:jTZg6y+meeRlzuZs+/JjMmmZIlk='
    """
    # It may come from a topology's configuration, which nobody has checked.
    user, colon, _ = payload.partition(":") if isinstance(payload, str) else ("", "", "")
    if not colon:
        raise ConfigError("a digest is of user:password, and what is configured has no colon")
    try:
        digest = hashlib.sha1(payload.encode()).digest()
    except UnicodeEncodeError:
        raise ConfigError("a digest is of text, and what is configured is not Unicode") from None
    return f"{user}:{base64.b64encode(digest).decode()}"
