from types import SimpleNamespace
from typing import Any, cast

import pytest

from stormkeeper.supervisor.slot_loop import SlotLoop
from stormkeeper.supervisor.worker_processes import WorkerLook


@pytest.mark.parametrize(
    ("exit_code", "written", "judged"),
    [
        (0, None, (0, True)),
        (4, None, (4, True)),
        (1, None, (1, False)),
        (None, None, (None, False)),
        (0, 0, (0, False)),
        (None, 4, (4, False)),
    ],
)
def test_only_a_written_exit_code_ends_a_worker_in_order(exit_code, written, judged):
    files = SimpleNamespace(written_exit_code=lambda _: written)
    loop = SimpleNamespace(_context=SimpleNamespace(files=files))
    ended = WorkerLook(process=None, is_alive=False, exit_code=exit_code, members=())
    found = SlotLoop._judged(cast(Any, loop), "w1", ended)
    assert (found.exit_code, found.is_premature) == judged
