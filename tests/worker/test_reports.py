"""What a worker reports, over the store in memory."""

from pathlib import Path

import msgspec
import pytest

from stormkeeper.conf import defaults
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, StormBase, TopologyStatus
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.package.archive import unpack
from stormkeeper.topology.plan import Claim
from stormkeeper.worker import cluster_link
from stormkeeper.worker.cluster_link import WorkerReports
from stormkeeper.worker.driver_log import LogLevels
from stormkeeper.worker.job import Job, read_package
from support.leaders import lead
from support.memory_state import MemoryEnsemble
from support.packages import of_folder, packed, tree

STORM = "job-1-1"


@pytest.fixture
def storm(monkeypatch):
    """The cluster's state; workers get sessions of their own with it."""
    ensemble = MemoryEnsemble()
    monkeypatch.setattr(
        cluster_link, "_connect", lambda _: StormClusterState(ensemble.session(), Codec())
    )
    storm = StormClusterState(ensemble.session(), Codec())
    yield storm
    storm.disconnect()


@pytest.fixture
def started(tmp_path):
    """Starts the reports of a worker, of a plain script if a supervisor runs it."""
    running = []

    def start(*, supervised=True, **conf):
        package = None
        if supervised:
            file, _ = packed(of_folder(tree(tmp_path / "mine", {})))
            unpack(file, tmp_path / "package")
            package = read_package(tmp_path / "package")
        job = Job(
            script=Path("code/topology.py"),
            storm_id=STORM,
            node="sup",
            port=6700,
            claims={"daily": Claim(1, 2)},
            package=package,
        )
        running.append(
            WorkerReports(defaults().with_values(conf), job, Beats, LogLevels(lambda: None))
        )
        running[-1].start()
        return running[-1]

    yield start
    for one in running:
        one.close()


class Beats:
    @staticmethod
    def last_of(query):
        return ClusterWorkerHeartbeat(f"{STORM} {query}", {}, 1, 2, completed=True)


def test_without_a_supervisor_nothing_is_asked_or_told(started, monkeypatch):
    monkeypatch.setattr(cluster_link, "_connect", lambda _: pytest.fail("there is no need to"))
    alone = started(supervised=False)
    alone.wait_status(lambda: False)
    alone.report_failure("x")
    alone.report_end("q")
    alone.report_completion()
    assert alone.is_active


def test_an_error_is_told_of_its_component_or_else_of_all_sinks(storm, started):
    told = started(**{"storm.local.hostname": "machine-1"})
    told.report_failure("the bolt 'split' failed:\nTraceback\nKeyError: 1", "split")
    told.report_failure("the script failed")
    error = storm.last_error(STORM, "split")
    assert error.error == "the bolt 'split' failed:\nTraceback\nKeyError: 1"
    assert (error.host, error.port) == ("machine-1", 6700)
    assert storm.last_error(STORM, "daily").error == "the script failed"


def test_ends_are_reported(storm, started):
    told = started()
    told.report_end("one")
    told.report_completion()
    assert storm.ended_queries(STORM) == {"one", "daily"}


def test_topology_that_always_restarts_has_no_end(storm, started):
    told = started(**{"topology.restart": "always"})
    told.report_end("one")
    told.report_completion()
    assert storm.ended_queries(STORM) == frozenset()


def test_whether_the_owner_of_a_checkpoint_is_gone(storm, started):
    leader = lead(storm)
    reports = started()
    reports.wait_status(lambda: False)
    other = msgspec.structs.replace(reports.owner, topology="other-2-1")
    assert reports.is_gone(other)
    leader.activate_storm("other-2-1", StormBase("other", TopologyStatus.ACTIVE, 1))
    assert not reports.is_gone(other)
    elsewhere = msgspec.structs.replace(other, cluster="another")
    assert not reports.is_gone(elsewhere)  # it is this very process
    assert reports.is_gone(msgspec.structs.replace(elsewhere, since=1.0))
    assert not reports.is_gone(msgspec.structs.replace(elsewhere, since=1.0, host="far"))
