"""From ``pacemaker.auth.method`` to the mechanism: which one, with whose secrets, and for whom."""

from collections.abc import Callable

from stormkeeper.conf import Conf
from stormkeeper.sasl.mechanism import Mechanism


def server_mechanism(conf: Conf) -> Callable[[], Mechanism] | None:
    """Return what makes the server's half for one connection; None with the method NONE.

    Reads the JAAS file once; call it again to read it anew.

    Raises
    ------
    ConfigError
        When the JAAS file, or what must stand in it, is missing or wrong.
    """
    if conf["pacemaker.auth.method"] == "NONE":
        return None
    raise NotImplementedError


def client_mechanism(conf: Conf, host: str) -> Callable[[], Mechanism] | None:
    """Return what makes the client's half for one connection to `host`; None with NONE.

    Raises
    ------
    ConfigError
        When the JAAS file, or what must stand in it, is missing or wrong.
    """
    del host
    return server_mechanism(conf)


def authorised(conf: Conf, authorization_id: str) -> bool:
    """Return whether who has authenticated may read."""
    return conf["pacemaker.auth.method"] != "KERBEROS" and bool(authorization_id)
