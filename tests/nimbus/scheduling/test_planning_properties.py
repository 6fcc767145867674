"""What holds of every plan, over clusters that nobody thought of."""

import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from stormkeeper.heartbeats.liveness import Status
from stormkeeper.nimbus.scheduling import planning
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Supervisor, Topology
from stormkeeper.nimbus.scheduling.planning import Assign, counter_after, plan, staying_workers
from stormkeeper.paths import Slot
from stormkeeper.thrift.records import TopologyStatus
from stormkeeper.topology.plan import Claim
from support.clusters import EPOCH, NOW, carried_out

TO_RUN = (TopologyStatus.ACTIVE, TopologyStatus.INACTIVE)
GONE = ("gone1", "gone2")
MEMORY = (0, 500, 1000, 2000)


def a_supervisor(name, claims, randomness):
    choice = randomness.choice
    return Supervisor(
        name,
        f"{name}.example",
        frozenset(randomness.sample(range(1, 5), randomness.randint(1, 4))),
        choice([float("inf"), 4000, 2500, 1000]),
        frozenset(randomness.sample(range(1, 6), randomness.randint(0, 2))),
        {randomness.randint(1, 4): choice(claims) for _ in range(3)},
        choice([10.0, 1000.0]),
        choice([None, None, None, "the disk is full"]),
        tells_claims=choice([False, True]),
    )


def a_topology(name, free, claims, randomness):
    """A topology, some of whose queries are on slots that are taken from those that are free."""
    choice = randomness.choice
    queries = [f"q{n}" for n in range(randomness.randint(1, 4))]
    workers = randomness.randint(1, 4)
    memory_mb = choice(MEMORY)
    placed = randomness.sample(queries, randomness.randint(0, len(queries)))
    groups = [placed[n::workers] for n in range(min(workers, len(placed)))]
    status = choice([*TO_RUN, TopologyStatus.ACTIVE, *TopologyStatus])
    launches = [
        Launch(
            free.pop(),
            claims.pop(),
            tuple(sorted(group)),
            NOW - 500,
            choice([memory_mb, 1500]),
            choice([False, False, True]),
            choice([False, True]),
        )
        for group in groups[: len(free)]
    ]
    is_waiting = status not in TO_RUN
    return Topology(
        id=name,
        status=status,
        queries=tuple(queries),
        workers=workers,
        memory_mb=memory_mb,
        launched_at=randomness.randint(0, 2),
        is_shared=choice([False, True]),
        ended=frozenset(randomness.sample(queries, randomness.randint(0, 1))),
        claimed=frozenset(randomness.sample(queries, randomness.randint(0, 2) % len(queries))),
        released=frozenset(one.claim for one in launches if one.is_released),
        launches=tuple(launches),
        due_at=choice([NOW - 1, NOW, NOW + 1]) if is_waiting else None,
        previous=choice([None, TopologyStatus.INACTIVE]) if is_waiting else None,
        rebalanced_workers=choice([None, 1, 4]) if is_waiting else None,
        blocked=choice([None, None, None, None, "nobody has its code"]),
    )


@st.composite
def clusters(draw):
    """A cluster, in which no slot and no query has two workers; all else there may be.

    Its size is drawn, and so is found to be the least that fails; the rest follows from a number.
    """
    names = [f"s{n}" for n in range(draw(st.integers(0, 4)))]
    count = draw(st.integers(0, 6))
    randomness = random.Random(draw(st.integers(0, 10**9)))
    free = [Slot(name, port) for name in [*names, *GONE] for port in range(1, 6)]
    claims = [Claim(epoch, n) for epoch in (EPOCH - 1, EPOCH) for n in range(15)]
    randomness.shuffle(free)
    randomness.shuffle(claims)
    found = [a_topology(f"t{n}", free, claims, randomness) for n in range(count)]
    used = [one.claim for each in found for one in each.launches]
    statuses = [*Status, Status.DEAD, Status.DEAD]
    return Cluster(
        now=NOW,
        epoch=EPOCH,
        next_counter=randomness.randint(0, 40),
        supervisors={name: a_supervisor(name, used or claims, randomness) for name in names},
        topologies={each.id: each for each in found},
        workers={claim: randomness.choice(statuses) for claim in used if randomness.random() < 0.9},
        strays=frozenset(randomness.sample(["x", "y"], randomness.randint(0, 2))),
    )


def launches(cluster):
    return [(id_, one) for id_, each in cluster.topologies.items() for one in each.launches]


def new_ones(before, after):
    known = {one.claim for _, one in launches(before)}
    return [(id_, one) for id_, one in launches(after) if one.claim not in known]


