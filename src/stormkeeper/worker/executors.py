"""Notices that a driver has no executors, and that it has lost all of them for good."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from stormkeeper.worker.remote import is_standalone

log = logging.getLogger(__name__)

#: How long there may be no executor, once there was one, in seconds. Machines of executors may be
#: started anew one after another meanwhile.
LOST_SECS: Final = 20.0

#: How long a driver may wait for an executor before the worker says so, in seconds. An executor of
#: a cluster with free cores takes 2 to 5 s to register.
WAIT_SECS: Final = 15.0

_LOOK_SECS: Final = 1.0


class Absence:
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
        absence = Absence()
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
