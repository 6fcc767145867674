"""The threads in which handlers run, and the calls that wait for one."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)

#: Bytes of the messages whose handlers run at a time, beyond the first: what is read out of a
#: message may take forty times its bytes.
MAX_COST: Final = 8 * 1024 * 1024

#: Bytes of a message that takes too little to wait for that: handlers may hold all of the above for
#: minutes, as submissions that wait for copies do, and nobody else is to notice.
CHEAP: Final = 16 * 1024

#: Bytes of the messages that wait, beyond the first: whoever sent them may be gone.
MAX_WAITING_COST: Final = 64 * 1024 * 1024


class Workers:
    """Runs calls in at most so many threads, which are started as they are needed.

    Calls begin in their order, but that one which is too dear for now lets others pass. The threads
    are daemons: a handler that never returns keeps no process from its end.

    Parameters
    ----------
    threads
        How many at most.
    most_waiting
        Calls that may wait for one.
    name
        Of the threads.
    """

    def __init__(self, threads: int, most_waiting: int, name: str) -> None:
        self._most = threads
        self._most_waiting = most_waiting
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._threads: list[threading.Thread] = []
        self._is_stopped = False
        #: Threads that carry out a call, and the bytes of what they do and of what waits.
        self.busy = 0
        self._cost = 0
        self._waiting_cost = 0

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    def submit(self, work: Callable[[], None], cost: int) -> bool:
        """Have a call carried out; return whether that will be.

        Parameters
        ----------
        work
            Carries it out, and raises nothing.
        cost
            The bytes of its message.
        """
        with self._changed:
            if self._is_stopped or len(self._waiting) >= self._most_waiting:
                return False
            if self._waiting and self._waiting_cost + cost > MAX_WAITING_COST:
                return False
            if self.busy + len(self._waiting) >= len(self._threads) and not self._start_one():
                return False
            self._waiting.append((cost, work))
            self._waiting_cost += cost
            self._changed.notify()
            return True

    def stop(self) -> None:
        """Begin nothing more; what is under way goes on."""
        with self._changed:
            self._is_stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def _start_one(self) -> bool:
        """Start a thread if there may be one more; return whether there is any."""
        if len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more, for now
                _log.error("no thread to carry out calls: %s", error)
            else:
                self._threads.append(thread)
        return bool(self._threads)

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            cost, work = taken
            try:
                work()
            except BaseException:  # whatever it is, the next call has this thread
                _log.exception("a call was not carried out: this is a defect of Stormkeeper")
            # Or what it holds would be held until the next call.
            del work, taken
            with self._changed:
                self.busy -= 1
                self._cost -= cost
                if self._waiting:
                    # Something was too dear.
                    self._changed.notify_all()

    def _take(self) -> tuple[int, Callable[[], None]] | None:
        with self._changed:
            while not self._is_stopped:
                for place, (cost, work) in enumerate(self._waiting):
                    if cost <= CHEAP or not self._cost or self._cost + cost <= MAX_COST:
                        del self._waiting[place]
                        self._waiting_cost -= cost
                        self.busy += 1
                        self._cost += cost
                        return cost, work
                self._changed.wait()
            return None
