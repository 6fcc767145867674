"""Names of components from a Nimbus of ours, which knows topologies of Storm's."""

import logging

import pyarrow as pa
import pytest

from stormkeeper import conf
from stormkeeper.local import reservations
from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.components import unnamed
from stormkeeper.pipeline.nimbus_poller import (
    NimbusPoller,
    TopologyTimeouts,
    run_nimbus_poller,
    timeout_in,
)
from stormkeeper.pipeline.status import StatusTracker
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.serialization import Codec
from support.heartbeats import bolt, change_of, decode_batch, heartbeat, page_of, path, spout
from support.memory_state import MemoryEnsemble
from support.nimbus_service import nimbuses
from support.statistics_examples import example
from support.storm_topologies import leave
from support.tables import present
from support.waiting import until

SMALL = example("small")
STORM_ID = SMALL.answers["id"]


@pytest.fixture
def nimbus(tmp_path):
    storm = StormClusterState(MemoryEnsemble().session(), Codec())
    with nimbuses(tmp_path / "nimbus", storm) as (leading,):
        yield leading


def pulses(*workers):
    changes = [change_of(path(*worker), beat, 1, 0.0) for *worker, beat in workers]
    return pa.Table.from_batches(
        [decode_batch(rows.page_rows("a:1", [page_of("x", changes, 1.0)]))]
    )


def of_storm():
    """The heartbeats of the example's workers, in Storm's bytes."""
    return pulses(
        *(
            (STORM_ID, beat["node"], beat["port"], bytes.fromhex(beat["gzip_hex"]))
            for beat in SMALL._input["heartbeats"]
        )
    )


def settings(folder, port):
    return conf.defaults().with_values(
        {
            "pipeline.tables.dir": str(folder),
            "nimbus.seeds": ["127.0.0.1"],
            "nimbus.thrift.port": port,
        }
    )


def names_in(folder):
    return {
        task: row["component"]
        for row in present(folder / tables.NAMING, tables.COMPONENTS)
        for task in range(row["task_start"], row["task_end"] + 1)
        if row["storm_id"] == STORM_ID
    }


def test_nimbus_names_what_workers_do_not(nimbus, tmp_path):
    leave(nimbus, SMALL, **{"topology.worker.timeout.secs": 120})
    tracker = StatusTracker()
    configured = settings(tmp_path, nimbus.port)
    timeouts = TopologyTimeouts(configured)
    assert timeouts() == {}
    with run_nimbus_poller(configured, tracker) as asking:
        asking.named(of_storm())
        until(lambda: names_in(tmp_path) == SMALL.tasks)
        until(lambda: tracker.current.unnamed == 0)
        assert timeouts() == {STORM_ID: 120.0}
        assert unnamed(asking.named(of_storm())) == {}
    assert tracker.current.unanswered == 0
    # Started again, it asks nobody for what it knows: there is nobody to ask.
    with run_nimbus_poller(settings(tmp_path, reservations.reserve()), tracker) as asking:
        asking.named(of_storm())
        asking.named(
            pulses(("unknown-1-17", "n", 1, heartbeat("unknown-1-17", {(1, 1): spout(1)})))
        )
        until(lambda: tracker.current.unanswered)
        assert tracker.current.unnamed == 1
    assert names_in(tmp_path) == SMALL.tasks


def test_who_says_names_asks_nobody(tmp_path):
    stats = bolt({})
    stats.component = "words"
    tracker = StatusTracker()
    with run_nimbus_poller(settings(tmp_path, reservations.reserve()), tracker) as asking:
        asking.named(pulses(("t-1-17", "n", 1, heartbeat("t-1-17", {(1, 1): stats}))))
        asking.named(pulses(("t-1-17", "n", 1, b"garbage")))
    assert tracker.current.unanswered == 0
    assert not (tmp_path / tables.NAMING).exists()


def test_a_nimbus_that_is_away_is_asked_until_it_answers(nimbus, tmp_path, caplog):
    caplog.set_level(logging.INFO, "stormkeeper.pipeline.status")
    tracker, asked = StatusTracker(), []

    def ask(storm_id):
        asked.append(storm_id)
        if len(asked) < 5:
            return away.ask(storm_id)
        return there.ask(storm_id)

    with (
        run_nimbus_poller(settings(tmp_path, reservations.reserve()), tracker) as away,
        run_nimbus_poller(settings(tmp_path, nimbus.port), tracker) as there,
        NimbusPoller(there.store, ask, tracker, outage_secs=(0.01, 0.05)) as asking,
    ):
        leave(nimbus, SMALL)
        asking.named(of_storm())
        until(lambda: names_in(tmp_path) == SMALL.tasks)
    assert asked == [STORM_ID] * 5
    assert tracker.current.unanswered == 4
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "INFO"], said
    assert "Could not find leader nimbus" in said[0][1]


