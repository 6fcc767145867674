"""Spark on other machines: what its driver is told where nobody says so, and what its errors mean.

``spark.master`` names where a session's tasks run. With ``local[N]`` it is the driver's own JVM;
with any other, processes on other machines: executors. Of these masters, Spark's own standalone one
(``spark://HOST:PORT``) is what the rules here are for. The Python of executors and the topology's
code are the same matter with all of them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Any, Final

from stormkeeper.conf import Conf
from stormkeeper.conf.address import Address, hostname
from stormkeeper.errors import ConfigError, EngineError
from stormkeeper.names import bracketed
from stormkeeper.worker.sizes import slot_cores

_STANDALONE: Final = "spark://"

#: A standalone master's port, where none is named.
_PORT: Final = 7077

#: How long one master may take to accept a connection, in seconds.
_CONNECT_SECS: Final = 3.0

#: The setting that names the Python of executors.
PYTHON: Final = "spark.pyspark.python"


def is_remote(master: object) -> bool:
    """Return whether tasks run in other processes than the driver's."""
    return master is not None and not str(master).startswith("local")


def is_standalone(master: object) -> bool:
    """Return whether it is Spark's own standalone master."""
    return str(master).startswith(_STANDALONE)


def defaults(conf: Conf, cores: int) -> dict[str, str]:
    """Return what a driver tells a standalone master where nobody says anything else.

    - It takes no more cores than its slot has of this machine (`supervisor.cpu.capacity`, where
      that says what the supervisor has of it). Without a limit the first driver would get all cores
      of the cluster, and the second would wait for ever.
    - Executors come back to it by the name that this machine has in the cluster. It listens on all
      addresses, as that name may be a loopback address on the machine itself.

    Parameters
    ----------
    conf
        The configuration.
    cores
        What this machine has.
    """
    capacity = conf["supervisor.cpu.capacity"]
    of_supervisor = cores if capacity is None else int(capacity / 100)
    return {
        "spark.cores.max": str(slot_cores(conf, of_supervisor)),
        "spark.driver.host": bracketed(hostname(conf)),
        "spark.driver.bindAddress": "0.0.0.0",
    }


def check_master(master: str) -> None:
    """Look whether one of the standalone masters that are named accepts connections.

    Spark itself looks for a minute, and then fails with whatever it comes across next. Any other
    master than a standalone one is left to Spark.

    Raises
    ------
    EngineError
        None does, within a few seconds each.
    """
    if not is_standalone(master):
        return
    refusals = []
    for named in master.removeprefix(_STANDALONE).split(","):
        try:
            address = Address.parse(named, _PORT)
        except ConfigError:
            return  # Spark says what is wrong with it
        try:
            socket.create_connection((address.host, address.port), _CONNECT_SECS).close()
        except OSError as error:
            refusals.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise EngineError(
        f"no Spark master answers at spark.master={master} ({'; '.join(refusals)}): start it, or"
        " name one that runs"
    )


#: What the text of a failure on executors says, and what is to be done about it.
_REMEDIES: Final = (
    (
        re.compile(r'Cannot run program "([^"]+)"'),
        "executors of spark.master={master} have no Python at {0}: name with spark.pyspark.python"
        " one that is on all of their machines, of this version, with PySpark, Stormkeeper and what"
        " the topology requires",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH"),
        "executors of spark.master={master} run another Python than this worker: name with"
        " spark.pyspark.python one of the same version that is on all of their machines",
    ),
    (
        re.compile(r"No module named '([^']+)'"),
        "where it is missing on executors of spark.master={master}, install it there, in the Python"
        " that spark.pyspark.python names",
    ),
    (
        re.compile(r"Master removed our application"),
        "the master of spark.master={master} gave the driver up, as no executor of it would start:"
        " the logs of Spark's workers say why",
    ),
    (
        # Spark gives up after a minute, and then fails with whatever it comes across next.
        re.compile(r"Spark did not start .*stopped SparkContext|All masters are unresponsive"),
        "no master of spark.master={master} took the driver in: is what listens there a Spark"
        " master, of this release?",
    ),
)


def remedy(text: str, values: Mapping[str, Any]) -> str | None:
    """Return what is to be done about a failure that executors brought about; None if they did not.

    Parameters
    ----------
    text
        What the failure says.
    values
        What Spark was started with.
    """
    master = values.get("spark.master")
    if not is_remote(master):
        return None
    for sign, what in _REMEDIES:
        found = sign.search(text)
        if found is not None:
            return what.format(*found.groups(), master=master)
    return None
