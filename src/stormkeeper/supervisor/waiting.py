"""Waits at one place for a word of another thread, the ends of processes, and the next time."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket

from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.process_table import ProcessId


class Waiting:
    """For one thread, which waits; any other may wake it.

    The end of a process that is followed is noticed at once, whoever has started it.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ)
        self._descriptors: dict[str, int] = {}

    def wake(self) -> None:
        """Have the thread wait no longer, or not at all the next time."""
        # One that is full wakes all the same; one that is closed has nobody to wake.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def follow(self, name: str, process: ProcessId) -> None:
        """Have `wait` tell when a process ends; one that has ended by now is not followed."""
        if name not in self._descriptors:
            descriptor = process_table.descriptor_of(process)
            if descriptor is not None:
                self._descriptors[name] = descriptor
                self._selector.register(descriptor, selectors.EVENT_READ, name)

    def follows(self, name: str) -> bool:
        """Return whether a process of that name is followed."""
        return name in self._descriptors

    def forget(self, name: str) -> None:
        """Follow a process no more; one that is not followed is fine."""
        descriptor = self._descriptors.pop(name, None)
        if descriptor is not None:
            self._selector.unregister(descriptor)
            os.close(descriptor)

    def wait(self, timeout_secs: float) -> set[str]:
        """Wait for whatever comes first; return the names of processes that have ended.

        Those are not followed any more.
        """
        ended: set[str] = set()
        for key, _ in self._selector.select(max(0.0, timeout_secs)):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._reader.recv(4096)
            else:
                ended.add(key.data)
        for name in ended:
            self.forget(name)
        return ended

    def close(self) -> None:
        """Follow nothing any more."""
        for name in list(self._descriptors):
            self.forget(name)
        self._selector.close()
        self._reader.close()
        self._writer.close()
