from dataclasses import replace

import pytest

from stormkeeper.nimbus.scheduling import planning
from stormkeeper.nimbus.scheduling.planning import (
    Assign,
    FinishRebalance,
    Remove,
    SetStatus,
    counter_after,
    plan,
)
from stormkeeper.thrift.records import TopologyStatus
from stormkeeper.topology.plan import Claim
from support.clusters import (
    EPOCH,
    NOW,
    carried_out,
    cluster,
    launch,
    places,
    supervisor,
    texts,
    topology,
)

KILLED, REBALANCING = TopologyStatus.KILLED, TopologyStatus.REBALANCING

FIT = "Fully Scheduled"


def planned(*members, **facts):
    """Where all is, and what is told, once the plan of a cluster is carried out."""
    before = cluster(*members, **facts)
    after = carried_out(before)
    assert plan(after) == ()
    return places(after), texts(after)


# --- the first launch -----------------------------------------------------------------------------


def test_a_topology_is_spread_over_machines():
    where, told = planned(supervisor("a"), supervisor("b"), topology("t", "q r s", workers=2))
    assert where == {"t": {"a:6700": "q s", "b:6700": "r"}}
    assert told == {"t": FIT}


def test_query_is_in_one_worker_with_many_allowed():
    where, told = planned(supervisor("a", slots=4), topology("t", "q", workers=4))
    assert where == {"t": {"a:6700": "q"}}
    assert told == {"t": FIT}


def test_a_topology_takes_fewer_slots_rather_than_none():
    where, told = planned(supervisor("a", slots=1), topology("t", "q r s", workers=3))
    assert where == {"t": {"a:6700": "q r s"}}
    assert told == {"t": "Running with fewer slots than requested (1/3)"}


def test_everyone_gets_a_slot_before_anyone_gets_two():
    where, told = planned(
        supervisor("a", slots=3),
        topology("greedy", "q r s", workers=3, launched_at=1),
        topology("late", "q", launched_at=2),
    )
    assert where == {"greedy": {"a:6700": "q s", "a:6702": "r"}, "late": {"a:6701": "q"}}
    assert told["greedy"] == "Running with fewer slots than requested (2/3)"


@pytest.mark.parametrize(
    ("slots", "memory_mb", "counts"),
    [(6, 6000, [1, 2, 3]), (5, 6000, [3]), (7, 6000, [3])],
    ids=["room for all", "few slots", "little memory beside the slots"],
)
def test_a_large_plan_leaves_topologies_to_the_next(monkeypatch, slots, memory_mb, counts):
    monkeypatch.setattr(planning, "_MOST_WORKERS", 1)
    members = (topology(id_, "q r", workers=2, memory_mb=1000) for id_ in "tuv")
    now = cluster(supervisor("a", slots=slots, memory_mb=memory_mb), *members)
    found = []
    while plan(now):
        now = carried_out(now)
        found.append(sum(map(bool, places(now).values())))
    assert found == counts


def test_who_came_first_gets_the_last_slot():
    where, told = planned(
        supervisor("a", slots=1), topology("a", launched_at=2), topology("b", launched_at=1)
    )
    assert where == {"a": {}, "b": {"a:6700": "q"}}
    assert told["a"] == "Not enough slots: 1 slot is missing, and none is free"


def with_one_lost():
    """A topology with three workers, one of them on a machine that is gone."""
    old = (
        launch("a:6700", "p", claim=1),
        launch("a:6701", "q", claim=2),
        launch("gone:6700", "r", claim=3),
    )
    return topology("old", "p q r", workers=3, is_shared=True, launches=old, launched_at=1)


def test_last_slot_goes_to_a_topology_without_any():
    new = topology("new", launched_at=2)
    where, _ = planned(supervisor("a", slots=3), with_one_lost(), new, dead=[3])
    assert where["new"] == {"a:6702": "q"}
    assert where["old"] == {"a:6700": "p", "a:6701": "q", "gone:6700": "r"}


def test_every_topology_gets_a_slot_before_any_gets_two():
    new = topology("new", "q r", workers=2, launched_at=2)
    where, _ = planned(supervisor("a", slots=4), with_one_lost(), new, dead=[3])
    assert where["new"] == {"a:6702": "q r"}
    assert where["old"] == {"a:6700": "p", "a:6701": "q", "a:6703": "r"}


def test_machines_are_filled_alike():
    where, _ = planned(
        supervisor("a", slots=4),
        supervisor("b", slots=8),
        *(topology(f"t{n}") for n in range(6)),
    )
    taken = [next(iter(slots)).split(":")[0] for slots in where.values()]
    assert (taken.count("a"), taken.count("b")) == (2, 4)


