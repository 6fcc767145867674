from stormkeeper.worker.shutdown import CLAIMED, INACTIVE, STOPPED, StopRequest


def test_nothing_asks_it():
    ending = StopRequest(lambda: False, STOPPED)
    assert not ending.is_asked
    assert ending.code == 0


def test_the_first_reason_counts():
    ending = StopRequest(lambda: False, STOPPED)
    ending.ask(CLAIMED)
    ending.ask(INACTIVE)
    assert ending.is_asked
    assert ending.code == CLAIMED


def test_a_signal_counts_before_all():
    signals = []
    ending = StopRequest(lambda: bool(signals), STOPPED)
    ending.ask(INACTIVE)
    signals.append("SIGTERM")
    assert ending.is_asked
    assert ending.code == STOPPED


def test_inactive_code_is_written_once():
    said = []
    for codes in ([INACTIVE, INACTIVE], [CLAIMED, INACTIVE], [1]):
        ending = StopRequest(lambda: False, STOPPED, said.append)
        for code in codes:
            ending.ask(code)
    assert said == [INACTIVE]
