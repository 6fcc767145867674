"""Work that may block, one piece at a time, in a thread that lives no longer than the work.

A step of an authentication may ask Kerberos servers that do not answer. The client gives up at a
deadline, but the thread cannot be stopped: the next piece of work waits for its end. If several
pieces wait, only the newest is done.
"""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

Work = Callable[[], None]


class Background:
    """Does work elsewhere; safe for many threads.

    Parameters
    ----------
    name
        Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next: Work | None = None
        self._is_running = False

    def run(self, work: Work) -> None:
        """Do `work`; it takes the place of work that was not begun yet. Its errors are logged."""
        with self._lock:
            self._next = work
            if self._is_running:
                return
            # Only now, as there may be no more threads; it waits for the lock.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._is_running = True

    def _run(self) -> None:
        while True:
            with self._lock:
                work, self._next = self._next, None
                if work is None:
                    self._is_running = False
                    return
            try:
                work()
            except BaseException:
                # Else no later piece would ever be begun.
                log.exception("%s failed: this is a defect of Stormkeeper", self._name)
