"""How long each step of a slot's life may take, in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: How long a worker that is asked to end takes at most, to finish its batches: `END_SECS` of
#: `worker.process`, which is above this room.
WORKER_END_SECS: Final = 27.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The limits of each step.

    Parameters
    ----------
    start
        From the launch to the first sign of life.
    silence
        Between two signs of life.
    grace
        From the question to end to the use of force.
    linger
        From the end of the worker's own process to the use of force against what it has left: a JVM
        ends about two seconds after the Python that started it.
    kill_again
        Between two uses of force, as what is killed may have started others meanwhile.
    stuck
        From the first use of force until it is reported that even that did not help, and between
        two reports.
    code, environment
        For fetching the code and for making the environment, which `environments` ends before.
    first_retry, last_retry
        Before what could not be prepared is tried again: at first, and at most. Each wait is twice
        the one before.
    first_delay, last_delay
        The same before a worker is started again. The first crash is followed by no wait.
    stable
        How long a worker must have run for its earlier crashes not to count any more.
    """

    start: float = 120.0
    silence: float = 30.0
    grace: float = 30.0
    linger: float = 5.0
    kill_again: float = 1.0
    stuck: float = 120.0
    code: float = 600.0
    environment: float = 2100.0
    first_retry: float = 3.0
    last_retry: float = 60.0
    first_delay: float = 1.0
    last_delay: float = 60.0
    stable: float = 300.0

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> "Times":
        """Return the times of a configuration.

        Storm's key for the wait before the use of force is three seconds by default, in which no
        batch is done. So it comes on top of what our workers need.
        """
        return cls(
            start=conf["supervisor.worker.start.timeout.secs"],
            silence=conf["supervisor.worker.timeout.secs"],
            grace=WORKER_END_SECS + conf["supervisor.worker.shutdown.sleep.secs"],
        )

    def retry(self, failures: int) -> float:
        """Return the wait after this many failures to prepare in a row, from 1."""
        return _doubled(self.first_retry, failures - 1, self.last_retry)

    def delay(self, crashes: int) -> float:
        """Return the wait after this many crashes in a row, from 1."""
        return 0.0 if crashes < 2 else _doubled(self.first_delay, crashes - 2, self.last_delay)


def _doubled(first: float, times: int, most: float) -> float:
    # 2.0**1024 is too large for a float.
    return min(most, first * 2.0 ** min(times, 60))
