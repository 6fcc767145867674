"""Real Pacemakers killed, frozen and restarted under the pulses of thousands of workers."""

import contextlib
import time
from typing import Final

import pytest

from faults.fleet import Fleet
from faults.observer import Observer
from support.pacemaker import PacemakerProcess
from support.waiting import until

PERIOD_SECS: Final = 3.0
MACHINES: Final = 40
WORKERS: Final = 150  # of each: 6,000 in all, so 2,000 pulses a second


@pytest.mark.slow
@pytest.mark.alone
def test_no_worker_misses_three_periods_or_counts_as_dead() -> None:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(PacemakerProcess()) for _ in range(3)]
        addresses = [server.address for server in servers]
        observer = stack.enter_context(Observer(addresses, timeout_secs=3 * PERIOD_SECS))
        fleet = stack.enter_context(
            Fleet(addresses, machines=MACHINES, workers=WORKERS, period_secs=PERIOD_SECS)
        )
        until(lambda: observer.seen_since(0.0) == fleet.paths, 30)
        began, at_first = time.monotonic(), observer.received

        servers[0].kill()
        time.sleep(2 * PERIOD_SECS)
        servers[0].start()
        servers[1].suspend()
        time.sleep(2 * PERIOD_SECS)
        servers[1].resume()
        time.sleep(PERIOD_SECS)
        assert observer.longest_silence(time.monotonic()) < 3 * PERIOD_SECS
        assert observer.dead == set()
        # What the test rests on: there were as many pulses as it says.
        due = MACHINES * WORKERS * (time.monotonic() - began) / PERIOD_SECS
        assert observer.received - at_first > 0.6 * due

        for server in servers:
            server.kill()
        for server in servers:
            server.start()
        back = time.monotonic()
        until(lambda: observer.seen_since(back) == fleet.paths, 2 * PERIOD_SECS)
        assert observer.dead == set()