def test_an_inactive_topology_has_its_workers_too():
    where, _ = planned(supervisor("a"), topology("t", status=TopologyStatus.INACTIVE))
    assert where == {"t": {"a:6700": "q"}}


def test_a_supervisor_that_refuses_work_gets_none():
    where, told = planned(supervisor("a", refuses="the disk is full"), topology("t"))
    assert where == {"t": {}}
    assert told == {"t": "Not enough slots: 1 slot is missing, and none is free"}


def test_a_port_on_which_something_still_runs_is_not_free():
    where, _ = planned(supervisor("a", running=frozenset({6700})), topology("t"))
    assert where == {"t": {"a:6701": "q"}}


def test_a_topology_without_its_code_waits_and_keeps_what_it_has():
    where, told = planned(
        supervisor("a"),
        topology(
            "t", "q r", launches=(launch("a:6701", "q"),), blocked="n1:6627 had its code last"
        ),
        dead=[1],
    )
    assert where == {"t": {"a:6701": "q"}}
    assert told == {"t": "Waits: n1:6627 had its code last"}


# --- memory ---------------------------------------------------------------------------------------


def test_workers_fit_into_the_memory_of_their_machine():
    where, told = planned(
        supervisor("a", slots=4, memory_mb=2500),
        topology("t", "q r s", workers=3, memory_mb=1000),
    )
    assert where == {"t": {"a:6700": "q s", "a:6701": "r"}}
    assert told == {"t": "Running with fewer slots than requested (2/3)"}


def test_a_topology_says_how_much_memory_is_missing():
    _, told = planned(supervisor("a", memory_mb=1536), topology("t", memory_mb=4096))
    assert told == {
        "t": "Not enough memory: 2560 MB are missing, as a worker needs 4096 MB, and beside a free"
        " slot there are at most 1536 MB"
    }


def test_small_workers_leave_memory_for_a_large_one():
    where, _ = planned(
        supervisor("a", slots=1, memory_mb=4096),
        supervisor("b", slots=1, memory_mb=1024),
        topology("small", memory_mb=1000, launched_at=1),
        topology("large", memory_mb=4000, launched_at=2),
    )
    assert where == {"large": {"a:6700": "q"}, "small": {"b:6700": "q"}}


def test_the_machine_that_is_filled_least_by_memory_comes_first():
    where, _ = planned(
        supervisor("a", slots=8, memory_mb=4000),
        supervisor("b", slots=2, memory_mb=16000),
        topology("old", launches=(launch("a:6700", "q", memory_mb=3000),), memory_mb=3000),
        topology("t", memory_mb=500),
    )
    assert where["t"] == {"b:6700": "q"}


# --- who is dead, and who may be ------------------------------------------------------------------


def lost(*machines, shared=True, **facts):
    """A topology whose worker was at a machine that is gone, and other machines."""
    old = topology("t", is_shared=shared, launches=(launch("gone:6700", "q"),))
    return planned(old, *machines, **facts)


def test_a_dead_worker_s_queries_run_elsewhere():
    where, told = lost(supervisor("a"), dead=[1])
    assert (where, told) == ({"t": {"a:6700": "q"}}, {"t": FIT})


def test_a_worker_whose_machine_is_gone_and_that_beats_stays():
    where, told = lost(supervisor("a"))
    assert (where, told) == ({"t": {"gone:6700": "q"}}, {"t": FIT})


def test_nobody_is_moved_who_may_be_alive_and_that_is_said():
    where, told = lost(supervisor("a"), unproven=[1])
    assert where == {"t": {"gone:6700": "q"}}
    assert told == {
        "t": "No Pacemaker can say yet whether the worker at gone:6700 lives: it is not moved"
    }


def test_a_worker_of_which_nothing_is_known_yet_stays():
    old = topology("t", is_shared=True, launches=(launch("gone:6700", "q"),), text=FIT)
    assert plan(replace(cluster(old, supervisor("a")), workers={})) == ()


def test_query_waits_for_the_machine_of_its_checkpoint():
    where, told = lost(supervisor("a"), shared=False, dead=[1])
    assert where == {"t": {"gone:6700": "q"}}
    assert told == {
        "t": "Waits for the machine of the worker at gone:6700: the checkpoint is there and is not"
        " shared"
    }


HOMES = {"q": "b", "r": "c", "elsewhere": "a"}


