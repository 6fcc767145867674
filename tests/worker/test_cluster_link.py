"""A worker's session with the cluster's state, over the store in memory."""

import threading

import pytest

from stormkeeper.errors import AccessDeniedError, StateUnavailableError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import (
    Credentials,
    LogConfig,
    LogLevel,
    LogLevelAction,
    StormBase,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec
from stormkeeper.worker import cluster_link
from stormkeeper.worker.cluster_link import ClusterLink
from support.leaders import lead
from support.memory_state import MemoryEnsemble
from support.waiting import DEADLINE_SECS, until

STORM = "wc-1-1"


@pytest.fixture
def ensemble():
    return MemoryEnsemble()


@pytest.fixture
def leader(ensemble):
    storm = StormClusterState(ensemble.session(), Codec())
    yield lead(storm)
    storm.disconnect()


@pytest.fixture
def connect(ensemble):
    return lambda: StormClusterState(ensemble.session(), Codec())


@pytest.fixture
def link(connect):
    link = ClusterLink(connect, STORM)
    yield link
    link.close(DEADLINE_SECS)
    assert not link._thread.is_alive()


def base(status):
    return StormBase("wc", status, 1)


def test_link_follows_the_status(link, leader):
    leader.activate_storm(STORM, base(TopologyStatus.INACTIVE))
    assert link.is_active  # as nothing is known
    link.start()
    assert link.wait_known(DEADLINE_SECS)
    assert not link.is_active
    for status in TopologyStatus:
        leader.activate_storm(STORM, base(status))
        until(lambda status=status: link.is_active == (status is TopologyStatus.ACTIVE))


def test_link_follows_log_levels_and_credentials(connect, leader, caplog):
    caplog.set_level("INFO")
    heard = []
    link = ClusterLink(connect, STORM, heard.append)
    leader.activate_storm(STORM, base(TopologyStatus.ACTIVE))
    leader.set_credentials(STORM, Credentials({"token": "secret1", "kept": "secret2"}))
    link.start()
    until(lambda: heard == [None])
    config = LogConfig({"ROOT": LogLevel(LogLevelAction.UPDATE, "DEBUG")})
    leader.set_topology_log_config(STORM, config)
    until(lambda: heard[1:] and heard[-1].named_logger_level == config.named_logger_level)
    leader.set_credentials(STORM, Credentials({"token": "secret3", "kept": "secret2"}))
    until(lambda: "new credentials (token) count from the next start" in caplog.text)
    assert link.credentials["token"] == "secret1"
    assert "secret" not in caplog.text
    link.close(DEADLINE_SECS)


@pytest.mark.parametrize("where", ["connecting", "reporting"])
def test_link_follows_on_after_a_defect(connect, leader, caplog, monkeypatch, where):
    monkeypatch.setattr(cluster_link, "RETRY_SECS", 0.01)
    leader.activate_storm(STORM, base(TopologyStatus.INACTIVE))
    defects = [ZeroDivisionError("a defect")]

    def failing_first(*_):
        if defects:
            raise defects.pop()

    def connecting():
        if where == "connecting":
            failing_first()
        return connect()

    link = ClusterLink(connecting, STORM)
    if where == "reporting":
        link.report(failing_first)
    link.start()
    assert link.wait_known(DEADLINE_SECS)
    assert not link.is_active
    assert link.flush(DEADLINE_SECS)
    leader.activate_storm(STORM, base(TopologyStatus.ACTIVE))
    until(lambda: link.is_active)
    assert "ZeroDivisionError: a defect" in caplog.text
    link.close(DEADLINE_SECS)


def test_link_knows_the_hints_of_a_rebalance(link, leader):
    changed = base(TopologyStatus.ACTIVE)
    changed.component_executors = {"words": 4}
    leader.activate_storm(STORM, changed)
    assert link.hints == {}
    link.start()
    assert link.wait_known(DEADLINE_SECS)
    assert link.hints == {"words": 4}


def test_unknown_topology_is_active_and_killed_one_is_not(link, leader):
    link.start()
    assert link.wait_known(DEADLINE_SECS)
    assert link.is_active
    leader.activate_storm(STORM, base(TopologyStatus.KILLED))
    until(lambda: not link.is_active)
    leader.remove_storm(STORM)
    seen = threading.Event()
    link.report(lambda _: seen.set())  # it comes round once more
    assert seen.wait(DEADLINE_SECS)
    assert link.flush(DEADLINE_SECS)
    assert not link.is_active


def test_credentials_are_known_with_the_status(link, leader):
    leader.set_credentials(STORM, Credentials({"token": "secret"}))
    assert link.credentials == {}
    link.start()
    assert link.wait_known(DEADLINE_SECS)
    assert link.credentials == {"token": "secret"}


def test_unreadable_credentials_do_not_stop_the_link(link, leader, monkeypatch, caplog):
    def denied(*_):
        raise AccessDeniedError("not yours")

    monkeypatch.setattr(StormClusterState, "credentials", denied)
    leader.activate_storm(STORM, base(TopologyStatus.INACTIVE))
    link.start()
    assert link.wait_known(DEADLINE_SECS)
    assert not link.is_active
    assert "the topology's credentials cannot be read: not yours" in caplog.text


def test_reports_are_written_in_their_order(link, leader):
    link.report(lambda storm: storm.report_error(STORM, "split", "first"))
    assert not link.flush(0.0)
    link.start()
    link.report(lambda storm: storm.report_error(STORM, "split", "second"))
    assert link.flush(DEADLINE_SECS)
    assert leader.last_error(STORM, "split").error == "second"
    assert len(leader.errors(STORM, "split")) == 2


def test_reports_survive_a_loss_of_zookeeper(connect, leader, monkeypatch, caplog):
    monkeypatch.setattr(cluster_link, "RETRY_SECS", 0.01)
    failures = [StateUnavailableError("nobody there")] * 3
    link = ClusterLink(lambda: _or_raise(failures, connect), STORM)
    calls = []

    def report(storm):
        calls.append(storm)
        if len(calls) < 3:
            raise StateUnavailableError("gone again")
        storm.report_error(STORM, "split", "at last")

    link.report(report)
    link.start()
    assert link.flush(DEADLINE_SECS)
    assert link.wait_known(DEADLINE_SECS)
    link.close(DEADLINE_SECS)
    assert leader.last_error(STORM, "split").error == "at last"
    assert caplog.text.count("cannot be read, the worker goes on") == 1


def test_a_report_that_is_refused_holds_up_no_other(link, leader, caplog):
    def refused(_):
        raise AccessDeniedError("not yours")

    link.report(refused)
    link.report(lambda storm: storm.report_error(STORM, "split", "told"))
    link.start()
    assert link.flush(DEADLINE_SECS)
    assert "a report is dropped: not yours" in caplog.text
    assert leader.last_error(STORM, "split").error == "told"


def _or_raise(failures, connect):
    if failures:
        raise failures.pop()
    return connect()
