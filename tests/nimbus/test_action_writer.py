"""The actions of a round on a store: many at once, and none after an error or the leadership."""

import threading

import pytest

from stormkeeper import paths
from stormkeeper.errors import ChangedMeanwhileError, NotLeaderError
from stormkeeper.nimbus.action_writer import AT_ONCE, ActionWriter
from stormkeeper.nimbus.scheduling.cluster import Launch, Topology
from stormkeeper.nimbus.scheduling.planning import Assign, FinishRebalance, Remove
from stormkeeper.nimbus.submitted import CachedTopology
from stormkeeper.paths import Slot
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import (
    RebalanceOptions,
    StormBase,
    TopologyActionOptions,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.plan import Claim
from support.clusters import NOW
from support.interposed import Interposed
from support.leaders import lead
from support.waiting import until

IDS = [f"t{n:02}" for n in range(3 * AT_ONCE)]


def assign(storm_id):
    slot = Slot("s", 6700 + int(storm_id[1:]))
    return Assign(storm_id, (Launch(slot, Claim(7, slot.port), ("q",)),))


class Round:
    """A leader with topologies, and the writer of one round; `on_commit` precedes each write."""

    def __init__(self, session):
        self.on_commit = lambda _written: None
        self.is_over = False
        self.done = []

        def commit(operations):
            self.on_commit([each.path for each in operations])
            return session.commit(operations)

        self.storm = StormClusterState(Interposed(session, commit=commit), Codec())
        self.leader = lead(self.storm)
        for storm_id in IDS:
            self.leader.activate_storm(storm_id, StormBase(storm_id, TopologyStatus.ACTIVE, 1))
        session.mkdirs(paths.ASSIGNMENTS)
        self.snapshot = self.leader.snapshot(is_synced=True)

    def check(self):
        if self.is_over:
            raise NotLeaderError("this leadership ended")

    def carry_out(self, actions):
        facts = Topology(id="", queries=("q",))
        self.writer = ActionWriter(
            self.leader,
            self.snapshot,
            dict.fromkeys(IDS, CachedTopology(facts, (), {}, 1.0)),
            now=NOW,
            check=self.check,
            master_code_dir="/code",
            on_removed=lambda storm_id, _owner: self.done.append(storm_id),
            on_done=self.done.append,
        )
        self.writer.carry_out(actions)


@pytest.fixture
def round_(memory):
    round_ = Round(memory.open())
    yield round_
    round_.storm.disconnect()


def test_assignments_of_many_topologies_are_written_at_once(round_):
    together = threading.Barrier(AT_ONCE)
    round_.on_commit = lambda _: together.wait(30)
    actions = [assign(storm_id) for storm_id in IDS]
    round_.carry_out(actions)
    assert round_.storm.assignments() == IDS
    assert sorted(each.storm_id for each in round_.done) == IDS
    assert threading.active_count() < AT_ONCE


def test_nothing_begins_after_a_topology_has_changed(round_):
    """The first is refused while others are under way: these end, and no other begins."""
    round_.leader.change_storm(IDS[0], lambda base: base)
    begun = []

    def on_commit(touched):
        begun.append(touched[-1])
        if touched[-1] != paths.assignment(IDS[0]):
            until(lambda: round_.writer._error is not None)

    round_.on_commit = on_commit
    with pytest.raises(ChangedMeanwhileError, match=IDS[0]):
        round_.carry_out([assign(storm_id) for storm_id in IDS])
    assert len(begun) <= AT_ONCE
    written = set(map(paths.assignment, round_.storm.assignments()))
    assert written == set(begun) - {paths.assignment(IDS[0])}
    assert {paths.assignment(each.storm_id) for each in round_.done} == written


def test_no_write_begins_after_the_end_of_the_leadership(round_):
    begun = []

    def on_commit(touched):
        begun.append(touched)
        round_.is_over = True

    round_.on_commit = on_commit
    with pytest.raises(NotLeaderError):
        round_.carry_out([assign(storm_id) for storm_id in IDS])
    # Those that had asked before the end were under way.
    assert 1 <= len(begun) <= AT_ONCE
    assert len(round_.storm.assignments()) == len(begun)


def test_a_revoked_lock_ends_the_round(round_):
    round_.storm.state.delete_node(round_.leader.fence.path)
    with pytest.raises(NotLeaderError):
        round_.carry_out([assign(storm_id) for storm_id in IDS])
    assert round_.storm.assignments() == []


def test_removals_come_first_and_a_topologys_actions_in_order(round_):
    options = TopologyActionOptions(rebalance_options=RebalanceOptions(num_workers=1))
    rebalancing = StormBase(
        IDS[1], TopologyStatus.REBALANCING, 2, topology_action_options=options, deadline_ms=0
    )
    round_.leader.activate_storm(IDS[1], rebalancing)
    round_.snapshot = round_.leader.snapshot(is_synced=True)
    order = []
    round_.on_commit = order.extend
    actions = [assign(IDS[1]), FinishRebalance(IDS[1]), assign(IDS[2]), Remove(IDS[0])]
    round_.carry_out(actions)
    changed = [path for path in order if path.startswith((paths.STORMS, paths.ASSIGNMENTS))]
    first = next(n for n, path in enumerate(changed) if IDS[0] not in path)
    assert not any(IDS[0] in path for path in changed[first:])
    of = [each for each in round_.done if getattr(each, "storm_id", None) == IDS[1]]
    assert of == actions[:2]
    assert round_.storm.storm_base(IDS[1]).num_workers == 1
