"""Notices that a driver has no executors, and that it has lost all of them for good."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from stormkeeper.worker.remote import is_standalone

log = logging.getLogger(__name__)

#: How long there may be no executor, once there was one, in seconds. Machines of executors may be
#: started anew one after another meanwhile.
LOST_SECS: Final = 20.0

#: How long a driver may wait for its first executor before the log says so, in seconds.
_WAIT_SECS: Final = 60.0

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
    on_wait
        Called once if the first one has not come in `wait_secs`.
    limit_secs
        For how long there may be none, once there was one.
    look_secs
        The time between two looks.
    """

    def __init__(
        self,
        count: Callable[[], int],
        on_wait: Callable[[], None],
        *,
        limit_secs: float = LOST_SECS,
        wait_secs: float = _WAIT_SECS,
        look_secs: float = _LOOK_SECS,
    ) -> None:
        self._count = count
        self._on_wait = on_wait
        self._limit_secs = limit_secs
        self._wait_secs = wait_secs
        self._look_secs = look_secs
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
        absence, said = Absence(), False
        while not self._closed.wait(self._look_secs):
            try:
                count = self._count()
            except (Py4JError, OSError):
                return  # whoever looks after the JVM says why
            secs = absence.seen(count, time.monotonic())
            if absence.had_one and secs >= self._limit_secs:
                self._lost.set()
                return
            if not absence.had_one and secs >= self._wait_secs and not said:
                said = True
                self._on_wait()


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
    return ExecutorWatch(lambda: len(tracker.getExecutorInfos()) - 1, lambda: _say(context))


def _say(context: SparkContext) -> None:
    conf = context.getConf()
    log.warning(
        "no executor has come yet from spark.master=%s: others have its cores or memory"
        " (this driver asks for spark.cores.max=%s, with spark.executor.memory=%s), or executors"
        " cannot reach it at spark.driver.host=%s; what they say is in the work folders of Spark's"
        " workers",
        context.master,
        conf.get("spark.cores.max"),
        conf.get("spark.executor.memory", "1g"),
        conf.get("spark.driver.host"),
    )
