"""By which name the others of a cluster know a machine."""

import socket

from stormkeeper.conf.layers import Conf


def hostname(conf: Conf) -> str:
    """Return the name by which the others know this machine.

    It is ``storm.local.hostname``, or else what the system calls itself. The name service is not
    asked: a daemon starts without it, too.
    """
    configured: str | None = conf["storm.local.hostname"]
    return configured or socket.gethostname()
