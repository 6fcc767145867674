from random import Random

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.pacemaker.client.protocol import Backoff


class Highest(Random):
    """Draws the upper end always."""

    def uniform(self, a, b):
        assert a == 0.0
        return b


def test_the_upper_end_doubles_up_to_the_cap():
    backoff = Backoff(Highest(), base=0.05, cap=1.0)
    assert [backoff.failed() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_success_begins_again_from_the_base():
    backoff = Backoff(Highest(), base=0.05, cap=1.0)
    for _ in range(5):
        backoff.failed()
    backoff.succeeded()
    assert backoff.failures == 0
    assert backoff.failed() == 0.05


@given(st.integers(), st.integers(1, 2000))
def test_a_delay_is_never_negative_nor_above_the_cap(seed, failures):
    backoff = Backoff(Random(seed))
    delays = [backoff.failed() for _ in range(failures)]
    assert all(0.0 <= delay <= 1.0 for delay in delays)
    assert backoff.failures == failures


def test_the_jitter_spreads_clients_over_the_whole_delay():
    delays = []
    for seed in range(200):
        backoff = Backoff(Random(seed))
        for _ in range(8):
            delay = backoff.failed()
        delays.append(delay)
    assert min(delays) < 0.1
    assert max(delays) > 0.9
