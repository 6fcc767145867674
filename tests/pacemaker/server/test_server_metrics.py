"""The metrics of given figures, read by Prometheus's own parsers."""

import dataclasses
import gc
import os

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families

from stormkeeper.pacemaker.server.server_status import (
    CLOSED,
    OUTCOMES,
    PREFIX,
    REFUSED,
    TURNED_AWAY,
    EventCounts,
    pages,
)
from support.snapshots import SNAPSHOT


def scrape(figures=SNAPSHOT, accept=""):
    """Return the samples as {(name, *label values): value}, and the families by name."""
    page = pages(lambda: figures)["/metrics"](accept)
    assert page.status == 200
    parse = open_families if "openmetrics" in page.content_type else text_string_to_metric_families
    families = {family.name: family for family in parse(page.body.decode())}
    samples = {}
    for family in families.values():
        for sample in family.samples:
            key = (sample.name.removeprefix(PREFIX), *sample.labels.values())
            assert key not in samples
            samples[key] = sample.value
    return samples, families


@pytest.mark.parametrize("accept", ["", "text/plain;version=0.0.4", "application/openmetrics-text"])
def test_figures_are_samples(accept):
    samples, families = scrape(accept=accept)
    expected = {
        ("ready",): 1,
        ("uptime_seconds",): 100.5,
        ("horizon_seconds",): 50.25,
        ("heartbeat_period_seconds",): 3,
        ("heartbeat_period_seen",): 1,
        ("pulses",): 7,
        ("tombstones",): 2,
        ("store_bytes",): 21_000,
        ("store_limit_bytes",): 1_000_000,
        ("revision",): 2**40,
        ("pulse_ttl_seconds",): 600,
        ("recent_pulse_size_bytes", "0.5"): 51,
        ("recent_pulse_size_bytes", "0.99"): 100,
        ("recent_pulse_size_bytes", "1.0"): 100,
        ("pulses_received_total",): 1000,
        ("requests_total", "send_pulse"): 1000,
        ("requests_total", "get_pulse"): 20,
        ("requests_total", "other"): 1,
        ("received_bytes_total",): 3_000_000,
        ("sent_bytes_total",): 40_000,
        ("request_duration_seconds_bucket", "0.001"): 1000,
        ("request_duration_seconds_bucket", "0.01"): 1020,
        ("request_duration_seconds_bucket", "+Inf"): 1023,
        ("request_duration_seconds_count",): 1023,
        ("request_duration_seconds_sum",): 0.75,
        ("connections",): 5,
        ("connections_limit",): 100,
        ("certificate_expiry_timestamp_seconds",): 1_800_000_000,
    }
    assert {key: samples.get(key) for key in expected} == expected
    info = families["stormkeeper_pacemaker" + ("" if "open" in accept else "_info")].samples[0]
    assert info.labels == {
        "instance_id": "6b1f",
        "version": "1.2",
        "engine": "compiled",
        "auth_method": "DIGEST",
    }
    assert all(family.documentation for family in families.values())


def test_causes_are_labels_and_the_known_ones_begin_at_zero():
    samples, _ = scrape()
    assert samples["connections_refused_total", "address"] == 0
    for name, causes in (
        ("connections_refused_total", TURNED_AWAY),
        ("connections_ended_total", CLOSED),
    ):
        assert [samples[name, cause] for cause in causes] == [0] * len(causes)
    for cause, kind in REFUSED:
        assert samples["requests_refused_total", cause, kind] == 0
    assert [samples["authentications_total", "DIGEST", outcome] for outcome in OUTCOMES] == [0] * 3
    open_to_all, families = scrape(dataclasses.replace(SNAPSHOT, auth_method="NONE"))
    assert not [key for key in open_to_all if key[0] == "authentications_total"]
    told = families[f"{PREFIX}authentications"].documentation
    assert told.endswith(f"({', '.join(OUTCOMES)}).")
    events = EventCounts()
    events.accepted = 9
    events.refusals["store-full", "write"] += 2
    events.refusals["path", "read"] += 7
    events.refusals["path", "write"] += 1
    events.refusals["new", "read"] += 1
    events.turned_away["address"] += 3
    events.closed["protocol"] += 5
    events.authentications["DIGEST", "ok"] += 6
    events.authentications["DIGEST", "failed"] += 1
    samples, _ = scrape(dataclasses.replace(SNAPSHOT, events=events))
    expected = {
        ("connections_accepted_total",): 9,
        ("pulses_expired_total",): 4,
        ("requests_refused_total", "store-full", "write"): 2,
        ("requests_refused_total", "new", "read"): 1,
        ("requests_refused_total", "path", "read"): 7,
        ("requests_refused_total", "path", "write"): 1,
        ("requests_refused_total", "reserved", "write"): 0,
        ("connections_refused_total", "address"): 3,
        ("connections_ended_total", "protocol"): 5,
        ("authentications_total", "DIGEST", "ok"): 6,
        ("authentications_total", "DIGEST", "failed"): 1,
    }
    assert {key: samples.get(key) for key in expected} == expected


def test_metrics_show_no_limit_as_infinite():
    samples, _ = scrape(
        dataclasses.replace(
            SNAPSHOT,
            max_bytes=0,
            max_connections=0,
            pulse_ttl=0,
            keys=0,
            certificate_ends=None,
            recent_sizes=[],
        )
    )
    for limit in ("store_limit_bytes", "connections_limit", "pulse_ttl_seconds"):
        assert samples[(limit,)] == float("inf")
    assert ("certificate_expiry_timestamp_seconds",) not in samples
    assert ("recent_pulse_size_bytes", "0.5") not in samples


@pytest.mark.parametrize(("horizon", "seen"), [(0, 0), (2.99, 0), (3.0, 1), (500, 1)])
def test_a_reader_can_tell_not_yet_reported_from_gone(horizon, seen):
    samples, _ = scrape(dataclasses.replace(SNAPSHOT, horizon=horizon))
    assert samples[("heartbeat_period_seen",)] == seen


def test_the_process_is_measured():
    gc.collect()  # of what other tests left, lest a descriptor is closed in between
    samples, _ = scrape()
    own = {name: value for (name, *_), value in samples.items() if name.startswith("process_")}
    before = len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208
    assert own["process_open_fds"] == before
    assert 10_000_000 < own["process_resident_memory_bytes"] < own["process_virtual_memory_bytes"]
    assert own["process_cpu_seconds_total"] > 0
    assert own["process_start_time_seconds"] > 1.6e9
    assert own["process_max_fds"] >= before


def test_health_and_readiness():
    made = pages(lambda: SNAPSHOT)
    assert (made["/healthz"]("").status, made["/readyz"]("").status) == (200, 200)
    made = pages(lambda: dataclasses.replace(SNAPSHOT, swept_ago=7.26))
    assert made["/healthz"]("") == (
        503,
        b"the last sweep was 7.3 s ago\n",
        "text/plain; charset=utf-8",
        (),
    )
    made = pages(lambda: dataclasses.replace(SNAPSHOT, is_serving=False))
    assert made["/readyz"]("")[:2] == (503, b"draining\n")
    assert made["/healthz"]("").status == 200