UNCLAIMED = launch("a:6700", "q", tells_claims=True)


@pytest.mark.parametrize("machine", [(), [supervisor("a")]])
def test_an_unclaimed_query_moves_when_its_worker_is_released(machine):
    """Its machine is gone, or does not get its worker started."""
    t = topology("t", launches=(UNCLAIMED,))
    first = carried_out(cluster(*machine, supervisor("b"), t, dead=[1]))
    [released] = first.topologies["t"].launches
    assert released == replace(UNCLAIMED, is_released=True)
    stopped = [replace(each, stopped={6700: UNCLAIMED.claim}) for each in machine]
    read = topology("t", launches=(released,), released=frozenset({released.claim}))
    assert places(carried_out(cluster(*stopped, supervisor("b"), read, dead=[1]))) == {
        "t": {"b:6700": "q"}
    }
    claimed = replace(read, claimed=frozenset({"q"}))
    after = carried_out(cluster(*stopped, supervisor("b"), claimed, dead=[1]))
    assert "b:6700" not in places(after)["t"]


def test_a_worker_without_room_elsewhere_is_not_released():
    full = supervisor("b", slots=0)
    for machine in ((), [supervisor("a")]):
        before = cluster(*machine, full, topology("t", launches=(UNCLAIMED,)), dead=[1])
        [text] = texts(carried_out(before)).values()
        assert carried_out(before).topologies["t"].launches == (UNCLAIMED,)
        assert text.startswith("Waits until its" if machine else "Waits for a free slot, or for")


@pytest.mark.parametrize("facts", [{}, {"claimed": frozenset({"q"})}])
def test_query_with_a_possible_claim_waits_for_its_machine(facts):
    told = replace(UNCLAIMED, tells_claims=bool(facts))
    before = cluster(supervisor("b"), topology("t", launches=(told,), **facts), dead=[1])
    after = carried_out(before)
    assert after.topologies["t"].launches == (told,)
    assert texts(after)["t"].startswith("Waits for the machine of the worker at a:6700")


def test_queries_on_storms_own_supervisors_move_at_once():
    java = supervisor("a", slots=0, is_ours=False, running=frozenset({6700}))
    placed = launch("a:6700", "q")
    t = topology("t", launches=(placed,), homes={"q": "a"})
    assert places(carried_out(cluster(java, supervisor("b"), t, dead=[1]))) == {
        "t": {"b:6700": "q"}
    }
    assert texts(carried_out(cluster(java, topology("t"))))["t"] == (
        "Not enough slots: 1 slot is missing, and none is free: what runs on a.example is Storm's"
        " own supervisor, for Java topologies only"
    )
    gone_on = topology("t", homes={"q": "a"})
    assert places(carried_out(cluster(java, supervisor("b"), gone_on)))["t"] == {"b:6700": "q"}


def test_launch_knows_if_all_claims_are_recorded():
    def told(*members):
        return [one.tells_claims for one in carried_out(cluster(*members)).topologies["t"].launches]

    old = supervisor("a", tells_claims=False)
    assert told(supervisor("a"), topology("t")) == [True]
    assert told(old, topology("t")) == [False]
    assert told(supervisor("a"), topology("t", homes={"q": "a"})) == [False]
    assert told(supervisor("a"), topology("t", is_shared=True)) == [False]


def test_who_goes_on_from_checkpoints_is_placed_where_they_are():
    going_on = topology("t", "q r s", workers=3, homes=HOMES)
    where, told = planned(going_on, *map(supervisor, "abc"))
    assert {place.split(":")[0]: queries for place, queries in where["t"].items()} == {
        "a": "s",
        "b": "q",
        "c": "r",
    }
    assert told == {"t": FIT}


def test_who_goes_on_from_checkpoints_waits_for_their_machine():
    going_on = topology("t", "q r", workers=2, homes=HOMES)
    where, told = planned(going_on, supervisor("a", slots=9), supervisor("c"))
    assert where == {"t": {"c:6700": "r"}}
    assert told == {"t": "Waits for the machine b: its checkpoint is there and is not shared"}


def test_a_machine_that_is_gone_is_told_by_its_last_name():
    hosts = {"b": "m2", "gone": "m3"}
    _, told = planned(topology("t", "q", homes=HOMES, hosts=hosts), supervisor("a"))
    assert told == {"t": "Waits for the machine m2: its checkpoint is there and is not shared"}
    old = topology("t", launches=(launch("gone:6700", "q"),), hosts=hosts)
    _, told = planned(old, supervisor("a"), dead=[1])
    assert told["t"].startswith("Waits for the machine of the worker at m3:6700:")