def is_rebalanced(topology):
    return (
        topology.status is TopologyStatus.REBALANCING
        and topology.due_at <= NOW
        and topology.blocked is None
    )


def free_slots(cluster):
    """Where there is a free slot, and how much memory is free beside it."""
    held = launches(cluster)
    taken = {one.slot for _, one in held}
    for one in cluster.supervisors.values():
        memory_mb = one.memory_mb - sum(h.memory_mb for _, h in held if h.slot.node == one.id)
        for port in one.ports - one.running:
            if Slot(one.id, port) not in taken and not one.refuses:
                yield one.id, memory_mb


def is_over(one, cluster):
    """Whether a worker is dead on a slot that its supervisor has no more."""
    there = cluster.supervisors[one.slot.node]
    is_dead = not one.is_released and cluster.workers.get(one.claim) is Status.DEAD
    return is_dead and one.slot.port not in there.ports | there.running


@given(clusters())
def test_a_plan_that_is_carried_out_leaves_nothing_to_do(before):
    actions = plan(before)
    event(f"{min(len(actions), 5)} actions")
    assert plan(carried_out(before, actions)) == ()


@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_in_which_a_cluster_was_read_means_nothing(before, randomness):
    def shuffled(mapping):
        return dict(randomness.sample([*mapping.items()], len(mapping)))

    other = replace(
        before,
        supervisors=shuffled(before.supervisors),
        workers=shuffled(before.workers),
        topologies={
            id_: replace(each, launches=tuple(randomness.sample(each.launches, len(each.launches))))
            for id_, each in shuffled(before.topologies).items()
        },
    )
    assert plan(other) == plan(before)


@given(clusters())
def test_no_slot_and_no_query_is_taken_twice(before):
    after = carried_out(before)
    slots = [one.slot for _, one in launches(after)]
    assert len(slots) == len(set(slots))
    for each in after.topologies.values():
        placed = [query for one in each.launches for query in one.queries]
        assert len(placed) == len(set(placed))
    for id_, one in new_ones(before, after):
        there, topology = before.supervisors[one.slot.node], before.topologies[id_]
        assert one.slot.port in there.ports - there.running
        assert not there.refuses
        assert one.queries
        assert set(one.queries) <= set(topology.queries) - topology.ended


@given(clusters())
def test_nothing_that_may_be_alive_is_moved(before):
    after = carried_out(before)
    for id_, topology in before.topologies.items():
        if id_ not in after.topologies or is_rebalanced(topology):
            continue
        for one in topology.launches:
            has_work = not set(one.queries) <= topology.ended
            may_live = before.workers.get(one.claim) is not Status.DEAD
            there = before.supervisors.get(one.slot.node)
            runs = there is not None and one.slot.port in there.running
            if not one.is_released and has_work and (may_live or runs):
                assert one in after.topologies[id_].launches


@given(clusters())
def test_only_who_runs_again_elsewhere_loses_its_place(before):
    after = carried_out(before)
    for id_, topology in before.topologies.items():
        if id_ not in after.topologies:
            assert topology.status is TopologyStatus.KILLED
            continue
        here = {query for one in after.topologies[id_].launches for query in one.queries}
        there = {query for one in topology.launches for query in one.queries}
        assert there - here <= topology.ended


@given(clusters())
def test_query_stays_with_its_unshared_checkpoint(before):
    after = carried_out(before)
    for id_, one in new_ones(before, after):
        topology = before.topologies[id_]
        homes = {
            old.slot.node
            for old in topology.launches
            if not set(old.queries).isdisjoint(one.queries) and not topology.holds_nothing(old)
        }
        assert topology.is_shared or homes <= {one.slot.node}


