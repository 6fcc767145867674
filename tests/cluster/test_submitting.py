"""A topology whose leading Nimbus is lost while it is submitted."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from stormkeeper.client import blob_transfer
from stormkeeper.client.nimbus_connection import connect
from stormkeeper.conf import load
from support.cluster import COMMAND_SECS, RealCluster
from support.packages import STREAMING
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper]


def test_a_submission_goes_on_at_the_next_leader(tmp_path):
    script = tmp_path / "nightly.py"
    script.write_text(STREAMING)
    # There are never so many copies: the first leader waits until it is killed.
    waits = {"topology.min.replication.count": 3, "topology.max.replication.wait.time.sec": 20}
    chosen = [part for key, value in waits.items() for part in ("-c", f"{key}={value}")]
    with RealCluster(tmp_path, supervisors=0) as cluster, ThreadPoolExecutor(1) as threads:
        leader = cluster.leader()
        submitted = threads.submit(
            cluster.storm, "submit", str(script), "--no-wait", *chosen, check=False
        )
        conf = load(files=[tmp_path / "storm.yaml"])
        with connect(conf) as connection:
            until(lambda: len(blob_transfer.list_keys(connection)) == 3)
        cluster.nimbuses[leader].kill()
        ran = submitted.result(COMMAND_SECS)
        assert ran.returncode == 0, ran.stderr
        assert "; another Nimbus leads now: the package is sent there" in ran.stderr
        assert [each["name"] for each in cluster.told("list")] == ["nightly"]
        assert cluster.leader() != leader
