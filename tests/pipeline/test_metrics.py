import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stormkeeper.pipeline.status import PREFIX, PipelineStatus, ServerStatus, pages

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()

UP, DOWN = ServerStatus(None, 20.0, 3), ServerStatus("it is gone")
NOW = 1000.0


def ask(path, seen, liveness=5.0, statistics=15.0):
    intervals = {"liveness": liveness, "statistics": statistics}
    page = pages(lambda: seen, intervals, lambda: NOW)[path]("")
    return page.status, page.body.decode()


def published(ago=0.0, statistics_ago=0.0, **servers):
    workers = {"alive": 2, "late": 1}
    at = {"liveness": (NOW - ago, 1.5e9), "statistics": (NOW - statistics_ago, 1.4e9)}
    return PipelineStatus(
        servers,
        {"liveness": 7, "statistics": 3},
        at,
        workers,
        1,
        alerts={("skew", "warning"): 4, ("skew", "critical"): 0},
        alerted_at=1.3e9,
        failures={"skew": 5},
        looked_at=NOW - ago,
    )


@pytest.mark.parametrize(
    ("seen", "status", "lines"),
    [
        (PipelineStatus(), 503, ["no batch of liveness has been published yet"]),
        (
            PipelineStatus({"a": UP}),
            503,
            ["no batch of liveness has been published yet", "a is read"],
        ),
        (PipelineStatus({"a": DOWN}), 503, ["no Pacemaker can be read", "a it is gone"]),
        (published(a=DOWN), 503, ["no Pacemaker can be read", "a it is gone"]),
        (published(a=UP, b=DOWN), 200, ["ready", "a is read", "b it is gone"]),
        (published(60.0, a=UP), 200, ["ready", "a is read"]),
        (
            published(61.0, a=UP),
            503,
            ["the newest batch of liveness was published 61 s ago", "a is read"],
        ),
        (published(statistics_ago=75.0, a=UP), 200, ["ready", "a is read"]),
        (
            published(statistics_ago=76.0, a=UP),
            503,
            ["the newest batch of statistics was published 76 s ago", "a is read"],
        ),
    ],
)
def test_ready_needs_current_tables_and_a_pacemaker(seen, status, lines):
    assert ask("/readyz", seen) == (status, "".join(f"{line}\n" for line in lines))


def test_a_reason_that_names_the_server_says_it_once():
    seen = published(a=UP, b=ServerStatus("b did not answer"))
    assert ask("/readyz", seen)[1].splitlines() == ["ready", "a is read", "b did not answer"]


def test_a_scrape_is_of_one_moment():
    moments = iter([published(a=UP), published(a=DOWN)])
    text = pages(lambda: next(moments), {}, lambda: NOW)["/metrics"]("").body.decode()
    assert f"{PREFIX}ready 1.0" in text
    assert f'{PREFIX}server_reachable{{server="a"}} 1.0' in text


def test_a_slow_trigger_makes_a_batch_old_later():
    assert ask("/readyz", published(290.0, a=UP), liveness=60.0)[0] == 200
    assert ask("/readyz", published(310.0, a=UP), liveness=60.0)[0] == 503


def test_healthy_is_who_looks_after_the_query():
    assert ask("/healthz", PipelineStatus(started_at=NOW - 300))[0] == 200  # Spark is being started
    assert ask("/healthz", PipelineStatus(started_at=NOW - 301)) == (
        503,
        "Spark has been starting for 301 s\n",
    )
    assert ask("/healthz", published(4.0))[0] == 200
    status, text = ask("/healthz", published(6.0))
    assert (status, text) == (503, "the queries were last looked at 6.0 s ago\n")


def test_the_figures_are_those_of_the_newest_batch():
    _, text = ask("/metrics", published(a=UP, b=DOWN))
    found = {
        (re.sub(PREFIX, "", sample.name), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }
    assert found == {
        ("ready",): 1,
        ("batches_total", "liveness"): 7,
        ("batches_total", "statistics"): 3,
        ("last_batch_timestamp_seconds", "liveness"): 1.5e9,
        ("last_batch_timestamp_seconds", "statistics"): 1.4e9,
        ("workers", "alive"): 2,
        ("workers", "late"): 1,
        ("workers", "dead"): 0,
        ("workers", "completed"): 0,
        ("workers_stale",): 1,
        ("alerts", "skew", "warning"): 4,
        ("alerts", "skew", "critical"): 0,
        ("analysis_failures_total", "skew"): 5,
        ("last_analyses_timestamp_seconds",): 1.3e9,
        ("server_reachable", "a"): 1,
        ("server_reachable", "b"): 0,
        ("server_horizon_seconds", "a"): 20,
        ("server_pulses", "a"): 3,
        ("unnamed_topologies",): 0,
        ("nimbus_failures_total",): 0,
    }
    assert "process_cpu_seconds_total" in text
    for name, *_ in found:
        assert f"| `{name}` |" in PAGE, name
    assert f"{PREFIX}ready 0.0" in ask("/metrics", PipelineStatus({"a": DOWN}))[1]
