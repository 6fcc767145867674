"""The pipeline's tables beside what a simulated cluster did, with real daemons and troubles."""

import pytest
from pipeline.shapes import Shape

from pipeline import running

#: Small enough for a busy machine; silence counts after seconds, so that a run need not last.
TINY = Shape(
    "tiny",
    nodes=6,
    workers_per_node=4,
    topologies=8,
    period_secs=1.0,
    count_every=1,
    components=True,
    trigger_secs=1.0,
    statistics_secs=2.0,
)
CONF = {"pipeline.late.secs": 2, "nimbus.task.timeout.secs": 5}

#: What the troubles of this seed let one see, in runs of this length.
SECS, SETTLE_SECS, SEED = 24.0, 2.0, 12


@pytest.mark.slow
def test_the_tables_say_what_a_simulated_cluster_did(tmp_path):
    found = running.run(
        TINY, SECS, settle_secs=SETTLE_SECS, conf=CONF, seed=SEED, folder=tmp_path / "run"
    )
    tried, broken = found["truth"]["tried"], found["truth"]["broken"]
    assert not broken, found["failures"]
    assert tried["a newest report is missing"] >= 20
    assert tried["a death was not found"] >= 1
    assert tried["a worker of a silent node was not found back"] >= 1
    assert tried["a worker of a killed topology is still there"] >= 1
    assert tried["an executor has counted something else"] >= 1_000
    assert tried["component_stats has another sum"] >= 50
    assert tried["topology_stats has another sum"] >= 4 * 5
    assert tried["more than one reading's time is lost"] >= 20
    assert found["liveness"]["versions"] > 5
    assert found["pulses/s"] > 0.5 * TINY.rate
