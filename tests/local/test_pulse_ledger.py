"""What the ledger of a local run makes of the Pacemakers' answers."""

from stormkeeper.local.pacemaker_watch import (
    ComponentCounts,
    PacemakerStatus,
    PulseLedger,
    WorkerPulses,
)
from stormkeeper.paths import WorkerId

A, B = "127.0.0.1:1", "127.0.0.1:2"
WORKER = WorkerId("wc-1-1", "node", 6700)


def pulse(received, by=WORKER, **components):
    counts = {name: ComponentCounts(*c) for name, c in components.items()}
    return lambda pacemaker: WorkerPulses(by, pacemaker, 1, received, counts)


def answer(ledger, address, *pulses):
    status = PacemakerStatus(address, len(pulses), keys=1)
    ledger.record(status, [made(address) for made in pulses])


def worker(ledger):
    (only,) = ledger.snapshot().workers
    return only


def test_gap_is_the_longest_time_between_two_receipts():
    ledger = PulseLedger([A, B])
    answer(ledger, A, pulse(10.0))
    answer(ledger, A, pulse(13.0))
    answer(ledger, A, pulse(17.5))
    answer(ledger, A, pulse(19.0))
    assert worker(ledger).max_gap_secs == 4.5
    assert worker(ledger).pulses == 4


def test_silence_that_lasts_is_a_gap_too():
    ledger = PulseLedger([A, B])
    answer(ledger, A, pulse(10.0))
    assert worker(ledger).gap_at(12.0) == 2.0
    assert worker(ledger).gap_at(40.0) == 30.0


def test_worker_keeps_its_history_on_another_pacemaker():
    ledger = PulseLedger([A, B])
    answer(ledger, A, pulse(10.0))
    answer(ledger, B, pulse(14.0))
    assert worker(ledger).pacemaker == B
    assert worker(ledger).max_gap_secs == 4.0


def test_older_copy_on_another_pacemaker_only_counts():
    ledger = PulseLedger([A, B])
    answer(ledger, B, pulse(14.0, words=(5, 1)))
    answer(ledger, A, pulse(10.0, words=(2, 1)))
    seen = worker(ledger)
    assert (seen.pacemaker, seen.last_received, seen.pulses) == (B, 14.0, 2)
    assert seen.components["words"] == ComponentCounts(5, 1)


def test_silent_pacemaker_is_listed():
    ledger = PulseLedger([A, B])
    ledger.record(PacemakerStatus(A, 5, 3), [])
    first, second = ledger.snapshot().pacemakers
    assert (first.address, first.pulses_received, first.keys) == (A, 5, 3)
    assert (second.address, second.pulses_received) == (B, 0)


def test_components_add_up_over_workers():
    ledger = PulseLedger([A, B])
    other = WorkerId("wc-1-1", "node", 6701)
    answer(ledger, A, pulse(1.0, words=(5, 2)), pulse(1.0, by=other, words=(10, 3), lines=(1, 0)))
    assert ledger.snapshot().components() == {
        "words": ComponentCounts(15, 5, queries=2),
        "lines": ComponentCounts(1, 0),
    }
