"""Storm's own Pacemaker under our clients, none of which ends it."""

import json
import subprocess

import pytest

from stormkeeper import conf as configuration
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.pool import connect
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import Release, serialize
from support.command import STORM
from support.storm_peer import PeerProcess, free_port

pytestmark = [pytest.mark.interop]

TOPOLOGY = "wc-1-1700000000"
PATH = f"/workerbeats/{TOPOLOGY}/node-6700"


@pytest.fixture
def server(storm_peer, security):
    """Storm's Pacemaker, which must be there at the end, and our configuration of it."""
    port = free_port()
    with PeerProcess(storm_peer, "Server", conf={**security, "pacemaker.port": port}) as process:
        servers = {"pacemaker.servers": [f"localhost:{port}"]}
        yield configuration.defaults().with_values({**security, **servers})
        assert process.running, "Storm's Pacemaker has ended"


def beat(storm_peer, time_secs):
    record = ClusterWorkerHeartbeat(TOPOLOGY, {}, time_secs, 42)
    return serialize(record, release=Release(storm_peer.release))


every_method = pytest.mark.parametrize("security", ["NONE", "DIGEST", "KERBEROS"], indirect=True)


@every_method
def test_our_pool_writes_reads_and_deletes(storm_peer, server, say):
    names = [f"node-{port}" for port in range(6700, 6720)]
    values = {
        f"/workerbeats/{TOPOLOGY}/{name}": beat(storm_peer, number)
        for number, name in enumerate(names, 1)
    }
    with connect(server, role="writer") as writer:
        for path, data in values.items():
            writer.send_pulse(path, data)
    with connect(server) as pool:
        assert pool.children("/workerbeats") == [TOPOLOGY]
        assert sorted(pool.children(f"/workerbeats/{TOPOLOGY}")) == names
        readings = pool.read(f"/workerbeats/{TOPOLOGY}").by_path
        assert {path: reading.value for path, reading in readings.items()} == values
        assert {reading.age_secs for reading in readings.values()} == {None}
        assert pool.get_pulse(PATH) == values[PATH]
        assert list(pool.server_infos().values()) == [None]
        pool.delete_path(PATH)
        assert pool.get_pulse(PATH) is None
        pool.delete_path(f"/workerbeats/{TOPOLOGY}")
        assert pool.children(f"/workerbeats/{TOPOLOGY}") == []
        assert not pool.silent
    say(f"our pool, its Pacemaker, {server['pacemaker.auth.method']}: writes, reads, deletes")


@every_method
def test_our_bare_client_asks_for_everything_there_is(storm_peer, server, say):
    [address] = server.pacemaker_servers()
    with connect(server, role="writer") as writer:
        writer.send_pulse(PATH, beat(storm_peer, 1))
    with connect(server) as pool:
        client: PacemakerClient = pool.clients[address]
        # None of the extensions, nor what Storm never finished: each is asked for in another way.
        assert client.server_info() is None
        pages = list(client.walk("/workerbeats"))
        assert [pulse.id for page in pages for pulse in page] == [PATH]
    say(f"our client, its Pacemaker, {server['pacemaker.auth.method']}: bulk reads")


@every_method
def test_our_commands_show_what_storms_holds(storm_peer, server, say):
    with connect(server, role="writer") as writer:
        writer.send_pulse(PATH, beat(storm_peer, 1_700_000_300))
    options = [
        part
        for key in (
            "pacemaker.servers",
            "pacemaker.auth.method",
            "java.security.auth.login.config",
        )
        if server.get(key) is not None
        for part in ("-c", f"{key}={json.dumps(server[key])}")
    ]

    def storm(*arguments):
        return subprocess.run(
            [STORM, "heartbeats", *arguments, *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    assert storm("list", "/") == "workerbeats\n"
    assert storm("list", f"/workerbeats/{TOPOLOGY}") == "node-6700\n"
    shown = json.loads(storm("get", PATH, "--json"))
    assert (shown["storm_id"], shown["time_secs"]) == (TOPOLOGY, 1_700_000_300)
    assert "a Pacemaker without extensions" in storm("get", "/.stormkeeper")
    say(f"storm heartbeats, its Pacemaker, {server['pacemaker.auth.method']}: list, get")
