"""The elector: what a Nimbus is told, by which thread, and what it is told when things go wrong."""

import threading
from itertools import pairwise

import pytest

from stormkeeper import paths
from stormkeeper.errors import (
    NoLeaderError,
    NotLeaderError,
    StateClosedError,
    StateUnavailableError,
)
from stormkeeper.nimbus import election, elector
from stormkeeper.paths import NimbusId
from stormkeeper.state import leader_lock
from stormkeeper.state.storage import ConnectionState
from stormkeeper.thrift.records import StormBase, TopologyStatus
from support.interposed import Interposed
from support.leaks import nothing_left_behind
from support.nimbuses import Nimbus, Shelf, share, submit, submit_by_java
from support.stores import MemoryStore
from support.waiting import DEADLINE_SECS, until

TOPOLOGY = "orders-1-1700000000"


def in_turn(told):
    """Whether each reign was told, and its end, one after the other."""
    return all((before is None) != (after is None) for before, after in pairwise(told))


class TestAConnectionThatIsAway:
    def test_who_leads_does_not_from_that_moment_on(self, memory, ensemble, nimbus):
        one = nimbus(memory)
        one.lead()
        ensemble.suspend(one.session)
        # Nobody is waited for.
        assert not one.elector.is_leader
        until(lambda: one.told[-1] is None)
        with pytest.raises(StateUnavailableError):
            one.leader.remove_storm(TOPOLOGY)

    def test_who_has_the_session_still_leads_on_in_the_same_reign(self, memory, ensemble, nimbus):
        one, other = nimbus(memory), nimbus(memory)
        one.lead()
        other.stand()
        for _ in range(3):
            ensemble.suspend(one.session)
            until(lambda: one.told[-1] is None)
            ensemble.resume(one.session)
            one.wait_to_lead()
        assert len(set(one.told) - {None}) == 1
        assert in_turn(one.told)
        assert other.told == []

    def test_former_leader_object_is_disconnected(self, memory, ensemble, nimbus):
        one = nimbus(memory)
        former = one.lead()
        ensemble.suspend(one.session)
        until(lambda: one.told[-1] is None)
        ensemble.resume(one.session)
        assert one.wait_to_lead() is not former
        with pytest.raises(StateClosedError, match="disconnected"):
            former.active_storms(lambda: None)

    def test_who_has_another_session_does_not_lead(self, memory, ensemble, nimbus):
        one, other = nimbus(memory), nimbus(memory)
        one.lead()
        other.stand()
        ensemble.suspend(one.session)
        ensemble.end_session(one.session)
        other.wait_to_lead()
        ensemble.resume(one.session)
        until(lambda: one.is_queued)
        assert not one.elector.is_leader
        other.elector.remove_from_leader_lock_queue()
        one.wait_to_lead()
        assert in_turn(one.told)

    def test_who_queues_meanwhile_queues_when_it_is_back(self, memory, ensemble, nimbus):
        one = nimbus(memory)
        ensemble.suspend(one.session)
        one.elector.add_to_leader_lock_queue()
        assert not one.elector.is_leader
        ensemble.resume(one.session)
        one.wait_to_lead()

    def test_who_leaves_meanwhile_is_out_when_it_is_back(self, memory, ensemble, nimbus):
        one, other = nimbus(memory), nimbus(memory)
        one.lead()
        other.stand()
        ensemble.suspend(one.session)
        one.elector.remove_from_leader_lock_queue()
        ensemble.resume(one.session)
        other.wait_to_lead()
        assert not one.is_queued

    def test_the_lease_ends_if_the_store_is_silent(self, memory, nimbus):
        """And nothing says that the connection is gone."""
        session, now = memory.open(), [1000.0]
        network = Interposed(session, session_timeout_secs=12.0)
        one = nimbus(memory, session=network, clock=lambda: now[0])
        one.lead()
        silent = threading.Event()

        def sync_path(_path):
            silent.set()
            assert back.wait(DEADLINE_SECS)

        back = threading.Event()
        network.sync_path = sync_path
        try:
            now[0] += 12.0 * election.LEASE_SHARE
            # Whatever wakes it, it looks at the time.
            one.elector.add_to_leader_lock_queue()
            assert session.connection is ConnectionState.CONNECTED
            assert not one.elector.is_leader
            # The store is asked, and does not answer.
            assert silent.wait(DEADLINE_SECS)
            until(lambda: one.told[-1] is None)
        finally:
            del network.sync_path
            back.set()
        one.wait_to_lead()
        assert len(set(one.told) - {None}) == 1