def test_a_topology_that_nimbus_does_not_know_is_no_failure(nimbus, tmp_path):
    tracker = StatusTracker()
    with run_nimbus_poller(settings(tmp_path, nimbus.port), tracker) as asking:
        asking.named(pulses(("killed-1-17", "n", 1, heartbeat("killed-1-17", {(1, 1): spout(1)}))))
        until(lambda: tracker.current.unnamed == 1)
        leave(nimbus, SMALL)
        asking.named(of_storm())
        until(lambda: names_in(tmp_path) == SMALL.tasks)
        until(lambda: tracker.current.unnamed == 1)
    assert tracker.current.unanswered == 0


def test_unreadable_answer_does_not_stop_other_questions(nimbus, tmp_path):
    tracker, odd = StatusTracker(), "odd-1-17"

    def ask(storm_id):
        if storm_id == odd:
            raise RecursionError("too deep")
        return there.ask(storm_id)

    with (
        run_nimbus_poller(settings(tmp_path, nimbus.port), tracker) as there,
        NimbusPoller(there.store, ask, tracker) as asking,
    ):
        leave(nimbus, SMALL)
        asking.named(pulses((odd, "n", 1, heartbeat(odd, {(1, 1): spout(1)}))))
        until(lambda: tracker.current.unanswered)
        assert odd in tracker.current.why_unanswered
        asking.named(of_storm())
        until(lambda: names_in(tmp_path) == SMALL.tasks)


def test_what_nobody_foresaw_does_not_end_the_asking(nimbus, tmp_path, monkeypatch, caplog):
    tracker = StatusTracker()
    with (
        run_nimbus_poller(settings(tmp_path, nimbus.port), tracker) as there,
        NimbusPoller(there.store, there.ask, tracker, outage_secs=(0.01, 0.05)) as asking,
    ):
        leave(nimbus, SMALL)
        with monkeypatch.context() as patched:
            patched.setattr(tracker, "record_unnamed", lambda _: 1 / 0)
            asking.named(of_storm())
            until(lambda: tracker.current.unanswered)
        assert "ZeroDivisionError" in caplog.text
        asking.named(of_storm())
        until(lambda: names_in(tmp_path) == SMALL.tasks)
        until(lambda: tracker.current.unnamed == 0)


def test_a_disk_that_refuses_loses_no_name(nimbus, tmp_path):
    leave(nimbus, SMALL)
    tracker = StatusTracker()
    blocked = tmp_path / tables.NAMING
    with (
        run_nimbus_poller(settings(tmp_path, nimbus.port), tracker) as there,
        NimbusPoller(there.store, there.ask, tracker, outage_secs=(0.01, 0.05)) as asking,
    ):
        blocked.write_bytes(b"no folder")
        asking.named(of_storm())
        until(lambda: tracker.current.unanswered)
        assert "cannot be kept" in tracker.current.why_unanswered
        blocked.unlink()

        def kept():
            asking.named(of_storm())
            return blocked.is_dir() and names_in(tmp_path) == SMALL.tasks

        until(kept)


@pytest.mark.parametrize(
    ("conf", "secs"),
    [
        ('{"topology.worker.timeout.secs": 45}', 45.0),
        ('{"topology.worker.timeout.secs": "45"}', 45.0),
        ('{"topology.worker.timeout.secs": null}', None),
        ('{"topology.worker.timeout.secs": "soon"}', None),
        ('{"topology.worker.timeout.secs": 0}', None),
        ('{"topology.worker.timeout.secs": Infinity}', None),
        ("{}", None),
        ("[]", None),
        ("", None),
        ("no JSON", None),
        (f'{{"topology.worker.timeout.secs": {"9" * 400}}}', None),
        ("[" * 100_000, None),
        (None, None),
    ],
)
def test_a_timeout_is_a_number_of_seconds(conf, secs):
    assert timeout_in(conf) == secs
