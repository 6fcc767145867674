"""The actions of a round on a store: many at once, and none after an error or the leadership."""

import itertools
from random import Random
from types import SimpleNamespace

import pytest

from stormkeeper import paths
from stormkeeper.errors import (
    ChangedMeanwhileError,
    NotLeaderError,
    OutcomeUnknownError,
)
from stormkeeper.nimbus import action_writer
from stormkeeper.nimbus.action_writer import ActionWriter
from stormkeeper.nimbus.scheduling.cluster import Launch, Topology, launches_from_record
from stormkeeper.nimbus.scheduling.cluster_memo import ClusterMemo
from stormkeeper.nimbus.scheduling.planning import Assign, FinishRebalance, Remove
from stormkeeper.nimbus.submitted import CachedTopology
from stormkeeper.paths import Slot
from stormkeeper.state.fenced_writer import BATCH_BYTES
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.daemon_records import MOST_ASSIGNMENTS as AT_ONCE
from stormkeeper.thrift import serialization
from stormkeeper.thrift.records import (
    Assignment,
    Checkpoints,
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

IDS = [f"t{n:03}" for n in range(3 * AT_ONCE)]


def assign(storm_id):
    slot = Slot("s", 6700 + int(storm_id[1:]))
    return Assign(storm_id, (Launch(slot, Claim(7, slot.port), ("q",)),))


class Round:
    """A leader with topologies, and the writer of one round; `on_commit` precedes each write."""

    def __init__(self, session):
        self.on_commit = lambda _written: None
        self.memo = ClusterMemo()
        self.is_over = False
        self.is_shared = False
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

    def writer_of(self, actions):
        facts = Topology(id="", queries=("q",), is_shared=self.is_shared)
        return ActionWriter(
            actions,
            self.leader,
            self.snapshot,
            dict.fromkeys(IDS, CachedTopology(facts, (), {}, 1.0)),
            self.memo,
            now=NOW,
            check=self.check,
            master_code_dir="/code",
            on_removed=lambda storm_id, _owner: self.done.append(storm_id),
            on_done=self.done.append,
        )

    def carry_out(self, actions):
        assert self.writer_of(actions).write()


@pytest.fixture
def round_(memory):
    round_ = Round(memory.open())
    yield round_
    round_.storm.disconnect()


def written_by(touched):
    return [path for path in touched if path.startswith(f"{paths.ASSIGNMENTS}/")]


def test_a_transaction_has_the_assignments_of_many_topologies(round_):
    counts = []
    round_.on_commit = lambda touched: counts.append(len(written_by(touched)))
    actions = [assign(storm_id) for storm_id in IDS]
    round_.carry_out(actions)
    assert counts == [AT_ONCE] * 3
    assert round_.storm.assignments() == IDS
    assert round_.done == actions


def test_a_plan_is_carried_out_in_parts(round_, monkeypatch):
    writer = round_.writer_of([*(assign(storm_id) for storm_id in IDS[:2]), Remove(IDS[2])])
    ticks = itertools.count()
    monkeypatch.setattr(action_writer, "time", SimpleNamespace(monotonic=ticks.__next__))
    parts = []
    while not writer.write(1.5):
        parts.append(list(round_.done))
    assert parts == [[IDS[2], Remove(IDS[2])], [*parts[0], assign(IDS[0])]]
    assert round_.storm.assignments() == IDS[:2]
    assert writer.write(0)


def test_large_assignments_go_in_several_transactions(round_):
    sizes = []
    commit = round_.leader._writer.session.commit

    def measured(operations):
        sizes.append(sum(len(getattr(each, "data", b"")) for each in operations))
        return commit(operations)

    round_.leader._writer.session.commit = measured
    random = Random(1)
    slots = [Slot("s", port) for port in range(1000)]
    claims = [Claim(7, port) for port in range(1000)]
    actions = []
    for storm_id in IDS[:10]:
        queries = [random.randbytes(40).hex() for _ in slots]
        launches = (
            Launch(*each) for each in zip(slots, claims, zip(queries, strict=True), strict=True)
        )
        actions.append(Assign(storm_id, tuple(launches)))
    round_.carry_out(actions)
    assert len(round_.storm.assignments()) == 10
    assert 2 < len(sizes) < 10
    assert max(sizes) <= BATCH_BYTES


def test_a_changed_topology_keeps_no_other_of_its_transaction(round_):
    """Of the first transaction, the others are written, and no other transaction begins."""
    round_.leader.change_storm(IDS[1], lambda base: base)
    with pytest.raises(ChangedMeanwhileError, match=IDS[1]):
        round_.carry_out([assign(storm_id) for storm_id in IDS])
    expected = [IDS[0], *IDS[2:AT_ONCE]]
    assert round_.storm.assignments() == expected
    assert [each.storm_id for each in round_.done] == expected


@pytest.mark.parametrize("is_written", [True, False])
def test_nothing_begins_after_a_write_of_unknown_outcome(round_, is_written):
    commit = round_.leader._writer.session.commit
    begun = []

    def lost(operations):
        begun.append(operations)
        if is_written:
            commit(operations)
        raise OutcomeUnknownError("the connection was lost")

    round_.leader._writer.session.commit = lost
    with pytest.raises(OutcomeUnknownError):
        round_.carry_out([assign(storm_id) for storm_id in IDS])
    assert len(begun) == 1
    assert len(round_.storm.assignments()) == (AT_ONCE if is_written else 0)
    assert round_.done == []


def test_no_write_begins_after_the_end_of_the_leadership(round_):
    def on_commit(_touched):
        round_.is_over = True

    round_.on_commit = on_commit
    with pytest.raises(NotLeaderError):
        round_.carry_out([assign(storm_id) for storm_id in IDS])
    assert round_.storm.assignments() == IDS[:AT_ONCE]


def test_the_view_takes_written_records_without_decoding(round_, monkeypatch):
    for storm_id in IDS[:2]:
        base = StormBase(storm_id, TopologyStatus.ACTIVE, 1, {"spout": 2}, owner="alice")
        base.checkpoints = Checkpoints(storm_id, storm_id, storm_id, None, False, {"was": "s2"})
        round_.leader.activate_storm(storm_id, base)
    round_.snapshot = round_.leader.snapshot(is_synced=True)
    decoded, decode = [], serialization.deserialize
    monkeypatch.setattr(
        serialization, "deserialize", lambda cls, data: (decoded.append(cls), decode(cls, data))[1]
    )
    round_.carry_out([assign(storm_id) for storm_id in IDS[:2]])
    view = round_.leader.view.caught_up()
    assert decoded == []
    for storm_id in IDS[:2]:
        for path, record in (
            (paths.storm(storm_id), view.bases[storm_id]),
            (paths.assignment(storm_id), view.assignments[storm_id]),
        ):
            data = round_.storm.state.get_data(path)
            assert record == decode(type(record), data)
            assert round_.storm.codec.write(record) == data
    assert view.bases[IDS[0]].checkpoints.nodes == {"was": "s2", "q": "s"}


def test_a_shared_checkpoint_is_noted_when_its_launch_changes(round_):
    storm_id, round_.is_shared = IDS[0], True
    base = StormBase(storm_id, TopologyStatus.ACTIVE, 1)
    base.checkpoints = Checkpoints(storm_id, storm_id, storm_id, "/c", True, {})
    round_.leader.activate_storm(storm_id, base)

    def noted_after(node):
        round_.snapshot = round_.leader.snapshot(is_synced=True)
        launch = Launch(Slot(node, 6700), Claim(7, 1), ("q",))
        round_.carry_out([Assign(storm_id, (launch,))])
        return round_.storm.storm_base(storm_id).checkpoints.nodes

    assert [noted_after(node) for node in "abc"] == [{}, {"q": "a"}, {"q": "b"}]
    round_.snapshot = round_.leader.snapshot(is_synced=True)
    round_.carry_out([Remove(storm_id)])
    assert round_.storm.checkpoints(storm_id).record.nodes == {"q": "c"}


def test_written_launches_are_those_of_the_record(round_):
    round_.carry_out([assign(storm_id) for storm_id in IDS[:2]])
    seen = round_.leader.snapshot(is_synced=True)
    launches = round_.memo.launches(seen)
    assert launches == {each: launches_from_record(seen.assignments[each]) for each in IDS[:2]}
    assert launches[IDS[0]] is round_.done[0].launches
    round_.leader.set_assignment(IDS[0], Assignment("/other"))
    assert round_.memo.launches(round_.leader.snapshot(is_synced=True))[IDS[0]] == ()


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
