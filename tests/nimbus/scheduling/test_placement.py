import random

import pytest

from stormkeeper.nimbus.scheduling.placement import Capacity
from support.clusters import launch, supervisor


def capacity(*supervisors, held=(), **how):
    return Capacity({each.id: each for each in supervisors}, held, **how)


def taken(found, number, memory_mb=0.0, workers=None):
    return [
        str(slot and slot.node)
        for slot in (found.take(memory_mb, workers or {}) for _ in range(number))
    ]


def test_slots_are_taken_by_turns():
    found = capacity(supervisor("a"), supervisor("b"), supervisor("c", slots=1))
    assert found.slots == 5
    assert taken(found, 6) == ["a", "b", "c", "a", "b", "None"]


def test_who_has_the_fewest_workers_of_the_topology_comes_first():
    found = capacity(supervisor("a", slots=9), supervisor("b", slots=3), held=[launch("b:6700")])
    assert taken(found, 1, workers={"a": 1}) == ["b"]
    assert taken(found, 1, workers={"a": 1, "b": 2}) == ["a"]


def test_a_tight_capacity_is_filled_from_where_the_least_is_left():
    found = capacity(
        supervisor("a", slots=9), supervisor("b", slots=2), held=[launch("b:6700")], is_tight=True
    )
    assert taken(found, 3, workers={"b": 1}) == ["b", "a", "a"]


def test_memory_counts_where_it_is_the_scarcer():
    found = capacity(supervisor("a", slots=9, memory_mb=1000), supervisor("b", memory_mb=5000))
    assert taken(found, 4, 400) == ["a", "b", "a", "b"]
    assert (found.slots, found.most_memory_mb, found.memory_of("b")) == (7, 200, 4200)
    assert taken(found, 1, 201) == ["None"]
    assert taken(found, 1, 200) == ["a"]


def test_what_did_not_fit_fits_when_something_is_free_again():
    held = [launch("a:6700", memory_mb=800)]
    found = capacity(supervisor("a", memory_mb=1000), held=held)
    assert taken(found, 1, 500) == ["None"]
    found.free(held)
    assert found.slots_of("a") == 2
    assert taken(found, 2, 500) == ["a", "a"]


def test_what_is_held_again_is_not_taken():
    old = launch("a:6701", memory_mb=600)
    found = capacity(supervisor("a", memory_mb=1000), held=[old])
    found.free([old])
    found.hold(old)
    assert (found.slots, found.memory_of("a")) == (1, 400)
    assert taken(found, 2, 100) == ["a", "None"]


def test_some_machines_can_be_left_out_and_one_be_asked_for():
    found = capacity(supervisor("a", memory_mb=100), supervisor("b", slots=1))
    assert found.take(1, {}, not_on={"a", "b"}) is None
    assert found.take(1, {}, not_on={"a"}).node == "b"
    assert found.take(1, {}, only_on="b") is None
    assert found.take(101, {}, only_on="a") is None
    assert found.take(100, {}, only_on="a").node == "a"
    assert found.take(1, {}, only_on="elsewhere") is None


def test_what_is_unknown_or_refuses_has_no_room():
    gone = launch("gone:6700", memory_mb=5)
    found = capacity(supervisor("a", refuses="the disk is full"), held=[gone])
    found.free([gone, launch("a:6700")])
    found.hold(gone)
    assert (found.slots, found.slots_of("gone"), found.memory_of("gone")) == (0, 0, 0)
    assert taken(found, 1) == ["None"]


@pytest.mark.parametrize("seed", range(5))
def test_the_next_one_is_always_the_least_used_of_all(seed):
    """As a search of all of them finds it."""
    randomness = random.Random(seed)
    machines = [
        supervisor(
            f"s{n}", slots=randomness.randint(1, 5), memory_mb=randomness.choice([2000, 4000])
        )
        for n in range(8)
    ]
    found = capacity(*machines)
    used = {each.id: 0 for each in machines}
    memory = {each.id: each.memory_mb for each in machines}
    workers = {}
    for _ in range(60):
        wanted = randomness.choice([0, 400, 900])
        if randomness.random() < 0.2:
            workers = {each.id: randomness.randint(0, 2) for each in machines}
        fit = [
            (
                workers.get(each.id, 0),
                max(
                    1 - (len(each.ports) - used[each.id]) / len(each.ports),
                    1 - memory[each.id] / each.memory_mb,
                ),
                each.id,
            )
            for each in machines
            if used[each.id] < len(each.ports) and memory[each.id] >= wanted
        ]
        slot = found.take(wanted, workers)
        assert (slot and slot.node) == (min(fit)[2] if fit else None)
        if slot:
            used[slot.node] += 1
            memory[slot.node] -= wanted
