"""Where writers go when servers die and come back: one by one, and a cluster of them simulated."""

from collections import Counter
from random import Random
from statistics import mean

import pytest

from stormkeeper.conf import Address
from stormkeeper.pacemaker.client.pool_writes import LOOK_SECS, WriterPlacement
from support.pools import InOrder

A, B, C = SERVERS = [Address(name, 6699) for name in "abc"]


class Middle(InOrder):
    """Draws neither delays nor the order at random."""

    def uniform(self, low, high):
        return (low + high) / 2


@pytest.fixture
def placement():
    return WriterPlacement(SERVERS, Middle(1))


def test_home_and_the_order_of_the_others_are_drawn():
    orders = Counter(tuple(WriterPlacement(SERVERS, Random(seed)).order()) for seed in range(600))
    assert len(orders) == 6
    assert min(orders.values()) > 60


def test_writes_stay_with_who_took_them(placement):
    (first, *others) = placement.order()
    assert first == A
    assert placement.record_taken(others[0], A, 0.0)
    assert placement.current == others[0]
    assert placement.order() == [others[0], others[1], A]
    assert placement.record_taken(others[1], others[0], 1.0)
    assert placement.order() == [others[1], A, others[0]]
    assert placement.record_taken(A, others[1], 2.0)
    assert placement.current == A


def test_a_thread_that_is_late_moves_nobody(placement):
    assert placement.record_taken(B, A, 0.0)
    assert not placement.record_taken(C, A, 0.1)
    assert not placement.record_taken(B, B, 0.1)
    assert placement.current == B


def test_writer_returns_home_when_it_answers(placement):
    assert placement.pop_due_check(1000.0) is None, "nobody is away"
    placement.record_taken(B, A, 1000.0)
    assert placement.pop_due_check(1000.0 + 0.9 * LOOK_SECS) is None
    assert placement.pop_due_check(1000.0 + LOOK_SECS) == A
    assert placement.pop_due_check(1000.0 + LOOK_SECS) is None
    assert placement.pop_due_check(1000.0 + 2 * LOOK_SECS) == A
    assert placement.return_home(1031.0) == B
    assert placement.current == A
    assert placement.return_home(1032.0) is None
    assert placement.pop_due_check(9999.0) is None


def test_unstable_home_is_checked_less_often(placement):
    now, waits = 0.0, []
    for _ in range(7):
        placement.record_taken(B, A, now)
        began = now
        while placement.pop_due_check(now) is None:
            now += 1.0
        waits.append(now - began)
        placement.return_home(now)
        now += 1.0
    assert waits == [LOOK_SECS * factor for factor in (1, 2, 4, 8, 16, 16, 16)]
    now += 10 * LOOK_SECS
    placement.record_taken(B, A, now)
    assert placement.pop_due_check(now + LOOK_SECS) == A, "it was well for long"


# --- a cluster ------------------------------------------------------------------------------------

PERIOD = 3.0


class Cluster:
    """Writers that beat every three seconds to three servers, some of which are down."""

    def __init__(self, writers, seed):
        random = Random(seed)
        self.placements = [
            WriterPlacement(SERVERS, Random(random.random())) for _ in range(writers)
        ]
        self.beats = sorted((random.uniform(0.0, PERIOD), n) for n in range(writers))
        self.now = 0.0
        self.down = set()
        #: Writers that came to a server, by server and second.
        self.arrivals = Counter()

    def spread(self):
        return Counter(placement.current for placement in self.placements)

    def run(self, seconds):
        for _ in range(round(seconds / PERIOD)):
            for offset, number in self.beats:
                self.beat(self.placements[number], self.now + offset)
            self.now += PERIOD

    def beat(self, placement, now):
        before = placement.current
        home = placement.pop_due_check(now)
        if home is not None and home not in self.down:
            placement.return_home(now)
        for server in placement.order():
            if server not in self.down:
                placement.record_taken(server, placement.current, now)
                break
        if placement.current != before:
            self.arrivals[placement.current, int(now)] += 1


def unevenness(spread, servers):
    """Return how far the fullest or emptiest server is from an equal share of all writers."""
    share = sum(spread.values()) / len(servers)
    return max(abs(spread[server] - share) / share for server in servers)


@pytest.mark.parametrize("seed", range(5))
def test_after_a_servers_return_all_are_where_they_were(seed):
    cluster = Cluster(600, seed)
    at_first = cluster.spread()
    cluster.down = {A}
    cluster.run(60)
    away = cluster.spread()
    assert away[A] == 0
    assert unevenness(away, [B, C]) < 0.2, "not all to the same one"
    cluster.down = set()
    cluster.run(1.5 * LOOK_SECS + 2 * PERIOD)
    assert cluster.spread() == at_first
    returned = [count for (server, _), count in cluster.arrivals.items() if server == A]
    assert sum(returned) == at_first[A]
    assert max(returned) < 0.2 * at_first[A], "within any second"


def test_the_spread_is_even_after_every_servers_outage():
    spreads = []
    for seed in range(20):
        cluster = Cluster(600, seed)
        for server in SERVERS:
            cluster.down = {server}
            cluster.run(30)
            cluster.down = set()
            cluster.run(30)
        spreads.append(unevenness(cluster.spread(), SERVERS))
    # Of 600 drawn at random a third is 200 with a standard deviation of 11.5.
    assert mean(spreads) < 0.1
    assert max(spreads) < 4 * 11.5 / 200


def test_the_writers_of_a_large_cluster_are_even_within_a_tenth():
    cluster = Cluster(6_648, 1)
    cluster.down = {B}
    cluster.run(30)
    cluster.down = set()
    cluster.run(30)
    assert unevenness(cluster.spread(), SERVERS) < 0.1


def test_when_all_were_down_everybody_is_home_in_the_end():
    cluster = Cluster(300, 3)
    at_first = cluster.spread()
    for down in ({A}, {A, B}, {A, B, C}, {B, C}, {C}, set()):
        cluster.down = down
        cluster.run(9)
    cluster.run(6 * LOOK_SECS)
    assert cluster.spread() == at_first
