"""Finds threads and file descriptors that code under test left behind."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stormkeeper.local import reservations
from support.waiting import until


def _descriptors() -> set[tuple[str, str]]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists the others is gone
            found.add((descriptor.name, str(descriptor.readlink())))
    return found


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Fail if more threads or descriptors are open at the end than at the beginning."""
    threads, descriptors = set(threading.enumerate()), _descriptors()
    yield
    until(lambda: not [t for t in threading.enumerate() if t not in threads])
    # Reserved ports are kept until the process ends.
    kept = {str(holder.fileno()) for holder in reservations._holders}
    left = {one for one in _descriptors() - descriptors if one[0] not in kept}
    assert not left, f"descriptors left open: {left}"
