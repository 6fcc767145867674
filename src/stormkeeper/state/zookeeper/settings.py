"""How to reach a ZooKeeper ensemble, out of configuration (``storm.zookeeper.*``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from stormkeeper.conf import Address
from stormkeeper.errors import ConfigError
from stormkeeper.state.access import Role
from stormkeeper.state.zookeeper.security import Security


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach an ensemble, as whom, and how long to try; times in seconds."""

    servers: tuple[Address, ...]
    #: Everything is kept below this path.
    root: str = "/"
    session_timeout_secs: float = 20.0
    #: Longest that a call, or connecting, may take.
    call_timeout_secs: float = 15.0
    #: How often a call that may be repeated is, after a lost connection, and the waits between:
    #: each twice the one before, up to the ceiling.
    retry_times: int = 5
    retry_interval_secs: float = 1.0
    retry_ceiling_secs: float = 30.0
    security: Security = field(default_factory=Security)
    #: Whether the root is made where it is absent.
    make_root: bool = True

    @classmethod
    def from_conf(
        cls, conf: Mapping[str, Any], role: Role = Role.SERVER, *, make_root: bool = True
    ) -> Self:
        """Read ``storm.zookeeper.*``; an entry of ``servers`` may be ``host`` or ``host:port``.

        Parameters
        ----------
        conf
            The configuration.
        role
            Whose credentials are used, and whose rules hold for what is made.
        make_root
            Whether the root may be made. A worker that authenticates never makes it: it would
            be the worker's own.

        Raises
        ------
        ConfigError
            An entry of ``storm.zookeeper.servers`` is no address, or has no port while
            ``storm.zookeeper.port`` is 0; or as `Security.from_conf`.
        """
        port = conf["storm.zookeeper.port"]
        servers = tuple(Address.parse(entry, port) for entry in conf["storm.zookeeper.servers"])
        for server in servers:
            if server.port == 0:
                raise ConfigError(
                    f"the ZooKeeper server {server.host} has no port and storm.zookeeper.port is 0"
                )
        security = Security.from_conf(conf, role)
        return cls(
            servers=servers,
            root=conf["storm.zookeeper.root"],
            session_timeout_secs=conf["storm.zookeeper.session.timeout"] / 1000,
            call_timeout_secs=conf["storm.zookeeper.connection.timeout"] / 1000,
            retry_times=conf["storm.zookeeper.retry.times"],
            retry_interval_secs=conf["storm.zookeeper.retry.interval"] / 1000,
            retry_ceiling_secs=conf["storm.zookeeper.retry.intervalceiling.millis"] / 1000,
            security=security,
            make_root=make_root and not (role is Role.WORKER and security.authenticated),
        )
