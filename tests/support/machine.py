"""Lets tests that judge times have the machine to themselves, when several run at once.

With ``pytest -n``, every test holds a lock with all others of the run, and one with the mark
``alone`` holds it alone.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Wait for a turn on the machine, and have it.

    Parameters
    ----------
    folder
        Where the processes of one run keep their locks.
    alone
        Whether nobody else may have a turn meanwhile.
    """
    with (folder / "machine.lock").open("w") as machine:
        # Whoever waits lets nobody pass: else one who wants to be alone might never be.
        with (folder / "queue.lock").open("w") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@contextmanager
def turn_of(test: pytest.Item) -> Iterator[None]:
    """Wait for the turn of a test, if others run beside it, and have it."""
    if not hasattr(test.config, "workerinput"):  # nobody else is there
        yield
        return
    alone = test.get_closest_marker("alone") is not None
    # pytest-xdist gives each of its processes a folder in one that is the run's.
    with turn(Path(test.config.option.basetemp).parent, alone=alone):
        yield
