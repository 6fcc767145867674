"""What a submission leaves that fails on its way, on a store in memory that can be told to fail."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormkeeper import paths
from stormkeeper.blobs import distributor
from stormkeeper.conf.address import Address
from stormkeeper.errors import CallRefusedError, NotLeaderError, OutcomeUnknownError
from stormkeeper.nimbus.submitted import encode_conf
from stormkeeper.rpc.service_client import ServiceClient
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.nimbus import (
    AlreadyAliveException,
    Nimbus,
    SettableBlobMeta,
    SubmitOptions,
    TopologyInitialStatus,
)
from stormkeeper.thrift.records import Credentials, LogConfig, LogLevel, LogLevelAction
from stormkeeper.thrift.serialization import Codec
from support.memory_state import MemoryEnsemble
from support.nimbus_service import describe, nimbuses, package, topology_of
from support.waiting import DEADLINE_SECS, until


@pytest.fixture
def ensemble():
    return MemoryEnsemble()


@pytest.fixture
def nimbus(ensemble, tmp_path):
    with nimbuses(tmp_path, StormClusterState(ensemble.session(), Codec())) as [nimbus]:
        yield nimbus


def test_who_leads_no_more_leaves_nothing_and_no_topology(nimbus, monkeypatch):
    setup = nimbus.leader.setup_backpressure

    def depose(*arguments):
        setup(*arguments)
        nimbus.storm.state.delete_node(nimbus.leader.fence.path)

    monkeypatch.setattr(nimbus.leader, "setup_backpressure", depose)
    with pytest.raises(NotLeaderError):
        nimbus.submit("wc")
    assert nimbus.storm.active_storms() == []
    assert nimbus.storm.blobs() == {}
    assert nimbus.code.store.all() == {}
    assert nimbus.submissions.ids() == []


def test_what_fails_in_the_middle_leaves_nothing(nimbus, monkeypatch):
    def fail(*_):
        raise OutcomeUnknownError("the connection was lost")

    monkeypatch.setattr(nimbus.leader, "setup_backpressure", fail)
    options = SubmitOptions(TopologyInitialStatus.ACTIVE, Credentials({"a": "b"}))
    with pytest.raises(OutcomeUnknownError):
        nimbus.submit("wc", options=options)
    state = nimbus.storm.state
    for top in (paths.STORMS, paths.CREDENTIALS, paths.WORKERBEATS, paths.ERRORS):
        assert not state.node_exists(top) or state.get_children(top) == []
    assert nimbus.storm.blobs() == {}
    monkeypatch.undo()
    assert nimbus.submit("wc") == "wc-2-1700000000", "the name is free, and the id another one"


@pytest.mark.parametrize("applied", [True, False])
def test_a_base_of_unknown_outcome_is_written_once_more(nimbus, monkeypatch, applied):
    activate = nimbus.leader.activate_storm
    tries = []

    def lose_the_answer(*arguments):
        tries.append(arguments)
        if len(tries) == 1:
            if applied:
                activate(*arguments)
            raise OutcomeUnknownError("the connection was lost")
        activate(*arguments)

    monkeypatch.setattr(nimbus.leader, "activate_storm", lose_the_answer)
    assert nimbus.submit("wc") in nimbus.storm.active_storms()
    assert len(tries) == 2


def test_nothing_is_removed_of_a_topology_that_may_be_there(nimbus, monkeypatch):
    activate = nimbus.leader.activate_storm

    def lose_the_answer(*arguments):
        activate(*arguments)
        raise OutcomeUnknownError("the connection was lost")

    monkeypatch.setattr(nimbus.leader, "activate_storm", lose_the_answer)
    with pytest.raises(OutcomeUnknownError):
        nimbus.submit("wc")
    [storm_id] = nimbus.storm.active_storms()
    assert nimbus.handler.getTopologyConf(storm_id)


def test_of_two_submissions_at_once_one_is_taken(nimbus, monkeypatch):
    waiting, go_on = threading.Event(), threading.Event()
    wait = distributor.await_copies

    def held(*arguments):
        waiting.set()
        assert go_on.wait(DEADLINE_SECS)
        return wait(*arguments)

    monkeypatch.setattr(distributor, "await_copies", held)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(nimbus.submit, "wc")
        assert waiting.wait(DEADLINE_SECS)
        assert nimbus.submissions.ids() == ["wc-1-1700000000"]
        nimbus.code.sync.run_once()
        with pytest.raises(AlreadyAliveException, match="wc is already alive"):
            nimbus.submit("wc")
        go_on.set()
        assert first.result(DEADLINE_SECS) == "wc-1-1700000000"
    assert nimbus.storm.active_storms() == ["wc-1-1700000000"]


def test_copies_that_do_not_come_in_time_are_done_without(nimbus, caplog):
    conf = '{"topology.min.replication.count": 2, "topology.max.replication.wait.time.sec": 0.01}'
    nimbus.submit("wc", conf=conf)
    assert "submitted with 1 of 2 copies of its code" in caplog.text


def test_code_that_is_lost_while_it_is_copied_is_not_submitted(nimbus, monkeypatch):
    wait = distributor.await_copies

    def lose(*arguments):
        for path in (nimbus.code.store.folder / "data").iterdir():
            path.unlink()
        nimbus.code.sync.run_once()
        return wait(*arguments)

    monkeypatch.setattr(distributor, "await_copies", lose)
    conf = '{"topology.max.replication.wait.time.sec": 0.01}'
    with pytest.raises(CallRefusedError, match="no Nimbus has its code any more"):
        nimbus.submit("wc", conf=conf)
    assert nimbus.storm.active_storms() == []


def test_endless_wait_for_copies_is_refused_in_the_end(tmp_path, ensemble):
    storm = StormClusterState(ensemble.session(), Codec())
    short = {"storm.thrift.socket.timeout.ms": 10}
    conf = '{"topology.min.replication.count": 2, "topology.max.replication.wait.time.sec": -1}'
    with nimbuses(tmp_path, storm, **short) as [nimbus]:
        with pytest.raises(CallRefusedError, match="1 of 2 copies"):
            nimbus.submit("wc", conf=conf)
        assert nimbus.storm.active_storms() == []
        until(lambda: nimbus.code.store.all() == {})


@pytest.mark.parametrize("conf", [b"no conf", encode_conf({"topology.message.timeout.secs": "x"})])
def test_a_topology_whose_conf_is_damaged_can_be_killed(nimbus, conf):
    storm_id = nimbus.submit("wc")
    nimbus.code.change(storm_id, "stormconf.ser", lambda _: conf)
    nimbus.handler.killTopology("wc")
    base = nimbus.storm.storm_base(storm_id)
    assert base.topology_action_options.kill_options.wait_secs == 30


def test_nimbus_without_code_deletes_no_blob(nimbus):
    session = nimbus.handler.beginCreateBlob("used", SettableBlobMeta([]))
    nimbus.handler.finishBlobUpload(session)
    storm_id = nimbus.submit("wc", conf='{"topology.blobstore.map": {"used": {}}}')
    nimbus.code.sync.close()
    nimbus.code.store.delete(f"{storm_id}-stormconf.ser")
    with pytest.raises(CallRefusedError, match=f"the code of {storm_id} is not on this Nimbus"):
        nimbus.handler.deleteBlob("used")
    assert nimbus.handler.isRemoteBlobExists("used")


def test_submissions_leave_threads_to_those_who_copy_their_code(ensemble, tmp_path):
    """Else they would wait for copies that nobody can make as they wait."""
    sessions = [StormClusterState(ensemble.session(), Codec()) for _ in range(2)]
    with nimbuses(tmp_path, *sessions, **{"nimbus.thrift.threads": 2}) as [nimbus, _]:

        def submit(number):
            described = describe(f"t{number}")
            with ServiceClient(
                Nimbus, Address("127.0.0.1", nimbus.port), max_frame=2**20, timeout=DEADLINE_SECS
            ) as client:
                location = client.call("beginFileUpload")
                client.call("uploadChunk", location, package(tmp_path, described))
                client.call("finishFileUpload", location)
                start.wait(DEADLINE_SECS)
                topology = topology_of(described)
                client.call("submitTopology", described.name, location, "{}", topology)

        start = threading.Barrier(2)
        with ThreadPoolExecutor(2) as threads:
            both = [threads.submit(submit, number) for number in range(2)]
        refused = [each.exception() for each in both if each.exception() is not None]
        assert all("try again in a moment" in str(each) for each in refused)
        for storm_id in nimbus.storm.active_storms():
            assert distributor.count_copies(nimbus.storm, storm_id, None).copies == 2


def test_what_zookeeper_would_hang_up_on_is_refused(nimbus):
    storm_id = nimbus.submit("wc")
    large = Credentials({"a": os.urandom(1_100_000).hex()})
    with pytest.raises(
        CallRefusedError, match=r"a Credentials of .* bytes: 1,000,000 are the most"
    ):
        nimbus.handler.uploadNewCredentials("wc", large)
    with pytest.raises(CallRefusedError, match="a Credentials of"):
        nimbus.submit("other", options=SubmitOptions(TopologyInitialStatus.ACTIVE, large))
    assert nimbus.storm.kept_storms() == [storm_id]
    # Each call adds to what is set.
    level = LogLevel(LogLevelAction.UPDATE, "INFO")
    first, second, third = (LogConfig({os.urandom(400_000).hex(): level}) for _ in range(3))
    nimbus.handler.setLogConfig(storm_id, first)
    nimbus.handler.setLogConfig(storm_id, second)
    with pytest.raises(CallRefusedError, match="a LogConfig of"):
        nimbus.handler.setLogConfig(storm_id, third)
