"""Files by which a worker informs its supervisor: a sign of life, and the intended exit code."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stormkeeper.conf import Conf

log = logging.getLogger(__name__)

#: How often it is asked whether the first beat has come round.
_LOOK_SECS = 0.1


#: Beside the sign of life. The supervisor reads it when the worker has ended.
_ENDED = "ended"


def say_end(alive: Path | None, code: int) -> None:
    """Write the intended exit code of the worker into a file beside its sign of life.

    User code can end the process with any code. So the supervisor counts a worker as completed only
    if the worker has written this file.
    """
    if alive is None:
        return
    try:
        alive.with_name(_ENDED).write_text(str(code))
    except OSError as error:  # the cluster's state also says which queries have ended
        log.warning(
            "cannot write for the supervisor that the worker ends with exit code %d: %s",
            code,
            error,
        )


def alive_file(
    file: Path | None, conf: Conf, beaten_at: Callable[[], float | None]
) -> AliveFile | None:
    """Return what touches a file, None for None.

    It does so as often as Storm's workers tell their supervisors that they are there. A beat may
    take as long as a supervisor waits for that.
    """
    if file is None:
        return None
    return AliveFile(
        file,
        beaten_at,
        period_secs=conf["worker.heartbeat.frequency.secs"],
        stuck_secs=conf["task.heartbeat.frequency.secs"] + conf["supervisor.worker.timeout.secs"],
    )


class AliveFile:
    """A thread that touches a file every `period_secs` as long as another thread gets on.

    That the process is there would show by itself. So what counts is that its heartbeats come
    round, whether they are taken or not: a worker goes on where no Pacemaker answers.

    Parameters
    ----------
    file
        What is touched; made where it is absent.
    beaten_at
        Returns when the beating thread last came round, None before the first time.
    period_secs
        Time between two touches.
    stuck_secs
        How long the beating thread may take for one round.
    clock
        Seconds of a monotonic clock, the same as that of `beaten_at`.
    """

    def __init__(
        self,
        file: Path,
        beaten_at: Callable[[], float | None],
        *,
        period_secs: float,
        stuck_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._beaten_at = beaten_at
        self._period = period_secs
        self._stuck = stuck_secs
        self._clock = clock
        self._is_stuck = False
        self._fails = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-alive", daemon=True)

    def start(self) -> None:
        """Touch the file once the first beat has come round, and then again and again."""
        self._thread.start()

    def close(self) -> None:
        """Touch it no more."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self) -> bool:
        """Touch the file if the beating thread gets on; return whether it does."""
        beaten_at = self._beaten_at()
        if beaten_at is None:
            return False
        silence = self._clock() - beaten_at
        if silence > self._stuck:
            if not self._is_stuck:
                log.error("the heartbeats have been stuck for %.0f s", silence)
            self._is_stuck = True
            return False
        self._is_stuck = False
        try:
            self._file.touch(mode=0o600)
        except OSError as error:
            if not self._fails:
                log.warning("the sign of life %s cannot be given: %s", self._file, error)
            self._fails = True
        else:
            self._fails = False
        return True

    def _run(self) -> None:
        # Whoever waits for the first touch need not wait for a whole period more.
        pause = min(self._period, _LOOK_SECS)
        while not self._closing.wait(pause):
            if self.look():
                pause = self._period