@given(st.integers(0, 10**9))
def test_a_query_never_leaves_the_machine_where_it_was_claimed(seed):
    """Round after round, while machines and workers come, go and claim whenever they may."""
    randomness = random.Random(seed)
    names = ("a", "b", "c")
    # Workers on the last machine are of a release that tells nothing.
    told = {name: name != "c" for name in names}
    topology = Topology(id="t", queries=("p", "q", "r"), workers=randomness.randint(1, 3))
    launched, counter = (), 0
    claimed, homes = set(), {}
    for _ in range(25):
        there = {
            name: Supervisor(
                name,
                name,
                frozenset({1, 2}),
                running=frozenset(randomness.sample([1, 2], randomness.randint(0, 1))),
                stopped={one.slot.port: one.claim for one in launched if one.is_released},
                tells_claims=told[name],
            )
            for name in randomness.sample(names, randomness.randint(1, 3))
        }
        released = frozenset(one.claim for one in launched if one.is_released)
        read = replace(topology, launches=launched, claimed=frozenset(claimed), released=released)
        if randomness.random() < 0.2:
            rebalance = {"status": TopologyStatus.REBALANCING, "due_at": NOW}
            read = replace(read, **rebalance)
        # Some claim after the read, and before the plan is written.
        for one in launched:
            if one.is_released or randomness.random() < 0.7:
                continue
            for query in one.queries:
                assert homes.setdefault(query, one.slot.node) == one.slot.node
                if one.tells_claims:
                    claimed.add(query)
        before = Cluster(
            now=NOW,
            epoch=EPOCH,
            next_counter=counter,
            supervisors=there,
            topologies={"t": read},
            workers={
                one.claim: randomness.choice([Status.DEAD, Status.DEAD, Status.ALIVE])
                for one in launched
            },
        )
        after = carried_out(before)
        launched, counter = after.topologies["t"].launches, after.next_counter
    moved = sum(not homes.get(query) for query in topology.queries)
    event(f"{len(homes)} queries were claimed, {moved} were not")


@given(clusters())
def test_nothing_starts_while_a_released_worker_may_run(before):
    after = carried_out(before)
    for id_, _ in new_ones(before, after):
        topology = before.topologies[id_]
        for old in topology.launches:
            if (
                not (old.is_released or is_rebalanced(topology))
                or set(old.queries) <= topology.ended
            ):
                continue
            node, port = old.slot
            there = before.supervisors.get(node)
            if there is None:
                assert before.workers.get(old.claim) is Status.DEAD
            elif port in there.ports:
                assert there.stopped.get(port, Claim(0, 0)) >= old.claim
            else:
                assert port not in there.running


@given(clusters())
def test_memory_and_the_number_of_workers_are_kept(before):
    after = carried_out(before)
    new = new_ones(before, after)
    for node in {one.slot.node for _, one in new}:
        here = (one for _, one in launches(after) if one.slot.node == node)
        used = sum(one.memory_mb for one in here if not is_over(one, after))
        wanted = [one.memory_mb for _, one in new if one.slot.node == node]
        assert used <= before.supervisors[node].memory_mb or not any(wanted)
    for id_ in {id_ for id_, _ in new}:
        topology = after.topologies[id_]
        statuses = [
            after.workers.get(one.claim) for one in topology.launches if not one.is_released
        ]
        assert sum(status is not Status.DEAD for status in statuses) <= topology.workers


@given(clusters())
def test_nothing_is_left_out_that_would_fit(before):
    after = carried_out(before)
    for id_, topology in after.topologies.items():
        if topology.status not in TO_RUN or topology.blocked:
            continue
        if any(one.is_released for one in topology.launches):
            continue  # another test's
        placed = {query for one in topology.launches for query in one.queries}
        lost = [
            one
            for one in topology.launches
            if topology.is_shared
            and one.slot.node not in after.supervisors
            and after.workers.get(one.claim) is Status.DEAD
            and not set(one.queries) <= topology.ended
        ]
        is_new = not set(topology.queries) <= topology.ended | placed
        if lost or (is_new and len(topology.launches) < topology.workers):
            event(f"{'lost' if lost else 'new'} is left out")
            fit = [node for node, memory_mb in free_slots(after) if memory_mb >= topology.memory_mb]
            assert fit == [], id_


@given(clusters())
def test_short_way_equals_the_long_way(before):
    """A topology that needs no place is planned without its workers' fates; see `clusters`."""
    for each in (before, carried_out(before)):
        texts = {id_: replace(one, text="") for id_, one in each.topologies.items()}
        untold = replace(each, topologies=texts)
        with patch.object(planning, "staying_workers", lambda *_: None):
            expected = plan(untold)
        assert plan(untold) == expected
    settled = [one for one in untold.topologies.values() if staying_workers(one) is not None]
    event(f"{min(len(settled), 3)} topologies need no place")


@given(clusters())
def test_workers_that_live_need_no_status(before):
    silent = {claim: each for claim, each in before.workers.items() if each is not Status.ALIVE}
    assert plan(replace(before, workers=silent)) == plan(before)


@given(clusters())
def test_claims_rise(before):
    actions = plan(before)
    after = carried_out(before, actions)
    new = [one.claim for _, one in new_ones(before, after)]
    assert len(new) == len(set(new))
    for claim in new:
        assert claim > max((one.claim for _, one in launches(before)), default=Claim(0, 0))
        assert (claim.epoch, claim.counter) >= (EPOCH, before.next_counter)
        assert claim.counter < counter_after(actions, EPOCH, before.next_counter)