def test_who_goes_on_from_shared_checkpoints_is_placed_anywhere():
    going_on = topology("t", "q r", workers=2, homes=HOMES, is_shared=True)
    where, _ = planned(going_on, supervisor("a"))
    assert where == {"t": {"a:6700": "q", "a:6701": "r"}}


def test_who_finds_no_other_place_keeps_its_own():
    where, told = lost(dead=[1])
    assert where == {"t": {"gone:6700": "q"}}
    assert told == {"t": "Not enough slots: 1 slot is missing, and none is free"}


def test_the_queries_of_those_who_live_stay_where_they_are():
    alive, dead = launch("a:6700", "q", "r", claim=1), launch("gone:6700", "s", claim=2)
    old = topology("t", "q r s", workers=2, is_shared=True, launches=(alive, dead))
    where, _ = planned(old, supervisor("a", slots=1), supervisor("b"), dead=[2])
    assert where == {"t": {"a:6700": "q r", "b:6700": "s"}}


def test_a_worker_that_runs_as_its_supervisor_says_stays():
    """Between the machines and the Pacemakers something is cut: that is no reason to move all."""
    old = topology("t", is_shared=True, launches=(launch("a:6700", "q"),))
    here = supervisor("a", running=frozenset({6700}))
    where, told = planned(old, here, supervisor("b"), dead=[1])
    assert where == {"t": {"a:6700": "q"}}
    assert told == {
        "t": "No pulse comes from the worker at a.example:6700, which runs as its supervisor says:"
        " it is not moved"
    }


def test_new_supervisor_may_restart_its_workers():
    old = topology("t", is_shared=True, launches=(launch("a:6700", "q"),))
    where, told = planned(old, supervisor("a", uptime_secs=119), supervisor("b"), dead=[1])
    assert where == {"t": {"a:6700": "q"}}
    assert told == {
        "t": "Waits until its supervisor has started the worker at a.example:6700 again"
    }


def test_worker_that_does_not_start_moves():
    old = topology("t", is_shared=True, launches=(launch("a:6700", "q"),))
    stuck = supervisor("a", uptime_secs=121)
    assert planned(old, stuck, supervisor("b"), dead=[1])[0] == {"t": {"b:6700": "q"}}
    assert planned(old, stuck, dead=[1])[0] == {"t": {"a:6700": "q"}}


def test_the_slot_of_a_worker_that_moves_is_of_use_at_once():
    old = topology("t", is_shared=True, launches=(launch("a:6700", "q"),))
    pinned = topology("u", "q", launches=(launch("b:6700", "q", claim=2),))
    new = [topology("v"), topology("w")]
    sups = supervisor("a", slots=1), supervisor("b", slots=3)
    where, _ = planned(old, pinned, *new, *sups, dead=[1])
    assert sorted(slot for slots in where.values() for slot in slots) == [
        "a:6700",
        "b:6700",
        "b:6701",
        "b:6702",
    ]
    assert "a:6700" not in where["t"]


def test_query_of_a_removed_slot_stays_on_its_machine():
    old = topology("t", launches=(launch("b:7000", "q"),))
    where, _ = planned(old, supervisor("a"), supervisor("b"), dead=[1])
    assert where == {"t": {"b:6700": "q"}}


def test_who_can_be_on_one_machine_alone_comes_first():
    old = topology("z", launches=(launch("b:7000", "q"),))
    where, _ = planned(
        supervisor("a", slots=1),
        supervisor("b", slots=1),
        topology("t"),
        topology("u"),
        old,
        dead=[1],
    )
    assert where == {"z": {"b:6700": "q"}, "t": {"a:6700": "q"}, "u": {}}


# --- queries that have ended ----------------------------------------------------------------------


def test_completed_topology_leaves_its_slots():
    done = topology("t", "q", ended=frozenset("q"), launches=(launch("a:6700", "q"),))
    where, told = planned(done, topology("u"), supervisor("a", slots=1), dead=[1])
    assert where == {"t": {}, "u": {"a:6700": "q"}}
    assert told == {"t": "Completed", "u": FIT}


def test_a_worker_is_left_in_peace_while_one_of_its_queries_runs():
    half = topology("t", "q r", ended=frozenset("q"), launches=(launch("a:6700", "q", "r"),))
    where, told = planned(half, supervisor("a"), supervisor("b"))
    assert (where, told) == ({"t": {"a:6700": "q r"}}, {"t": FIT})


