"""The event loop of clients: one asyncio loop in one daemon thread per client or pool."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from stormkeeper.daemon.periodic import in_thread
from stormkeeper.errors import PacemakerUnavailableError

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A callback may delay the thread's end.
_JOIN_SECS: Final = 5.0


class ClientEventLoop:
    """An event loop in a daemon thread, started by the first request; thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = asyncio.Event()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def start(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, started if need be.

        Raises `PacemakerUnavailableError` in a fork of the process or without threads or files.
        """
        if os.getpid() != self._pid:
            # A lost thread may hold the lock.
            raise PacemakerUnavailableError(
                f"{self._name} was made in process {self._pid} and cannot be used in its fork"
                f" {os.getpid()}; make a new one there"
            )
        with self._lock:
            if self._loop is None:
                self._loop = self._new_loop()
            return self._loop

    def call(self, step: Callable[..., object], *arguments: object) -> None:
        """Call `step` in the loop's thread, unless the loop is closed."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(step, *arguments)

    def close(self) -> None:
        """End the thread, also from a callback. Idempotent."""
        thread = self._thread
        if thread is None:
            return
        self.call(self._stop.set)
        if not self.is_current:
            thread.join(_JOIN_SECS)
            if thread.is_alive():
                log.warning("Thread %s did not end within %g s", self._name, _JOIN_SECS)

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        try:
            runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
            loop = runner.get_loop()
            thread = threading.Thread(
                target=self._run, args=(runner,), name=self._name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                runner.close()
                raise
        except (OSError, RuntimeError) as error:
            raise PacemakerUnavailableError(
                f"{self._name} has no thread, as the system does not give what it needs now:"
                f" {error}"
            ) from error
        self._thread = thread
        return loop

    def _run(self, runner: asyncio.Runner) -> None:
        with runner:
            runner.run(self._stop.wait())


def run_in_thread(work: Callable[[], T], name: str) -> "asyncio.Future[T]":
    """Run work as `in_thread` does."""
    future = asyncio.wrap_future(in_thread(work, name))
    # The error of an abandoned attempt counts as retrieved.
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return future