@st.composite
def idle_clusters(draw, memory_mb=None):
    """Machines that are alike and idle, and topologies that were submitted just now."""
    memory_mb = draw(st.sampled_from(MEMORY)) if memory_mb is None else memory_mb
    slots, capacity = draw(st.integers(1, 4)), draw(st.sampled_from([float("inf"), 2500]))
    names = [f"s{n}" for n in range(draw(st.integers(1, 4)))]
    return Cluster(
        now=NOW,
        epoch=EPOCH,
        next_counter=0,
        supervisors={
            name: Supervisor(name, name, frozenset(range(slots)), capacity) for name in names
        },
        topologies={
            f"t{n}": Topology(
                id=f"t{n}",
                queries=tuple("abcde"[: draw(st.integers(1, 5))]),
                workers=draw(st.integers(1, 5)),
                memory_mb=memory_mb,
            )
            for n in range(draw(st.integers(1, 8)))
        },
        workers={},
    )


@given(idle_clusters())
def test_everyone_gets_a_slot_before_anyone_gets_one_more(before):
    after = carried_out(before)
    given_, wanted = {}, {}
    for id_, topology in after.topologies.items():
        given_[id_] = len(topology.launches)
        wanted[id_] = min(topology.workers, len(topology.queries))
        sizes = [len(one.queries) for one in topology.launches]
        assert not sizes or max(sizes) - min(sizes) <= 1
    short = [number for id_, number in given_.items() if number < wanted[id_]]
    assert not short or max(given_.values()) <= min(short) + 1


@given(idle_clusters())
def test_each_topology_is_spread_evenly_over_machines(before):
    assume(before.supervisors["s0"].memory_mb == float("inf"))
    after = carried_out(before)
    room = {node for node, _ in free_slots(after)}
    for topology in after.topologies.values():
        nodes = [one.slot.node for one in topology.launches]
        if nodes and room:
            most = max(map(nodes.count, nodes))
            assert all(nodes.count(node) >= most - 1 for node in room)


@given(idle_clusters())
def test_single_workers_are_spread_evenly(before):
    alone = {id_: replace(each, workers=1) for id_, each in before.topologies.items()}
    after = carried_out(replace(before, topologies=alone))
    nodes = [one.slot.node for _, one in launches(after)]
    counts = [nodes.count(name) for name in before.supervisors]
    assert max(counts) - min(counts) <= 1


@given(idle_clusters(memory_mb=1000))
def test_as_many_get_a_slot_as_there_is_room_for(before):
    """Exactly so where all want the same amount of memory."""
    after = carried_out(before)
    of_one = [int(min(len(s.ports), s.memory_mb / 1000)) for s in before.supervisors.values()]
    running = [id_ for id_, each in after.topologies.items() if each.launches]
    assert len(running) == min(len(after.topologies), sum(of_one))


@pytest.mark.parametrize("seed", range(3))
def test_cluster_that_keeps_losing_machines(seed):
    """Plan after plan of one leader: all runs as long as there is room for it."""
    randomness = random.Random(seed)
    sups = {f"s{n}": Supervisor(f"s{n}", f"s{n}", frozenset(range(4))) for n in range(10)}
    tops = {
        f"t{n}": Topology(id=f"t{n}", queries=("a", "b", "c"), workers=2, is_shared=True)
        for n in range(8)
    }
    now = carried_out(
        Cluster(now=NOW, epoch=EPOCH, next_counter=0, supervisors=sups, topologies=tops, workers={})
    )
    seen = {one.claim for _, one in launches(now)}
    for _ in range(20):
        lost = set(randomness.sample(sorted(sups), 3))
        here = {name: one for name, one in sups.items() if name not in lost}
        workers = {
            one.claim: Status.DEAD if one.slot.node in lost else Status.ALIVE
            for _, one in launches(now)
        }
        before = replace(now, supervisors=here, workers=workers)
        now = carried_out(before)
        assert not any(one.slot.node in lost for _, one in launches(now))
        new = {one.claim for _, one in new_ones(before, now)}
        assert not new or min(new) > max(seen)
        seen |= new
        for topology in now.topologies.values():
            assert sorted(q for one in topology.launches for q in one.queries) == ["a", "b", "c"]
            assert len(topology.launches) <= 2


def test_the_plans_of_the_properties_do_something():
    """Or all of the above would be of clusters in which nothing happens."""
    found = set()

    @given(clusters())
    def look(before):
        actions = plan(before)
        found.update(type(action).__name__ for action in actions)
        if any(isinstance(each, Assign) for each in actions) and new_ones(
            before, carried_out(before)
        ):
            found.add("launch")

    look()
    assert found == {"Remove", "Assign", "FinishRebalance", "SetStatus", "launch"}
