"""What a local run waits for, and when its pipeline starts."""

import pytest

from stormkeeper.local import waiting
from stormkeeper.local.ledger import Counts, Snapshot, WorkerSeen
from stormkeeper.local.waiting import PIPELINE_AFTER_SECS, is_pipeline_due, waits_for
from stormkeeper.paths import WorkerId


def seen(components):
    worker = WorkerId("wc-1-1", "local", 6700)
    return Snapshot([], [WorkerSeen(worker, "127.0.0.1:1", 1, 0.0, 0.0, components)])


NOBODY = Snapshot([], [])
STARTING = seen({})
NO_BATCH = seen({"lines": Counts(), "words": Counts()})
COUNTED = seen({"lines": Counts(emitted=7), "words": Counts()})


@pytest.mark.parametrize(
    ("snapshot", "starts", "said"),
    [
        (NOBODY, False, waiting.SPARK_STARTS),
        (STARTING, False, waiting.SPARK_STARTS),
        (NO_BATCH, False, waiting.FIRST_BATCH),
        (NO_BATCH, True, waiting.FIRST_BATCH),
        (COUNTED, True, waiting.PIPELINE_STARTS),
        (COUNTED, False, ""),
    ],
)
def test_what_is_waited_for(snapshot, starts, said):
    assert waits_for(snapshot, pipeline_starts=starts) == said


@pytest.mark.parametrize("snapshot", [NOBODY, STARTING, NO_BATCH])
def test_the_pipeline_waits_for_the_first_rows_but_not_for_ever(snapshot):
    assert not is_pipeline_due(snapshot, 0.0)
    assert not is_pipeline_due(snapshot, PIPELINE_AFTER_SECS - 1)
    assert is_pipeline_due(snapshot, PIPELINE_AFTER_SECS)


def test_the_pipeline_starts_with_the_first_rows():
    assert is_pipeline_due(COUNTED, 0.0)
