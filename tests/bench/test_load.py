"""The generator in C against real servers: what it says must be what was asked of it.

Where time is no matter it makes so many requests (of each connection), however long they take.
"""

import contextlib
import shutil
from types import SimpleNamespace

import pytest
from kazoo.client import KazooClient

from pacemaker import compiling, running, servers
from stormkeeper.local import reservations
from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.pacemaker.client import PacemakerClient
from support.waiting import DEADLINE_SECS

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
    ),
]


@pytest.fixture
def echo():
    with servers.Echo() as server:
        yield server


@pytest.fixture
def stormkeeper():
    with servers.StormkeeperInterpreted() as server:
        yield server


def load(*arguments, **options):
    """As `running.load`, but tried again, twice, where the machine does something else."""
    for _ in range(2):
        with contextlib.suppress(running.BusyError):
            return running.load(*arguments, **options)
    return running.load(*arguments, **options)


def test_a_closed_loop_measures_both_sides(echo):
    found = load(echo, operation="send", warmup=0.05, seconds=0.5)
    assert found["requests"] == pytest.approx(found["requests_per_s"] * found["seconds"], rel=0.01)
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["p999_ms"] <= found["max_ms"] * 1.01
    assert found["cpu_us"] > 0
    assert found["rss_mib"] > 0


def test_an_echo_can_be_told_to_store(echo):
    one = {"operation": "get", "connections": 1, "keys_per_connection": 1, "requests": 10}
    with servers.StoringEcho() as storing:
        assert running.load(storing, **one)["requests"] == 10
    with pytest.raises(running.MeasurementError, match="another value came back"):
        running.load(echo, **one)


def test_a_rate_is_kept(echo):
    found = load(echo, operation="send", rate=100, warmup=0.1, seconds=2)
    assert found["requests"] + found["unanswered"] == pytest.approx(200, rel=0.1)


def test_what_it_stores_is_what_our_client_reads(stormkeeper):
    found = running.store(stormkeeper, 1_000, 200, times=2, jitter=20)
    assert found["requests"] == 2_000
    with PacemakerClient(f"{servers.HOST}:{stormkeeper.port}") as client:
        topologies = client.children("/workerbeats")
        assert len(topologies) == 42  # of 24 workers each, the last not whole
        paths = [
            f"/workerbeats/{topologies[0]}/{w}"
            for w in client.children(f"/workerbeats/{topologies[0]}")
        ]
        assert len(paths) == 24
        assert {len(client.get_pulse(path)) for path in paths} <= set(range(180, 221))
    found = running.load(
        stormkeeper,
        "--no-fill",
        operation="children",
        connections=1,
        keys_per_connection=1_000,
        requests=10,
    )
    assert found["requests"] == 10


def test_a_rate_that_cannot_be_kept_gives_no_figures(echo):
    with pytest.raises(running.BusyError, match="the generator made"):
        running.load(echo, operation="send", rate=50_000_000, warmup=0, seconds=0.3)


@pytest.mark.parametrize("kind", [servers.Redis, servers.Memcached])
@pytest.mark.parametrize("operation", ["send", "get"])
def test_what_others_keep_comes_back_from_them(kind, operation):
    if shutil.which(kind.name.replace("redis", "redis-server")) is None:
        pytest.skip(f"{kind.name} is not installed")
    with kind() as server:
        found = running.load(
            server, operation=operation, connections=10, requests=40, outstanding=4
        )
    assert found["requests"] == 400


@pytest.mark.zookeeper
def test_zookeeper_takes_its_heartbeats(tmp_path):
    with DevZooKeeper(tmp_path) as zookeeper:
        server = SimpleNamespace(port=zookeeper.port, protocol="zookeeper", pids=zookeeper.pid)
        found = load(
            server,
            operation="send",
            bytes=100,
            rate=50,
            connections=40,
            keys_per_connection=1,
            warmup=0,
            seconds=2,
        )
        assert found["requests"] > 0
        client = KazooClient(str(zookeeper.address))
        client.start(timeout=DEADLINE_SECS)
        try:
            topology = "/storm/workerbeats/wc-0-1434561979"
            workers = client.get_children(topology)
            assert len(workers) == 24
            assert {len(client.get(f"{topology}/{worker}")[0]) for worker in workers} == {100}
        finally:
            client.stop()
            client.close()


def test_a_value_that_is_not_what_was_sent_ends_it(echo):
    with pytest.raises(running.MeasurementError, match="another value came back"):
        running.load(echo, operation="get", requests=10)


def test_a_server_that_is_not_there_is_said(echo):
    process = running.start_load(echo, "--no-fill", operation="send", port=reservations.reserve())
    with pytest.raises(running.MeasurementError, match="no connection to"):
        running.finish_load(process, 5)


def test_a_missing_compiler_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "BUILD", tmp_path)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="scripts/bench-setup"):
        compiling.compiled("echo")


def test_the_programs_compile_without_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "BUILD", tmp_path)
    monkeypatch.setattr(compiling, "FLAGS", [*compiling.FLAGS, "-Werror"])
    for name in compiling.PROGRAMS:
        assert compiling.compiled(name).exists()
