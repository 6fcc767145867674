"""The times that a leading Nimbus keeps, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from stormkeeper.conf import Conf
from stormkeeper.heartbeats.liveness import Limits

#: A worker is late that has left out so many heartbeats.
_BEATS: Final = 3


@dataclass(frozen=True, slots=True)
class Times:
    """What is configured.

    Parameters
    ----------
    monitor
        Between two looks at the cluster, where nothing happens.
    launch
        What a worker has until its first heartbeat.
    limits
        From which age on a worker is late, and dead.
    kept
        How long is kept what is left of a topology that is gone.
    checkpoints
        How long its checkpoints are kept; None: for ever.
    supervisor
        How long a supervisor has been gone that counts as lost.
    """

    monitor: float
    launch: float
    limits: Limits
    kept: float
    checkpoints: float | None = None
    supervisor: float = 60.0

    @classmethod
    def from_conf(cls, conf: Conf) -> Self:
        """Read them."""
        timeout = float(conf["nimbus.task.timeout.secs"])
        late = min(_BEATS * float(conf["task.heartbeat.frequency.secs"]), timeout)
        return cls(
            monitor=float(conf["nimbus.monitor.freq.secs"]),
            launch=float(conf["nimbus.task.launch.secs"]),
            limits=Limits(late, timeout),
            kept=conf["nimbus.topology.blobstore.deletion.delay.ms"] / 1000,
            checkpoints=conf["nimbus.checkpoint.retention.secs"],
            supervisor=float(conf["nimbus.supervisor.timeout.secs"]),
        )