def test_a_query_that_has_ended_is_not_launched_again():
    half = topology(
        "t", "q r", is_shared=True, ended=frozenset("q"), launches=(launch("gone:6700", "q", "r"),)
    )
    assert planned(half, supervisor("a"), dead=[1])[0] == {"t": {"a:6700": "r"}}


# --- kills and rebalances -------------------------------------------------------------------------


def test_killed_topology_is_removed_on_its_deadline():
    killed = topology("t", status=KILLED, launches=(launch("a:6700", "q"),), due_at=NOW + 1)
    waiting = topology("u", text="Not enough slots: 1 slot is missing, and none is free")
    before = cluster(killed, waiting, supervisor("a", slots=1))
    assert plan(before) == ()
    assert plan(replace(before, now=NOW + 1))[0] == Remove("t")
    assert places(carried_out(replace(before, now=NOW + 1))) == {"u": {"a:6700": "q"}}


def test_an_assignment_without_a_topology_is_removed():
    assert plan(replace(cluster(), strays=frozenset({"t"}))) == (Remove("t"),)


def test_nothing_is_launched_for_who_is_killed():
    old = topology(
        "t", status=KILLED, is_shared=True, launches=(launch("gone:6700", "q"),), due_at=NOW + 9
    )
    assert plan(cluster(old, supervisor("a"), dead=[1])) == ()


def rebalancing(**facts):
    return topology(
        "t",
        "q r",
        status=REBALANCING,
        previous=TopologyStatus.INACTIVE,
        due_at=NOW,
        launches=(launch("a:6700", "q", "r"),),
        **{"is_shared": True, "rebalanced_workers": 2, **facts},
    )


def test_a_rebalance_stops_the_workers_first():
    before = cluster(rebalancing(), supervisor("a"), supervisor("b"))
    [release, finish, told] = plan(before)
    old = launch("a:6700", "q", "r")
    assert release == Assign("t", (replace(old, is_released=True),))
    assert finish == FinishRebalance("t")
    assert told == SetStatus(
        "t", "Waits until the worker at a.example:6700 is known to have stopped"
    )
    after = carried_out(before)
    assert plan(after) == ()
    assert after.topologies["t"].status is TopologyStatus.INACTIVE


def test_new_workers_start_once_the_old_stopped():
    stopping = carried_out(cluster(rebalancing(), supervisor("a"), supervisor("b")))
    for stopped, expected in (
        ({6701: Claim(EPOCH - 1, 1)}, {}),
        ({6700: Claim(EPOCH - 1, 0)}, {}),
        ({6700: Claim(EPOCH - 1, 1)}, {"a:6700": "q", "b:6700": "r"}),
    ):
        sups = {"a": supervisor("a", stopped=stopped), "b": supervisor("b")}
        after = carried_out(replace(stopping, supervisors=sups))
        assert places(after) == {"t": expected}
    assert texts(after) == {"t": FIT}


def test_who_is_rebalanced_does_not_lose_its_slots_to_others():
    stopping = carried_out(
        cluster(rebalancing(launched_at=2), topology("u", launched_at=1), supervisor("a", slots=1))
    )
    assert places(stopping) == {"t": {}, "u": {}}
    here = supervisor("a", slots=1, stopped={6700: Claim(EPOCH - 1, 1)})
    after = carried_out(replace(stopping, supervisors={"a": here}))
    assert places(after) == {"t": {"a:6700": "q r"}, "u": {}}


@pytest.mark.parametrize(
    ("facts", "expected"), [({}, {}), ({"dead": [1]}, {"b:6700": "q", "b:6701": "r"})]
)
def test_worker_of_a_lost_machine_stopped_if_proven_dead(facts, expected):
    before = cluster(rebalancing(), supervisor("b"), **facts)
    assert places(carried_out(before)) == {"t": expected}


def test_rebalance_keeps_a_query_with_its_checkpoint():
    here = supervisor("a", stopped={6700: Claim(EPOCH - 1, 1)})
    before = cluster(rebalancing(is_shared=False), here, supervisor("b", slots=9))
    assert places(carried_out(before)) == {"t": {"a:6700": "q", "a:6701": "r"}}


