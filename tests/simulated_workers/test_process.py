import json
import signal
import subprocess

import pytest

from stormkeeper.conf import Address, load
from stormkeeper.daemon.lifecycle import StopSignals
from stormkeeper.errors import ConfigError, PacemakerUnavailableError, SimulationError
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.simulation import process
from stormkeeper.simulation.cluster import PROFILES
from support.command import STORM
from support.pacemaker import PacemakerProcess, nobody, start_pacemaker
from support.simulations import as_told, read, told_executors
from support.waiting import DEADLINE_SECS, until

__all__ = ["start_pacemaker"]


#: Of all tests of this file: each has topologies of its own.
@pytest.fixture(scope="module")
def pacemaker():
    with PacemakerProcess() as process:
        yield process


REAL = "/workerbeats/word-count-1-1700000000/node-6700"


def command(servers, *arguments):
    addresses = ", ".join(server.address for server in servers)
    return [STORM, "simulate", "-c", f"pacemaker.servers=[{addresses}]", *arguments]


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def held(servers):
    with PacemakerPool([Address.parse(server.address, 0) for server in servers]) as pool:
        return dict(pool.read("/workerbeats", values=True).by_path)


def check(told, found, *, alive=False):
    """Check that the Pacemakers hold what is told; return the last event of each path.

    With `alive` only of workers that were alive at the end.
    """
    killed = {event["storm_id"] for event in told if event["event"] == "pulses_deleted"}
    ours = {event["storm_id"] for event in told if event["event"] == "topology"}
    found = {path: copy for path, copy in found.items() if path.split("/")[2] in ours}
    last = {}
    for event in told:
        if event["event"] == "worker_ended" and event["storm_id"] not in killed and event["last"]:
            last[f"/workerbeats/{event['storm_id']}/{event['node']}-{event['port']}"] = event
    if alive:
        last = {p: e for p, e in last.items() if e["why"] == "end of the simulation"}
        assert last.keys() <= found.keys()
    else:
        assert last.keys() == found.keys()
    for path, event in last.items():
        record = read(found[path].value)
        assert record.time_secs == event["last"]["time_secs"]
        assert record.uptime_secs == event["last"]["uptime_secs"]
        assert told_executors(event) == as_told(record)
        assert str(found[path].server) == event["last"]["server"]
    return last


