from types import SimpleNamespace
from typing import Any, cast

import pytest

from stormkeeper.supervisor.slot_loop import SlotLoop
from stormkeeper.supervisor.worker_processes import WorkerLook

ENDED = WorkerLook(process=None, is_alive=False, exit_code=0, members=())


@pytest.mark.parametrize("is_done", [None, False, True])
def test_an_end_that_the_worker_did_not_say_waits_for_zookeeper(is_done):
    loop = SimpleNamespace(
        _context=SimpleNamespace(files=SimpleNamespace(written_exit_code=lambda _: None)),
        _workers={"w1": None},
        _is_done=lambda *_: is_done,
    )
    judged = SlotLoop._judged(cast(Any, loop), "w1", ENDED, 0.0)
    assert (judged and judged.is_premature) == (None if is_done is None else not is_done)
