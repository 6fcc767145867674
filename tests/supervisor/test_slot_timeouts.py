"""How long each step takes, and how waits grow."""

from hypothesis import given
from hypothesis import strategies as st

from stormkeeper import conf
from stormkeeper.supervisor.environments import BUILD_SECS, CHECK_SECS
from stormkeeper.supervisor.slot_model import WORKER_END_SECS, SlotTimeouts
from stormkeeper.worker import process


def test_storms_defaults():
    times = SlotTimeouts.from_conf(conf.defaults())
    assert (times.start, times.silence) == (120, 30)
    assert times.grace == WORKER_END_SECS + 3


def test_a_worker_has_the_time_that_it_may_take_to_end():
    assert process.END_SECS == WORKER_END_SECS


def test_builder_times_out_before_the_slot():
    assert SlotTimeouts().environment > BUILD_SECS + CHECK_SECS


@given(st.integers(1, 10_000))
def test_waits_grow_to_their_limit(count):
    times = SlotTimeouts()
    for wait, most in ((times.delay, times.last_delay), (times.retry, times.last_retry)):
        assert 0 <= wait(count) <= wait(count + 1) <= most
    assert times.delay(10_000) == times.last_delay