class TestLostAnswers:
    @pytest.mark.parametrize("applied", [True, False])
    def test_a_lock_of_unknown_outcome_is_the_only_one(self, memory, ensemble, nimbus, applied):
        first, one = nimbus(memory), nimbus(memory)
        first.lead()
        ensemble.lose_answer(one.session, applied=applied)
        one.elector.add_to_leader_lock_queue()
        until(lambda: one.session.connection is ConnectionState.SUSPENDED)
        ensemble.resume(one.session)
        until(lambda: one.is_queued)
        first.elector.remove_from_leader_lock_queue()
        one.wait_to_lead()
        assert len(leader_lock.queue(one.session)) == 1

    def test_one_that_is_not_wanted_any_more_is_deleted(self, memory, ensemble, nimbus):
        one = nimbus(memory)
        ensemble.lose_answer(one.session, applied=True)
        one.elector.add_to_leader_lock_queue()
        until(lambda: one.session.connection is ConnectionState.SUSPENDED)
        one.elector.remove_from_leader_lock_queue()
        other = memory.open()
        assert len(leader_lock.queue(other)) == 1
        ensemble.resume(one.session)
        until(lambda: leader_lock.queue(other) == [])
        assert one.told == []

    @pytest.mark.parametrize("applied", [True, False])
    def test_one_that_was_to_be_deleted_is(self, memory, ensemble, nimbus, applied):
        one, other = nimbus(memory), nimbus(memory)
        one.lead()
        other.stand()
        ensemble.lose_answer(one.session, applied=applied)
        one.elector.remove_from_leader_lock_queue()
        until(lambda: one.session.connection is ConnectionState.SUSPENDED)
        ensemble.resume(one.session)
        other.wait_to_lead()
        assert not one.is_queued


class TestByHand:
    def test_a_leader_whose_lock_is_deleted_leads_again_by_another(self, memory, nimbus):
        one = nimbus(memory)
        former = one.lead()
        leader_lock.give_up(memory.open(), leader_lock.queue(one.session)[0])
        until(lambda: len(one.told) == 3)
        one.wait_to_lead()
        assert in_turn(one.told)
        assert one.told[0] < one.told[-1]
        with pytest.raises(NotLeaderError):
            former.remove_storm(TOPOLOGY)

    def test_a_leader_whose_lock_is_revoked_makes_room(self, memory, nimbus):
        one, other = nimbus(memory), nimbus(memory)
        one.lead()
        other.stand()
        memory.open().set_data(leader_lock.queue(one.session)[0].path, b"revoked")
        other.wait_to_lead()
        until(lambda: one.is_queued)
        assert not one.elector.is_leader

    def test_a_lock_of_no_nimbus_has_no_address(self, memory, nimbus):
        one = nimbus(memory)
        leader_lock.take(memory.open(), b"by hand")
        with pytest.raises(NoLeaderError, match="'by hand' has the lock /leader-lock/_c_"):
            one.elector.leader_address()

    def test_a_revoked_lock_is_no_leader_s(self, memory, nimbus):
        one = nimbus(memory)
        lock = leader_lock.take(memory.open(), b"nimbus9.example:6627:0")
        assert one.elector.leader_address() == NimbusId("nimbus9.example", 6627, 0)
        memory.open().set_data(lock.path, b"nimbus9.example:6627:0")
        with pytest.raises(NoLeaderError, match="at present"):
            one.elector.leader_address()


