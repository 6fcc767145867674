"""The report says what the ledger saw, in the documented shape."""

from pathlib import Path

import pytest

from stormkeeper.errors import LocalClusterError
from stormkeeper.local import run_view
from stormkeeper.local.pacemaker_watch import (
    ComponentCounts,
    PacemakerStatus,
    RunSnapshot,
    WorkerPulses,
)
from stormkeeper.paths import WorkerId


def test_report_has_the_documented_shape():
    counts = {"w": ComponentCounts(4, 2), "looked_at": ComponentCounts(0, 3, partial=True)}
    snapshot = RunSnapshot(
        [PacemakerStatus("127.0.0.1:1", 12, 1), PacemakerStatus("127.0.0.1:2")],
        [
            WorkerPulses(
                WorkerId("wc-1-1", "local", 6700),
                "127.0.0.1:1",
                12,
                99.0,
                counts,
                max_gap_secs=3.25,
            )
        ],
    )
    assert run_view.build_report(snapshot, now=100.0, tables={"liveness": 1}, processes_left=0) == {
        "pacemakers": [
            {"address": "127.0.0.1:1", "pulses_received": 12, "keys": 1},
            {"address": "127.0.0.1:2", "pulses_received": 0, "keys": 0},
        ],
        "workers": [
            {
                "topology": "wc-1-1",
                "node": "local",
                "port": 6700,
                "pulses": 12,
                "max_gap_secs": 3.25,
                "completed": False,
            }
        ],
        "components": {
            "looked_at": {"emitted": 0, "executed": 3, "partial": True},
            "w": {"emitted": 4, "executed": 2, "partial": False},
        },
        "tables": {"liveness": 1},
        "processes_left": 0,
    }


def test_silence_after_the_end_is_no_gap():
    seen = WorkerPulses(WorkerId("t", "n", 1), "a:1", 1, 10.0, {}, completed=True, max_gap_secs=3.0)
    (worker,) = run_view.build_report(
        RunSnapshot([], [seen]), now=25.0, tables={}, processes_left=0
    )["workers"]
    assert (worker["completed"], worker["max_gap_secs"]) == (True, 3.0)


def test_silence_at_the_end_counts_as_a_gap():
    seen = WorkerPulses(WorkerId("t", "n", 1), "a:1", 1, 10.0, {}, max_gap_secs=3.0)
    built = run_view.build_report(RunSnapshot([], [seen]), now=25.0, tables={}, processes_left=0)
    assert built["workers"][0]["max_gap_secs"] == 15.0


def test_a_full_disk_is_said_in_a_line():
    with pytest.raises(LocalClusterError, match=r"not written: .*No space left on device"):
        run_view.write_report(Path("/dev/full"), {"workers": []})
