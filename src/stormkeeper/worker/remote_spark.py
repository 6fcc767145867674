"""Spark on other machines: a driver's settings, the code and errors of executors, and their loss.

With ``spark.master=local[N]`` tasks run in the driver's JVM, with any other master in executors on
other machines. The settings here are for Spark's standalone master (``spark://HOST:PORT``).
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
from stormkeeper.topology.package.archive import PLAIN, TIME
from stormkeeper.worker.job import UnpackedPackage
from stormkeeper.worker.worker_conf import slot_cores

_STANDALONE: Final = "spark://"

_PORT: Final = 7077

_CONNECT_SECS: Final = 3.0

#: Name of the archive of a package's code. Spark wants each file that it is sent to have its own.
_ARCHIVE: Final = "stormkeeper-topology-code.zip"

#: The attributes of a folder in a zip: its mode, and what DOS calls a folder.
_FOLDER: Final = (0o040755 << 16) | 0x10

PYTHON: Final = "spark.pyspark.python"


def is_remote(master: object) -> bool:
    """Return whether tasks run outside the driver's process."""
    return master is not None and not str(master).startswith("local")


def is_standalone(master: object) -> bool:
    """Return whether the master is Spark's standalone master."""
    return str(master).startswith(_STANDALONE)


def defaults(conf: Conf, cores: int) -> dict[str, str]:
    """Return the default settings of a driver for a standalone master.

    The driver takes its slot's cores (of `supervisor.cpu.capacity`, if set): without a limit the
    first driver would get all cores of the cluster. It listens on all addresses, as its name in the
    cluster may be a loopback address on the machine itself.
    """
    capacity = conf["supervisor.cpu.capacity"]
    of_supervisor = cores if capacity is None else int(capacity / 100)
    return {
        "spark.cores.max": str(slot_cores(conf, of_supervisor)),
        "spark.driver.host": bracketed(hostname(conf)),
        "spark.driver.bindAddress": "0.0.0.0",
    }


def check_master(master: str) -> None:
    """Raise `EngineError` if none of the named standalone masters accepts a connection.

    Spark itself tries for a minute and then fails with an unrelated error. Other kinds of masters
    are left to Spark.
    """
    if not is_standalone(master):
        return
    refusals = []
    for named in master.removeprefix(_STANDALONE).split(","):
        try:
            address = Address.parse(named, _PORT)
        except ConfigError:
            return  # Spark reports the fault
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
        # Spark gives up after a minute, and then fails with an unrelated error.
        re.compile(r"Spark did not start .*stopped SparkContext|All masters are unresponsive"),
        "no master of spark.master={master} took the driver in: is what listens there a Spark"
        " master, of this release?",
    ),
)


def remedy(text: str, values: Mapping[str, Any]) -> str | None:
    """Return the remedy of a failure on executors, by text; None for any other failure.

    `values` are the settings with which Spark was started.
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
    """Write the code of a package to an archive of modules in a folder; return the archive's path.

    The archive has the files of the manifest alone, and always the same bytes. Raises `OSError`.
    """
    prefix = manifest.CODE
    names = sorted(
        file.name.removeprefix(prefix)
        for file in package.manifest.files
        if file.name.startswith(prefix)
    )
    place = folder / _ARCHIVE
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        # Python finds a package without __init__.py only if its folder is an entry.
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

#: Time without executors, after there were some, that ends the driver, in seconds. Meanwhile the
#: machines of executors may restart one after another.
LOST_SECS: Final = 20.0

#: Time without executors before the worker reports it, in seconds. With free cores an executor
#: registers within 2 to 5 s.
WAIT_SECS: Final = 15.0

_LOOK_SECS: Final = 1.0


class ExecutorAbsence:
    """The time since the last executor.

    A driver that lost all executors may wait in vain, unlike one that never had any: it registers
    with a standalone master once, and a restarted master does not know it.
    """

    def __init__(self) -> None:
        self.had_one = False
        self._since: float | None = None

    def update(self, executors: int, now: float) -> float:
        """Record the number of executors; return the seconds without any."""
        if executors:
            self.had_one, self._since = True, None
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since


class ExecutorWatch:
    """Watches the executors of a session from a separate thread, as JVM calls have no deadline.

    After `wait_secs` without an executor, `wanted` gives the text for `waiting`; after `limit_secs`
    without those that there were, `has_lost` is true.
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
        self.waiting: str | None = None
        self._lost = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="executor-watch", daemon=True).start()

    @property
    def has_lost(self) -> bool:
        """Whether all executors were lost for `limit_secs`."""
        return self._lost.is_set()

    def close(self) -> None:
        """End the watch."""
        self._closed.set()

    def _look(self) -> None:
        absence = ExecutorAbsence()
        while not self._closed.wait(self._look_secs):
            try:
                count = self._count()
            except (Py4JError, OSError):
                return  # the worker notices the end of the JVM elsewhere
            secs = absence.update(count, time.monotonic())
            if absence.had_one and secs >= self._limit_secs:
                self._lost.set()
                return
            if not secs:
                self.waiting = None
            elif secs >= self._wait_secs and self.waiting is None:
                self.waiting = self._wanted()
                log.warning("%s", self.waiting)


def watch(session: SparkSession, values: Mapping[str, Any]) -> ExecutorWatch | None:
    """Watch the executors of a new session that was started with these settings.

    Only executors of a standalone master are watched, and none with
    ``spark.dynamicAllocation.enabled``, with which Spark ends idle executors.
    """
    if not is_standalone(values.get("spark.master")):
        return None
    context = session.sparkContext
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return None
    tracker = context._jsc.sc().statusTracker()
    # Spark counts the driver, too.
    return ExecutorWatch(
        lambda: len(tracker.getExecutorInfos()) - 1, lambda: wanted(context.getConf().get)
    )


def wanted(conf: Callable[[str, str], str | None]) -> str:
    """Describe why a driver has no executors; `conf` returns a setting of Spark, or a default."""
    return (
        f"no executor has come from spark.master={conf('spark.master', '')}: others have its cores"
        f" or memory (this driver asks for spark.cores.max={conf('spark.cores.max', 'all')} and"
        f" spark.executor.memory={conf('spark.executor.memory', '1g')}), or executors cannot reach"
        f" the driver at spark.driver.host={conf('spark.driver.host', '')}; the logs of executors"
        " are in the work folders of Spark's workers"
    )