class TestTheNimbus:
    def test_is_told_by_one_thread_in_turn(self, memory, nimbus):
        threads = []
        one = nimbus(
            memory,
            elected=lambda _leader: threads.append(threading.current_thread().name),
            deposed=lambda: threads.append(threading.current_thread().name),
        )
        for _ in range(5):
            one.lead()
            one.elector.remove_from_leader_lock_queue()
            until(lambda: one.told[-1] is None)
        assert in_turn(one.told)
        assert set(threads) == {"nimbus leadership"}

    def test_that_takes_long_to_begin_harms_nobody(self, memory, ensemble, nimbus):
        begun, go_on = threading.Event(), threading.Event()

        def elected(_leader):
            begun.set()
            assert go_on.wait(DEADLINE_SECS)

        one, other = nimbus(memory, elected=elected), nimbus(memory)
        try:
            one.elector.add_to_leader_lock_queue()
            assert begun.wait(DEADLINE_SECS)
            assert one.elector.is_leader
            other.stand()
            ensemble.suspend(one.session)
            assert not one.elector.is_leader
            ensemble.end_session(one.session)
            other.wait_to_lead()
            ensemble.resume(one.session)
            # It stops first, and then queues anew.
            assert one.told[-1] is not None
        finally:
            go_on.set()
        until(lambda: one.told[-1] is None)
        until(lambda: one.is_queued)

    def test_that_takes_long_to_stop_does_not_lead_meanwhile(self, memory, nimbus):
        begun, go_on = threading.Event(), threading.Event()

        def deposed():
            begun.set()
            assert go_on.wait(DEADLINE_SECS)

        one, other = nimbus(memory, deposed=deposed), nimbus(memory)
        try:
            one.lead()
            other.stand()
            one.elector.remove_from_leader_lock_queue()
            one.elector.add_to_leader_lock_queue()
            assert begun.wait(DEADLINE_SECS)
            other.wait_to_lead()
            other.elector.remove_from_leader_lock_queue()
            until(lambda: leader_lock.queue(other.session) == [])
            assert len(one.told) == 2
        finally:
            go_on.set()
        one.wait_to_lead()
        assert in_turn(one.told)

    def test_that_fails_to_begin_leaves_it_to_another(self, memory, nimbus, caplog):
        def elected(_leader):
            raise SystemExit(20)

        one, other = nimbus(memory, elected=elected), nimbus(memory)
        one.elector.add_to_leader_lock_queue()
        until(lambda: one.told[-1:] == [None])
        other.lead()
        assert in_turn(one.told)
        assert "could not begin to lead, and another Nimbus will lead" in caplog.text

    def test_that_fails_to_stop_has_stopped(self, memory, nimbus, caplog):
        def deposed():
            raise RuntimeError("no")

        one = nimbus(memory, deposed=deposed)
        one.lead()
        one.elector.remove_from_leader_lock_queue()
        until(lambda: one.told[-1] is None)
        one.lead()
        assert in_turn(one.told)
        assert "could not end its leadership properly" in caplog.text


class TestTheFirstRead:
    def test_of_a_leader_comes_after_the_store_has_caught_up(self, memory, nimbus):
        session, calls = memory.open(), []

        def recorded(name):
            def call(*arguments, **keywords):
                if threading.current_thread().name == "nimbus leadership":
                    calls.append(name)
                return getattr(session, name)(*arguments, **keywords)

            return call

        names = ("sync_path", "get_data", "get_children", "children_data", "read_many", "get_stat")
        network = Interposed(session, **{name: recorded(name) for name in names})
        one = nimbus(memory, session=network, elected=lambda leader: leader.active_storms())
        other = nimbus(memory)
        other.lead()
        one.stand()
        calls.clear()
        other.elector.remove_from_leader_lock_queue()
        one.wait_to_lead()
        # Once to see whether it may lead, and once when it does.
        until(lambda: calls.count("sync_path") == 2 and calls[-1] == "get_children")
        assert calls[0] == "sync_path"
        last = len(calls) - calls[::-1].index("sync_path")
        assert calls[last:] == ["children_data", "get_children"]


class TestTopologiesOfJava:
    def test_who_may_not_take_them_over_does_not_lead(self, memory, nimbus, caplog):
        submit_by_java(memory.open(), TOPOLOGY)
        one = nimbus(memory)
        one.elector.add_to_leader_lock_queue()
        until(lambda: "does not lead: a Java Nimbus leads these topologies" in caplog.text)
        assert f"topologies: {TOPOLOGY}; start it with --take-over" in caplog.text
        assert not one.is_queued
        assert memory.open().get_data(f"{paths.STORMS}/{TOPOLOGY}") is not None

    def test_who_may_marks_them_so_that_the_next_one_leads(self, memory, nimbus):
        submit_by_java(memory.open(), TOPOLOGY)
        one = nimbus(memory, Shelf([TOPOLOGY]), may_take_over=True)
        leader = one.lead()
        base = leader.storm_base(TOPOLOGY)
        assert base.leader_epoch == leader.fence.epoch
        assert base == StormBase(
            TOPOLOGY, TopologyStatus.ACTIVE, 1, leader_epoch=leader.fence.epoch
        )
        other = nimbus(memory, Shelf([TOPOLOGY]))
        other.stand()
        one.elector.remove_from_leader_lock_queue()
        other.wait_to_lead()

    def test_who_waits_behind_a_java_nimbus_does_not_succeed_it(self, memory, nimbus, monkeypatch):
        """What it has submitted meanwhile is its own."""
        monkeypatch.setattr(election, "FOREIGN_PAUSE_SECS", 0.05)
        java = memory.open()
        path = java.create_sequential(f"{paths.LEADER_LOCK}/_c_java-latch-", b"java:6627:0")
        one = nimbus(memory)
        one.stand()
        submit_by_java(java, TOPOLOGY)
        java.delete_node(path)
        until(lambda: not one.is_queued)
        assert one.told == []
        java.delete_node(f"{paths.STORMS}/{TOPOLOGY}")
        one.wait_to_lead()


