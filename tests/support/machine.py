"""Shares the machine among the tests that run at once, with ``pytest -n``.

Every test holds a lock with all others of the run, and one with the mark ``alone``, which judges
times, holds it alone. Of those with the mark ``spark`` one runs at a time: Spark gives up on a
Python worker that is not there within 10 s, and where two start theirs on two processors that have
other things to do, it takes longer. So that nobody waits for that, one process of the run gets all
files with such tests, and shares one session among them.

In the second tier, which is for machines that have nothing else to do, these tests are two lines:
those of whole clusters, which wait most of the time, run beside the others. With three lines, Spark
gave up on Python workers when the machine was busy.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from support import tiers

#: What a file has in it that has tests of Spark.
_MARK = "pytest.mark." + "spark"

#: The lines of the second tier beside "spark", by the folders of their tests.
_LINES = {"clusters": ("cluster", "daemon", "faults", "local")}


class Schedule(LoadFileScheduling):
    """Gives each process of a run whole files, and one of them all files with tests of Spark."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return line_of(self.config, self.config.rootpath / file) or file


@cache
def has_spark(file: Path) -> bool:
    """Return whether a file has tests of Spark."""
    return _MARK in file.read_text()


def line_of(config: pytest.Config, file: Path) -> str | None:
    """Return in which line the tests of a file wait for each other; None if they have no Spark."""
    if not has_spark(file):
        return None
    folder = file.parent.relative_to(config.rootpath / "tests")
    if tiers.has_second(config):
        for line, folders in _LINES.items():
            if any(folder.is_relative_to(each) for each in folders):
                return line
    return "spark"


def put_in_order(items: list[pytest.Item]) -> None:
    """Order tests, file by file, so that few wait for each other.

    First come those of Spark, of which one process has enough for long. Last come those that want
    the machine alone, as by then nobody is in the middle of a long test.
    """
    for item in items:
        if item.get_closest_marker("spark") is not None:
            assert has_spark(item.path), f"{item.path} has the mark from elsewhere"
    alone = {item.path for item in items if item.get_closest_marker("alone") is not None}
    items.sort(key=lambda item: (item.path in alone, not has_spark(item.path)))


@contextmanager
def turn(folder: Path, *, alone: bool, line: str | None) -> Iterator[None]:
    """Wait for a turn on the machine, and have it.

    Parameters
    ----------
    folder
        Where the processes of one run keep their locks.
    alone
        Whether nobody else may have a turn meanwhile.
    line
        Of whom nobody else may; None: of no line.
    """
    with ExitStack() as stack:
        if line is not None:
            fcntl.flock(stack.enter_context((folder / f"{line}.lock").open("w")), fcntl.LOCK_EX)
        machine = stack.enter_context((folder / "machine.lock").open("w"))
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
    alone, spark = (test.get_closest_marker(mark) is not None for mark in ("alone", "spark"))
    line = line_of(test.config, test.path) if spark else None
    # pytest-xdist gives each of its processes a folder in one that is the run's.
    with turn(Path(test.config.option.basetemp).parent, alone=alone, line=line):
        yield
