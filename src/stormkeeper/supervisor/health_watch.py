"""Checks the machine at intervals: the operator's own checks, and whether its disks take files.

A machine that fails a check gets no new work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from stormkeeper.conf import Conf
from stormkeeper.daemon.disk import find_fault
from stormkeeper.supervisor import health
from stormkeeper.supervisor.health import FailedCheck

log = logging.getLogger(__name__)

#: Time between two rounds of checks, in seconds, as in Storm.
PERIOD_SECS: Final = 30.0

#: How long the thread may take to end, in seconds; checks that run then end by themselves.
_END_SECS: Final = 1.0


class HealthWatch:
    """Runs the checks of a configuration.

    Parameters
    ----------
    conf
        Names the folder of the operator's checks.
    folders
        Folders in which workers and the supervisor make files.
    tell
        Takes the result of each round: why the machine is unfit for new work, None if it is fit.
    """

    def __init__(
        self, conf: Conf, folders: Sequence[Path], tell: Callable[[str | None], None]
    ) -> None:
        self._conf = conf
        self._folders = folders
        self._tell = tell
        self._reason: str | None = None
        self._is_full = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread goes on."""
        return self._thread.is_alive()

    def look(self) -> None:
        """Run the checks once.

        Raises
        ------
        ConfigError
            Their folder begins with the home of a user who has none.
        """
        reason = self._unfit()
        if reason != self._reason:
            if reason is None:
                log.info("this machine passes its health checks again, and takes new work")
            else:
                log.warning("this machine takes no new work: %s", reason)
        self._reason = reason
        self._tell(reason)

    def _unfit(self) -> str | None:
        full = [find_fault(each, had_fault=self._is_full) for each in self._folders]
        self._is_full = any(full)
        disk = "; ".join(dict.fromkeys(filter(None, full)))
        # The operator's checks need the temporary folder.
        return disk or in_words(health.check(self._conf))

    def start(self) -> None:
        """Go on with it."""
        self._thread.start()

    def close(self) -> None:
        """Begin no round any more."""
        self._closed.set()
        self._thread.join(_END_SECS)

    def _run(self) -> None:
        while not self._closed.wait(PERIOD_SECS):
            self.look()


def in_words(failed: Iterable[FailedCheck]) -> str | None:
    """Return why a machine is unfit; None where no check has failed.

    Examples
    --------
    >>> in_words([FailedCheck("disk.sh", "it ended with exit code 1: / is full")])
    'the health check disk.sh failed: it ended with exit code 1: / is full'
    """
    said = [f"the health check {each.name} failed: {each.reason}" for each in failed]
    return "; ".join(said) or None
