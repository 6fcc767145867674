from random import Random

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.client.pacemaker_client import make_backoff


class Highest(Random):
    """Draws the upper end always."""

    def uniform(self, a, b):
        assert a == 0.0
        return b


def test_the_upper_end_doubles_up_to_the_cap():
    backoff = make_backoff(Highest())
    assert [backoff.record() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_success_begins_again_from_the_base():
    backoff = make_backoff(Highest())
    for _ in range(5):
        backoff.record()
    backoff.reset()
    assert backoff.count == 0
    assert backoff.record() == 0.05


@given(st.integers(), st.integers(1, 2000))
def test_a_delay_is_never_negative_nor_above_the_cap(seed, failures):
    backoff = make_backoff(Random(seed))
    delays = [backoff.record() for _ in range(failures)]
    assert all(0.0 <= delay <= 1.0 for delay in delays)
    assert backoff.count == failures


def test_the_jitter_spreads_clients_over_the_whole_delay():
    delays = []
    for seed in range(200):
        backoff = make_backoff(Random(seed))
        for _ in range(8):
            delay = backoff.record()
        delays.append(delay)
    assert min(delays) < 0.1
    assert max(delays) > 0.9