def test_code_that_cannot_be_copied_keeps_nobody_from_leading(memory, nimbus, monkeypatch):
    """Each of two has what the other lacks, and neither gets it."""
    monkeypatch.setattr(election, "FETCH_PAUSE_SECS", 0.01)
    topologies = ("a-1-1", "b-2-2")
    submit(memory.open(), *topologies)
    shelves = [Shelf([storm_id]) for storm_id in topologies]
    share(*shelves)

    def refuse(shelf):
        def fetch(_timeout_secs):
            shelf.fetches.append(set(shelf.missing()))
            raise ConnectionRefusedError("not here")

        return fetch

    for shelf in shelves:
        shelf.fetch = refuse(shelf)
    nimbuses = [nimbus(memory, shelf) for shelf in shelves]
    for each in nimbuses:
        each.elector.add_to_leader_lock_queue()
    until(lambda: any(each.elector.is_leader for each in nimbuses))
    until(lambda: all(each.is_queued for each in nimbuses))
    assert shelves[0].fetches == [{"b-2-2"}] * election.FETCHES
    assert shelves[1].fetches == [{"a-1-1"}] * election.FETCHES


class TestClosing:
    def test_releases_the_lock_and_deposes_the_nimbus(self):
        store = MemoryStore()
        session, other = store.open(), store.open()
        with nothing_left_behind():
            one = Nimbus(session, "nimbus1.example")
            one.lead()
            one.elector.close()
            assert leader_lock.queue(other) == []
            assert one.told[1:] == [None]
            assert not one.elector.is_leader
            one.elector.close()
            one.elector.add_to_leader_lock_queue()
            assert not one.elector.is_leader
        assert session.connection is ConnectionState.CONNECTED
        store.close()

    def test_without_the_store_leaves_the_lock_to_the_session(self, memory, ensemble, nimbus):
        one, other = nimbus(memory), nimbus(memory)
        one.lead()
        other.stand()
        ensemble.suspend(one.session)
        one.elector.close()
        assert one.told[-1] is None
        one.storm.disconnect()
        other.wait_to_lead()

    def test_without_the_store_does_not_wait_for_calls_under_way(
        self, memory, ensemble, nimbus, monkeypatch
    ):
        monkeypatch.setattr(elector, "CLOSE_SECS", 10 * DEADLINE_SECS)
        over = threading.Event()
        under_way = threading.Thread(target=over.wait)
        under_way.start()
        one = nimbus(memory)
        one.lead()
        ensemble.suspend(one.session)
        one.elector._threads = (*one.elector._threads, under_way)
        one.elector.close()
        assert under_way.is_alive()
        over.set()
        under_way.join()

    @pytest.mark.parametrize("which", ["elected", "deposed"])
    def test_may_be_done_by_a_callback(self, memory, nimbus, monkeypatch, which):
        # It does not wait for itself.
        monkeypatch.setattr(elector, "CLOSE_SECS", 10 * DEADLINE_SECS)
        closed = threading.Event()

        def close(*_):
            one.elector.close()
            closed.set()

        one = nimbus(memory, **{which: close})
        one.elector.add_to_leader_lock_queue()
        until(lambda: one.told)
        if which == "deposed":
            one.elector.remove_from_leader_lock_queue()
        assert closed.wait(DEADLINE_SECS)
        assert leader_lock.queue(memory.open()) == []
        until(lambda: not [t for t in one.elector._threads if t.is_alive()])

    def test_does_not_wait_for_ever(self, memory, nimbus, monkeypatch, caplog):
        monkeypatch.setattr(elector, "CLOSE_SECS", 0.1)
        go_on = threading.Event()
        one = nimbus(memory, deposed=lambda: go_on.wait(DEADLINE_SECS))
        try:
            one.lead()
            one.elector.close()
            assert "the thread nimbus leadership still runs" in caplog.text
        finally:
            go_on.set()


def test_a_defect_ends_nothing(memory, nimbus, caplog):
    session, failed = memory.open(), set()

    def sync_path(path):
        name = threading.current_thread().name
        if name not in failed:
            failed.add(name)
            raise ZeroDivisionError(f"a defect on the thread {name}")
        session.sync_path(path)

    one = nimbus(memory, session=Interposed(session, sync_path=sync_path))
    one.lead()
    for name in ("nimbus election", "nimbus leadership"):
        assert f"a defect on the thread {name}" in caplog.text


def test_a_change_that_nobody_tells_is_found_all_the_same(memory, nimbus, monkeypatch):
    monkeypatch.setattr(election, "LOOK_SECS", 0.05)
    session = memory.open()
    network = Interposed(session, register=lambda _callback: 0, unregister=lambda _number: None)
    other, one = nimbus(memory), nimbus(memory, session=network)
    other.lead()
    one.stand()
    other.elector.remove_from_leader_lock_queue()
    one.wait_to_lead()
