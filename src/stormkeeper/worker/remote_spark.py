"""Spark on other machines: default settings of a driver, the code that executors get, its errors.

``spark.master`` names where a session's tasks run: with ``local[N]`` in the driver's own JVM, with
any other master in executors, which are processes on other machines. The settings are for Spark's
standalone master (``spark://HOST:PORT``). The Python of executors and the topology's code concern
all of these masters.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from stormkeeper.conf import Conf
from stormkeeper.conf.address import Address, hostname
from stormkeeper.errors import ConfigError, EngineError
from stormkeeper.names import bracketed
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.writing import PLAIN, TIME
from stormkeeper.worker.job import UnpackedPackage
from stormkeeper.worker.worker_conf import slot_cores

_STANDALONE: Final = "spark://"

#: A standalone master's port, where none is named.
_PORT: Final = 7077

#: How long one master may take to accept a connection, in seconds.
_CONNECT_SECS: Final = 3.0

#: Name of the archive of a package's code. Spark wants each file that it is sent to have its own.
_ARCHIVE: Final = "stormkeeper-topology-code.zip"

#: The attributes of a folder in a zip: its mode, and what DOS calls a folder.
_FOLDER: Final = (0o040755 << 16) | 0x10

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


def write_code(package: UnpackedPackage, folder: Path) -> Path:
    """Write the code of a package to an archive of modules in a folder, and return where it is.

    The same package makes the same bytes. It has all that the package says that it has, and nothing
    that was put beside it since, such as Python's caches.

    Raises
    ------
    OSError
        The disk does not take it, or the package is not as it says.
    """
    prefix = manifest.CODE
    names = sorted(
        file.name.removeprefix(prefix)
        for file in package.manifest.files
        if file.name.startswith(prefix)
    )
    place = folder / _ARCHIVE
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        # Python finds a package without an __init__.py only in a folder that is an entry.
        for above in sorted({str(up) for name in names for up in _folders(name)}):
            entry = zipfile.ZipInfo(f"{above}/", TIME)
            entry.external_attr = _FOLDER
            archive.writestr(entry, b"")
        for name in names:
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = PLAIN << 16
            archive.writestr(entry, (package.code / name).read_bytes())
    return place


def _folders(name: str) -> list[PurePosixPath]:
    return [*PurePosixPath(name).parents][:-1]


log = logging.getLogger(__name__)

#: How long there may be no executor, once there was one, in seconds. Machines of executors may be
#: started anew one after another meanwhile.
LOST_SECS: Final = 20.0

#: How long a driver may wait for an executor before the worker says so, in seconds. An executor of
#: a cluster with free cores takes 2 to 5 s to register.
WAIT_SECS: Final = 15.0

_LOOK_SECS: Final = 1.0


class _Absence:
    """For how long there has been no executor: pure.

    Whoever never had one may wait for others to give cores or memory back. Whoever had some and
    lost all of them may wait in vain: a driver registers with a standalone master once, and a
    master that was started anew knows nothing of it, and ends its executors.
    """

    def __init__(self) -> None:
        #: Whether there ever was one.
        self.had_one = False
        self._since: float | None = None

    def seen(self, executors: int, now: float) -> float:
        """Take in how many there are; return for how long there has been none, in seconds.

        Parameters
        ----------
        executors
            How many there are.
        now
            The time, of any clock that never goes back, in seconds.
        """
        if executors:
            self.had_one, self._since = True, None
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since


class ExecutorWatch:
    """Looks after the executors of a session, on a thread of its own.

    A call to a JVM has no deadline, so nobody else makes this one.

    Parameters
    ----------
    count
        Returns how many executors there are; raises Py4JError when nobody can tell any more.
    wanted
        Returns what the driver waits for, in words. Called if there is no executor for `wait_secs`.
    limit_secs
        For how long there may be none, once there was one.
    look_secs
        The time between two looks.
    """

    def __init__(
        self,
        count: Callable[[], int],
        wanted: Callable[[], str],
        *,
        limit_secs: float = LOST_SECS,
        wait_secs: float = WAIT_SECS,
        look_secs: float = _LOOK_SECS,
    ) -> None:
        self._count = count
        self._wanted = wanted
        self._limit_secs = limit_secs
        self._wait_secs = wait_secs
        self._look_secs = look_secs
        #: What the driver waits for; None while it has executors.
        self.waiting: str | None = None
        self._lost = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="executor-watch", daemon=True).start()

    @property
    def has_lost(self) -> bool:
        """Whether there was none for too long."""
        return self._lost.is_set()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look(self) -> None:
        absence = _Absence()
        while not self._closed.wait(self._look_secs):
            try:
                count = self._count()
            except (Py4JError, OSError):
                return  # whoever looks after the JVM says why
            secs = absence.seen(count, time.monotonic())
            if absence.had_one and secs >= self._limit_secs:
                self._lost.set()
                return
            if not secs:
                self.waiting = None
            elif secs >= self._wait_secs and self.waiting is None:
                self.waiting = self._wanted()
                log.warning("%s", self.waiting)


def watch(session: SparkSession, values: Mapping[str, Any]) -> ExecutorWatch | None:
    """Look after the executors of a session.

    Only a standalone master's are looked after, and only where they are to stay: with
    ``spark.dynamicAllocation.enabled`` Spark itself ends those that have nothing to do.

    Parameters
    ----------
    session
        It has just been started.
    values
        What with.
    """
    if not is_standalone(values.get("spark.master")):
        return None
    context = session.sparkContext
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    tracker = context._jsc.sc().statusTracker()
    # The driver is one of those that Spark counts.
    return ExecutorWatch(
        lambda: len(tracker.getExecutorInfos()) - 1, lambda: wanted(context.getConf().get)
    )


def wanted(conf: Callable[[str, str], str | None]) -> str:
    """Say what a driver waits for that has no executors; pure.

    Parameters
    ----------
    conf
        Returns the value of a setting of Spark, or what it is given as the default.
    """
    return (
        f"no executor has come from spark.master={conf('spark.master', '')}: others have its cores"
        f" or memory (this driver asks for spark.cores.max={conf('spark.cores.max', 'all')} and"
        f" spark.executor.memory={conf('spark.executor.memory', '1g')}), or executors cannot reach"
        f" the driver at spark.driver.host={conf('spark.driver.host', '')}; the logs of executors"
        " are in the work folders of Spark's workers"
    )
