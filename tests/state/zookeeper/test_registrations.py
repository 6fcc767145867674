"""How long what failed rests, and what is said of it; the rest is in `test_recovery`."""

from stormkeeper.state.zookeeper.recovery import (
    FIRST_PAUSE_SECS,
    LONGEST_PAUSE_SECS,
    Failures,
)


def test_pauses_grow_and_differ_between_clients():
    failures, others = Failures(), Failures()
    for earlier in range(2000):
        longest = min(FIRST_PAUSE_SECS * 2 ** min(earlier, 10), LONGEST_PAUSE_SECS)
        pause, other = failures.failed(), others.failed()
        assert longest / 2 <= pause <= longest
        assert pause != other
    failures.forget()
    assert failures.failed() <= FIRST_PAUSE_SECS


def test_the_first_second_fourth_and_so_on_is_told():
    failures, told = Failures(), []
    for number in range(1, 101):
        failures.failed()
        if failures.is_told:
            told.append(number)
    assert told == [1, 2, 4, 8, 16, 32, 64]
