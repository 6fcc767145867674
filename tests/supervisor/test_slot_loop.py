"""The end of a worker, as the slots' thread judges it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stormkeeper.supervisor.slot_loop import SlotLoop
from stormkeeper.supervisor.worker_processes import WorkerLook


@pytest.mark.parametrize(
    ("exit_code", "written", "judged"),
    [
        (0, 0, (0, False)),
        (None, 0, (0, False)),
        (-9, 4, (4, False)),
        (0, None, (0, True)),
        (4, None, (4, True)),
        (1, None, (1, False)),
        (None, None, (None, False)),
    ],
)
def test_only_the_worker_says_that_its_queries_ended(exit_code, written, judged):
    files = SimpleNamespace(written_exit_code=lambda _: written)
    loop = cast(Any, SimpleNamespace(_context=SimpleNamespace(files=files)))
    ended = WorkerLook(process=None, is_alive=False, exit_code=exit_code, members=())
    found = SlotLoop._judged(loop, "w1", ended)
    assert (found.exit_code, found.is_premature) == judged
