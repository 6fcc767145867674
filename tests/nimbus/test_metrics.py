from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stormkeeper.nimbus.cluster_status import PREFIX, ClusterStatus, pages
from stormkeeper.state.storage import ConnectionState
from support.rpc import Handler, served

NOW = 1000.0
PAGE = Path(__file__).parents[2] / "docs" / "nimbus.md"
LEADS = ClusterStatus(
    epoch=7,
    last_round_at=NOW,
    supervisors=2,
    slots=4,
    free_slots=1,
    topologies={"active": 3},
    workers={"alive": 2, "unproven": 1},
    unread=1,
)


@pytest.fixture
def ask():
    with served(Handler()) as (server, _):

        def ask(path, seen, connection=ConnectionState.CONNECTED, **disk):
            made = pages(
                *(lambda: seen, server, lambda: connection, 10.0, lambda: NOW),
                count_health=lambda: ({"running": 2, "crashing": 1}, 12.0),
                **disk,
            )
            page = made[path]("")
            return page.status, page.body.decode()

        yield ask


def samples(text):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_leader_says_what_it_sees(ask):
    found = samples(ask("/metrics", LEADS)[1])
    assert found[f"{PREFIX}leads",] == 1
    assert found[f"{PREFIX}free_slots",] == 1
    assert found[f"{PREFIX}topologies", "active"] == 3
    assert found[f"{PREFIX}topology_health", "crashing"] == 1
    assert found[f"{PREFIX}topology_health_age_seconds",] == 12
    assert found[f"{PREFIX}workers", "unproven"] == 1
    assert found[f"{PREFIX}workers", "dead"] == 0
    assert found[f"{PREFIX}unread_pacemakers",] == 1


def test_who_stands_by_says_nothing_of_the_cluster(ask):
    found = samples(ask("/metrics", ClusterStatus())[1])
    assert found[f"{PREFIX}leads",] == 0
    assert (f"{PREFIX}supervisors",) not in found
    assert (f"{PREFIX}topology_health", "running") not in found


def test_ready_is_who_reaches_zookeeper(ask):
    assert ask("/readyz", LEADS) == (200, "leads\n")
    assert ask("/readyz", ClusterStatus()) == (200, "stands by\n")
    lost = ask("/readyz", LEADS, ConnectionState.SUSPENDED)
    assert lost == (503, "ZooKeeper cannot be reached\n")


def test_a_disk_that_fails_is_shown(ask):
    assert samples(ask("/metrics", LEADS)[1])[f"{PREFIX}disk_writable",] == 1
    disk = {"disk_fault": lambda: "/disk is full", "lost_blobs": lambda: 3}
    assert ask("/readyz", LEADS, **disk) == (503, "leads, and takes no uploads: /disk is full\n")
    found = samples(ask("/metrics", ClusterStatus(), **disk)[1])
    assert (found[f"{PREFIX}disk_writable",], found[f"{PREFIX}blobs_lost_total",]) == (0, 3)


def test_healthy_is_a_leader_who_looks(ask):
    assert ask("/healthz", ClusterStatus())[0] == 200
    assert ask("/healthz", LEADS)[0] == 200
    stuck = replace(LEADS, last_round_at=NOW - 61)
    assert ask("/healthz", stuck) == (
        503,
        "it leads, and has last looked at the cluster 61 s ago\n",
    )


def test_the_page_has_every_metric(ask):
    told = PAGE.read_text()
    names = {name for name, *_ in samples(ask("/metrics", LEADS)[1]) if name.startswith(PREFIX)}
    assert len(names) > 15
    assert {name for name in names if name.removeprefix(PREFIX) not in told} == set()
