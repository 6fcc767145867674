from concurrent.futures import ThreadPoolExecutor

from stormkeeper.conf import Address
from stormkeeper.heartbeats.change_pages import ServerReading
from stormkeeper.local.pacemaker_watch import (
    ClusterWatcher,
    ComponentCounts,
    component_counts,
    pulses,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.thrift.pacemaker import ServerInfo
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ExecutorInfo
from support.heartbeats import change_of, heartbeat, page_of, path, spout
from support.waiting import DEADLINE_SECS, until


def look(*beats, revisions=None):
    """Return a look at which these were new; it is read at 5 s."""
    changes = [
        change_of(path("wc-1-17", port=port), beat, port, 0.0)
        for port, beat in enumerate(beats, start=6700)
    ]
    page = page_of("x", changes, 5.0)
    return ServerReading([page], page.position, False, revisions or len(beats), ServerInfo())


def test_a_pulse_overwritten_between_two_looks_is_counted():
    beat = heartbeat("wc-1-17", {(1, 1): spout(12)})
    (pulse,) = pulses(look(beat, revisions=3), "a:1")
    assert pulse.pulses == 3


def test_the_last_pulse_of_a_worker_may_say_that_it_is_done():
    beats = [heartbeat("wc-1-17"), heartbeat("wc-1-17", completed=True)]
    read = [pulses(look(beat), "a:1") for beat in beats]
    assert [pulse.completed for (pulse,) in read] == [False, True]


def test_overwritten_pulses_of_several_workers_are_nobody_s():
    beat = heartbeat("wc-1-17", {(1, 1): spout(12)})
    assert [pulse.pulses for pulse in pulses(look(beat, beat, revisions=7), "a:1")] == [1, 1]


def test_executors_of_a_component_are_summed():
    partial = spout(3)
    partial.partial_batches = {":all-time": 1}
    for stats in (whole := spout(12), partial):
        stats.component = "lines"
    beat = ClusterWorkerHeartbeat(
        storm_id="wc-1-17",
        executor_stats={ExecutorInfo(1, 2): whole, ExecutorInfo(3, 4): partial},
        time_secs=1,
        uptime_secs=1,
    )
    assert component_counts(beat) == {"lines": ComponentCounts(15, 0, queries=2, partial=True)}


def test_pulses_faster_than_the_looks_are_all_counted(start_pacemaker):
    server = start_pacemaker()
    beat = heartbeat("wc-1-17", {(1, 1): spout(12)})
    watch = ClusterWatcher([Address(server.host, server.port)], period_secs=0.2)
    with PacemakerClient(server.address) as client:
        client.send_pulse(path("wc-1-17"), beat)
        until(lambda: watch.snapshot().workers)
        for _ in range(20):
            client.send_pulse(path("wc-1-17"), beat)
    seen = watch.finish()
    assert [worker.pulses for worker in seen.workers] == [21]
    assert [server.pulses_received for server in seen.pacemakers] == [21]


def test_last_look_is_repeated_until_it_is_answered(start_pacemaker, caplog):
    server = start_pacemaker()
    beat = heartbeat("wc-1-17", {(1, 1): spout(12)})
    with PacemakerClient(server.address) as client:
        client.send_pulse(path("wc-1-17"), beat)
        # No look lies between the first and the last.
        watch = ClusterWatcher([Address(server.host, server.port)], period_secs=3600.0)
        until(lambda: watch.snapshot().workers)
        for _ in range(20):
            client.send_pulse(path("wc-1-17"), beat)
    server.suspend()
    caplog.set_level("DEBUG", "stormkeeper.local.pacemaker_watch")
    with ThreadPoolExecutor(1) as thread:
        finished = thread.submit(watch.finish)
        until(lambda: "does not answer" in caplog.text)
        server.resume()
        seen = finished.result(DEADLINE_SECS)
    assert [worker.pulses for worker in seen.workers] == [21]