def test_unshared_checkpoints_on_two_machines_need_two_workers():
    before = topology(
        "t",
        "q r s",
        workers=1,
        launches=(
            launch("a:6700", "q", claim=1, is_released=True),
            launch("b:6700", "r", "s", claim=2, is_released=True),
        ),
    )
    sups = [supervisor(n, stopped={6700: Claim(EPOCH - 1, 2)}) for n in "ab"]
    where, told = planned(before, *sups)
    assert where == {"t": {"a:6700": "q"}}
    assert told["t"] == (
        "Not enough workers: 1 slot is missing, as topology.workers is 1, and checkpoints are on"
        " several machines and not shared; raise it with `storm rebalance -n`"
    )
    where, told = planned(replace(before, workers=2), sups[1])
    assert where == {"t": {}}, "a may run its worker still, for all that is known"
    where, told = planned(replace(before, workers=2), sups[1], dead=[1])
    assert where == {"t": {"b:6700": "r s"}}, "a slot is kept for what waits for a"
    assert told == {"t": "Waits for the machine a: its checkpoint is there and is not shared"}


def test_machine_with_more_queries_gets_more_workers():
    before = topology(
        "t",
        "p q r s t u",
        workers=3,
        launches=(
            launch("a:6700", "p", "q", claim=1, is_released=True),
            launch("b:6700", "r", "s", "t", "u", claim=2, is_released=True),
        ),
    )
    sups = [supervisor(n, stopped={6700: Claim(EPOCH - 1, 2)}) for n in "ab"]
    where, _ = planned(before, *sups)
    assert where == {"t": {"a:6700": "p q", "b:6700": "r t", "b:6701": "s u"}}


def test_a_topology_that_could_not_start_again_is_not_stopped():
    before = cluster(rebalancing(blocked="nobody has its code"), supervisor("a"))
    assert plan(before) == ()


# --- claims ---------------------------------------------------------------------------------------


def claims(actions):
    return [
        (each.storm_id, one.claim.counter)
        for each in actions
        if isinstance(each, Assign)
        for one in each.launches
    ]


def test_each_launch_has_a_claim_of_its_leader_that_no_other_had():
    before = cluster(
        supervisor("a", slots=4), topology("t", "q r", workers=2), topology("u"), next_counter=5
    )
    actions = plan(before)
    assert claims(actions) == [("t", 5), ("t", 6), ("u", 7)]
    assert counter_after(actions, EPOCH, 5) == 8
    assert counter_after((), EPOCH, 5) == 5
    assert counter_after(actions, EPOCH + 1, 0) == 0


def test_what_was_written_in_a_reign_counts_when_it_is_forgotten():
    old = replace(launch("a:6700", "q"), claim=Claim(EPOCH, 11))
    before = cluster(supervisor("a"), topology("t", launches=(old,)), topology("u"))
    assert claims(plan(before)) == [("u", 12)]


def test_claim_of_a_removed_topology_is_not_reused():
    """What is submitted next may go on from its checkpoints."""
    old = replace(launch("a:6700", "q"), claim=Claim(EPOCH, 11))
    killed = topology("t", status=KILLED, launches=(old,), due_at=NOW)
    assert claims(plan(cluster(supervisor("a"), killed, topology("u")))) == [("u", 12)]


def test_new_launch_has_its_time_and_memory():
    [assign, _] = plan(cluster(supervisor("a"), topology("t", memory_mb=512)))
    [new] = assign.launches
    assert (new.started_at, new.memory_mb, new.is_released) == (NOW, 512, False)


# --- a supervisor that is back with other slots ---------------------------------------------------


def with_slots(name, *ports, **facts):
    return replace(supervisor(name, **facts), ports=frozenset(ports))


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_dead_worker_holds_no_memory_on_a_slot_that_is_no_more(is_shared):
    old = launch("a:6700", "q", memory_mb=1000)
    its = topology("t", launches=(old,), memory_mb=1000, is_shared=is_shared)
    where, told = planned(with_slots("a", 7000, memory_mb=1500), its, dead=[1])
    assert (where, told) == ({"t": {"a:7000": "q"}}, {"t": FIT})


def test_unplaced_dead_worker_takes_no_slot_from_others():
    lost = launch("a:6700", "q", claim=1, memory_mb=1000)
    stopped = launch("b:6700", "r", claim=2, memory_mb=1000, is_released=True)
    b = supervisor("b", slots=1, refuses="ill", stopped={6700: Claim(EPOCH - 1, 2)})
    where, _ = planned(
        with_slots("a", 7000, memory_mb=1500),
        b,
        topology("t", "q r", workers=2, launches=(lost, stopped), memory_mb=2000),
        topology("small", memory_mb=1200, launched_at=5),
        dead=[1, 2],
    )
    assert where["small"] == {"a:7000": "q"}
