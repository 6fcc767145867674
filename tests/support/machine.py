"""Shares the machine among the tests that run at once, with ``pytest -n``.

Every test holds a lock with all others of the run, and one with the mark ``alone``, which judges
times, holds it alone. Of those with the mark ``spark`` one runs at a time: Spark gives up on a
Python worker that is not there within 10 s, and where two start theirs on two processors that have
other things to do, it takes longer.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

#: The part of a run in which tests of Spark begin; one that came last would be waited for.
_SPARK_UNTIL: Final = 0.8


def put_in_order(items: list[pytest.Item]) -> None:
    """Order tests, file by file, so that few wait for each other.

    Files of Spark's tests are spread, so that whoever has none runs others meanwhile. Last come
    those that want the machine alone, as by then nobody is in the middle of a long test.
    """
    files = list(dict.fromkeys(item.path for item in items))
    marked = {
        mark: {item.path for item in items if item.get_closest_marker(mark) is not None}
        for mark in ("spark", "alone")
    }
    spark = [file for file in files if file in marked["spark"]]
    others = [file for file in files if file not in marked["spark"]]
    place = {file: _SPARK_UNTIL * at / len(spark) for at, file in enumerate(spark)}
    place |= {file: at / len(others) for at, file in enumerate(others)}
    items.sort(key=lambda item: (item.path in marked["alone"], place[item.path]))


@contextmanager
def turn(folder: Path, *, alone: bool, spark: bool) -> Iterator[None]:
    """Wait for a turn on the machine, and have it.

    Parameters
    ----------
    folder
        Where the processes of one run keep their locks.
    alone
        Whether nobody else may have a turn meanwhile.
    spark
        Whether nobody else may with Spark.
    """
    with ExitStack() as stack:
        if spark:
            fcntl.flock(stack.enter_context((folder / "spark.lock").open("w")), fcntl.LOCK_EX)
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
    # pytest-xdist gives each of its processes a folder in one that is the run's.
    with turn(Path(test.config.option.basetemp).parent, alone=alone, spark=spark):
        yield
