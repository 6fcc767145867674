from stormkeeper.worker.shutdown import CLAIMED, INACTIVE, STOPPED, Ending


def test_nothing_asks_it():
    ending = Ending(lambda: False, STOPPED)
    assert not ending.is_asked
    assert ending.code == 0


def test_the_first_reason_counts():
    ending = Ending(lambda: False, STOPPED)
    ending.ask(CLAIMED)
    ending.ask(INACTIVE)
    assert ending.is_asked
    assert ending.code == CLAIMED


def test_a_signal_counts_before_all():
    signals = []
    ending = Ending(lambda: bool(signals), STOPPED)
    ending.ask(INACTIVE)
    signals.append("SIGTERM")
    assert ending.is_asked
    assert ending.code == STOPPED


def test_a_worker_says_that_it_is_to_be_started_again():
    said = []
    for codes in ([INACTIVE, INACTIVE], [CLAIMED, INACTIVE], [1]):
        ending = Ending(lambda: False, STOPPED, said.append)
        for code in codes:
            ending.ask(code)
    assert said == [INACTIVE]