def test_what_the_pacemaker_holds_is_the_truth(pacemaker, tmp_path):
    truth = tmp_path / "truth.jsonl"
    size = ("--nodes", "3", "--workers-per-node", "2", "--topologies", "2", "--rate", "40")
    ran = subprocess.run(
        command([pacemaker], *size, "--duration", "0.7", "--truth", truth, "--json"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=True,
    )
    summary = json.loads(ran.stdout)
    told = events(truth)
    assert len(check(told, held([pacemaker]))) == 6
    ended = [event for event in told if event["event"] == "worker_ended"]
    assert sum(event["acknowledged"] for event in ended) == summary["acknowledged"]
    assert summary["sent"] == summary["acknowledged"] + summary["failed"] > 0
    assert summary["workers"] == 6
    assert "s: 6 workers of 2 topologies" in ran.stderr


def run(servers, *, truth=None, keys=(), **options):
    addresses = ", ".join(str(server) for server in servers)
    conf = load(files=(), overrides=[f"pacemaker.servers=[{addresses}]", *keys])
    said = []
    wanted = process.SimulationOptions(
        PROFILES["small"].sized(2, 1, 1),
        seed=7,
        period_secs=0.05,
        count_every=1,
        connections=1,
        duration_secs=0.2,
        **options,
    )
    with StopSignals() as stop:
        return process.run(conf, wanted, truth, stop, said.append)


def test_simulation_refuses_real_workers_and_cleans_up(pacemaker):
    with PacemakerPool([Address.parse(pacemaker.address, 0)]) as pool:
        pool.send_pulse(REAL, b"real")
        with pytest.raises(SimulationError, match="word-count-1-1700000000; name others"):
            run([pacemaker.address])
        before = pool.children("/workerbeats")
        assert run([pacemaker.address], beside=True, cleans=True)["acknowledged"] > 0
        assert pool.children("/workerbeats") == before
        pool.delete_path("/workerbeats/word-count-1-1700000000")
        # What another run has left is no reason to refuse.
        assert run([pacemaker.address], beside=False)["acknowledged"] > 0
        assert run([pacemaker.address])["acknowledged"] > 0


def test_a_pacemaker_that_does_not_answer_may_have_real_workers(pacemaker):
    with pytest.raises(PacemakerUnavailableError, match="whether it has real workers"):
        run([pacemaker.address, nobody()])


def test_a_truth_without_counters_says_the_rest(pacemaker, tmp_path):
    truth = tmp_path / "truth.jsonl"
    summary = run([pacemaker.address], truth=truth, tells_counters=False)
    ended = [event for event in events(truth) if event["event"] == "worker_ended"]
    assert sum(event["acknowledged"] for event in ended) == summary["acknowledged"] > 0
    assert all("executors" not in event["last"] for event in ended)


@pytest.mark.parametrize("key", ["pacemaker.tls.enable", "pacemaker.auth.writes"])
def test_it_says_that_it_neither_encrypts_nor_authenticates(key):
    with pytest.raises(ConfigError, match=key):
        run([nobody()], keys=[f"{key}=true"])


def test_unwritable_truth_fails_before_the_first_pulse(tmp_path):
    with pytest.raises(SimulationError, match="--truth"):
        run([nobody()], truth=tmp_path / "none" / "truth.jsonl", beside=True)


@pytest.mark.parametrize(
    ("size", "fault"),
    [((2, 2, 5), "5 topologies do not go with 4 workers"), ((1, 20_000, None), "ports")],
)
def test_a_size_that_cannot_be_is_refused(size, fault):
    with pytest.raises(ConfigError, match=fault):
        PROFILES["small"].sized(*size)


@pytest.mark.slow
def test_truth_holds_through_troubles_and_a_restart(start_pacemaker, tmp_path):
    servers = [start_pacemaker(), start_pacemaker()]
    truth = tmp_path / "truth.jsonl"
    size = ("--nodes", "8", "--workers-per-node", "4", "--topologies", "8", "--rate", "60")
    simulating = subprocess.Popen(
        command(servers, *size, "--faults", "--duration", "15", "--truth", truth, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: len(held(servers)) == 32)
        servers[0].restart()
        out, err = simulating.communicate(timeout=DEADLINE_SECS)
    finally:
        simulating.kill()
    assert simulating.returncode == 0, err
    told = events(truth)
    kinds = {event["kind"] for event in told if event["event"] == "trouble"}
    assert len(kinds) == 11
    assert [event for event in told if event["event"] == "server_changed"]
    assert len(check(told, held(servers), alive=True)) > 20
    killed = {event["storm_id"] for event in told if event["event"] == "pulses_deleted"}
    assert killed
    assert not {path for path in held(servers) if path.split("/")[2] in killed}
    summary = json.loads(out)
    assert summary["acknowledged"] > 0.5 * summary["sent"]


@pytest.mark.slow
def test_a_signal_ends_it_with_all_answers_and_without_pulses(start_pacemaker, tmp_path):
    server, truth = start_pacemaker(), tmp_path / "truth.jsonl"
    size = ("--nodes", "3", "--workers-per-node", "3", "--topologies", "3", "--rate", "30")
    simulating = subprocess.Popen(
        command([server], *size, "--truth", truth, "--clean", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: len(held([server])) == 9)
        simulating.send_signal(signal.SIGTERM)
        out, err = simulating.communicate(timeout=DEADLINE_SECS)
    finally:
        simulating.kill()
    assert simulating.returncode == 0, err
    assert held([server]) == {}
    summary = json.loads(out)
    assert summary["sent"] == summary["acknowledged"] >= 9
    ended = [event for event in events(truth) if event["event"] == "worker_ended"]
    assert len(ended) == 9
    assert sum(event["acknowledged"] for event in ended) == summary["acknowledged"]
