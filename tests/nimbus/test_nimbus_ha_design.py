"""The leader elector of Storm's design of a highly available Nimbus, requirement by requirement.

On every store. The design's interface is `stormkeeper.nimbus.elector.Elector`.
"""

import pytest

from stormkeeper.errors import NoLeaderError, NotLeaderError
from stormkeeper.thrift.records import StormBase, TopologyStatus
from support.nimbuses import Shelf, share, submit
from support.waiting import until

TOPOLOGIES = ("orders-1-1700000000", "clicks-2-1700000000")


class TestTheQueue:
    def test_to_queue_is_to_lead_once_nobody_else_does(self, store, nimbus):
        first, second = nimbus(store), nimbus(store)
        first.lead()
        second.stand()
        assert first.elector.is_leader
        assert not second.elector.is_leader

    def test_whoever_queues_does_not_wait(self, store, nimbus):
        first, second = nimbus(store), nimbus(store)
        first.lead()
        second.elector.add_to_leader_lock_queue()
        # It is back, and has to ask whether it leads before it does anything.
        assert not second.elector.is_leader

    def test_to_queue_twice_is_to_queue_once(self, store, nimbus):
        one = nimbus(store)
        one.lead()
        one.elector.add_to_leader_lock_queue()
        assert one.elector.is_leader
        assert one.is_queued

    def test_whoever_leaves_the_queue_is_not_in_it(self, store, nimbus):
        first, second, third = nimbus(store), nimbus(store), nimbus(store)
        first.lead()
        second.stand()
        third.stand()
        second.elector.remove_from_leader_lock_queue()
        until(lambda: not second.is_queued)
        first.elector.remove_from_leader_lock_queue()
        third.wait_to_lead()
        assert second.told == []

    def test_a_leader_that_leaves_the_queue_releases_the_lock(self, store, nimbus):
        first, second = nimbus(store), nimbus(store)
        first.lead()
        second.stand()
        first.elector.remove_from_leader_lock_queue()
        assert not first.elector.is_leader
        second.wait_to_lead()
        until(lambda: first.told[-1] is None)

    def test_whoever_has_left_may_queue_again(self, store, nimbus):
        first, second = nimbus(store), nimbus(store)
        first.lead()
        second.stand()
        first.elector.remove_from_leader_lock_queue()
        second.wait_to_lead()
        first.stand()
        second.elector.remove_from_leader_lock_queue()
        first.wait_to_lead()
        assert first.told[0] < second.told[0] < first.told[-1]


class TestTheAddresses:
    def test_everybody_knows_the_leader_s(self, store, nimbus):
        first, second = nimbus(store), nimbus(store)
        first.lead()
        second.stand()
        assert first.elector.leader_address() == first.address
        assert second.elector.leader_address() == first.address
        first.elector.remove_from_leader_lock_queue()
        second.wait_to_lead()
        assert first.elector.leader_address() == second.address

    def test_without_a_leader_to_ask_for_it_is_an_error(self, store, nimbus):
        one = nimbus(store)
        with pytest.raises(NoLeaderError, match="no Nimbus leads at present: ask again"):
            one.elector.leader_address()


class TestTheCode:
    """Of every topology that ZooKeeper lists."""

    def test_a_nimbus_queues_once_it_has_it(self, store, nimbus):
        submit(store.open(), *TOPOLOGIES)
        full, empty = Shelf(TOPOLOGIES), Shelf(["left-over-1-1"])
        share(full, empty)
        holder, newcomer = nimbus(store, full), nimbus(store, empty)
        newcomer.stand()
        assert set(TOPOLOGIES) <= empty.storm_ids
        assert empty.fetches == [set(TOPOLOGIES)]
        # What is only on a disk is nobody's business.
        assert "left-over-1-1" not in full.storm_ids
        holder.stand()
        assert full.fetches == []

    def test_leader_without_code_gives_the_lock_back(self, store, nimbus):
        shelves = [Shelf(), Shelf(), Shelf()]
        share(*shelves)
        first, second, third = (nimbus(store, shelf) for shelf in shelves)
        leader = first.lead()
        second.stand()
        third.stand()
        # Submitted under the first, and copied to the third alone by now.
        leader.activate_storm(TOPOLOGIES[0], StormBase("orders", TopologyStatus.ACTIVE, 1))
        for shelf in (shelves[0], shelves[2]):
            shelf.storm_ids.add(TOPOLOGIES[0])
        first.elector.remove_from_leader_lock_queue()
        third.wait_to_lead()
        until(lambda: second.is_queued)
        assert second.told == []
        assert shelves[1].fetches == [{TOPOLOGIES[0]}]
        third.elector.remove_from_leader_lock_queue()
        second.wait_to_lead()

    def test_of_which_nobody_alive_has_any_is_done_without(self, store, nimbus):
        submit(store.open(), *TOPOLOGIES)
        gone, left = Shelf(TOPOLOGIES), Shelf()
        share(gone, left)
        gone.is_there = False
        leader = nimbus(store, left).lead()
        # No topology is lost for that.
        assert leader.active_storms() == sorted(TOPOLOGIES)
        assert left.fetches == []


class TestALostConnection:
    def test_whoever_loses_its_session_loses_the_lock_and_knows(self, store, nimbus):
        first, second = nimbus(store), nimbus(store)
        former = first.lead()
        second.stand()
        store.expire(first.session)
        assert not first.elector.is_leader
        second.wait_to_lead()
        until(lambda: first.told[-1] is None)
        until(lambda: first.is_queued)
        with pytest.raises(NotLeaderError):
            former.activate_storm(TOPOLOGIES[0], StormBase("orders", TopologyStatus.ACTIVE, 1))
        assert second.storm.active_storms() == []

    def test_whoever_loses_its_place_in_the_queue_takes_another(self, store, nimbus):
        first, second = nimbus(store), nimbus(store)
        first.lead()
        second.stand()
        store.expire(second.session)
        until(lambda: second.is_queued)
        assert first.elector.is_leader
        assert second.told == []

    def test_no_write_of_a_former_leader_is_applied(self, store, nimbus):
        """The fence is in the store, and not in what a Nimbus believes."""
        first, second = nimbus(store), nimbus(store)
        former = first.lead()
        former.activate_storm(TOPOLOGIES[0], StormBase("orders", TopologyStatus.ACTIVE, 1))
        second.stand()
        first.elector.remove_from_leader_lock_queue()
        leader = second.wait_to_lead()
        with pytest.raises(NotLeaderError):
            former.remove_storm(TOPOLOGIES[0])
        leader.deactivate_storm(TOPOLOGIES[0])
        base = leader.storm_base(TOPOLOGIES[0])
        assert (base.status, base.leader_epoch) == (TopologyStatus.INACTIVE, leader.fence.epoch)


def test_nimbuses_come_and_go_as_they_like(store, nimbus):
    shelves = [Shelf(TOPOLOGIES), Shelf(), Shelf()]
    share(*shelves)
    first, second = nimbus(store, shelves[0]), nimbus(store, shelves[1])
    leader = first.lead()
    for storm_id in TOPOLOGIES:
        leader.activate_storm(storm_id, StormBase(storm_id, TopologyStatus.ACTIVE, 1))
    second.stand()
    first.close()
    second.wait_to_lead()
    # One that has an empty disk catches up, and may lead.
    third = nimbus(store, shelves[2])
    third.stand()
    second.close()
    assert third.wait_to_lead().active_storms() == sorted(TOPOLOGIES)
