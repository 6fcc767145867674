"""Sets of Pacemakers of which one is ours and one Storm's, while members are killed."""

import pytest

from stormkeeper import conf as configuration
from stormkeeper.conf import Address
from stormkeeper.pacemaker.client.pool import connect
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import Release, deserialize, serialize
from support.pacemaker import PacemakerProcess
from support.proxy import Proxy
from support.storm_peer import PeerProcess, free_port
from support.waiting import until

pytestmark = [pytest.mark.interop]

WORKERS = 4
TOPOLOGY = "wc-1-1700000000"
PATH = f"/workerbeats/{TOPOLOGY}/node-6700"
BACK_SECS = 240.0


@pytest.fixture
def theirs(storm_peer):
    """Storm's Pacemaker, and where it listens (which is every address)."""
    port = free_port()
    process = PeerProcess(storm_peer, "Server", conf={"pacemaker.port": port})
    with process:
        yield process, Address("127.0.0.1", port)


@pytest.mark.parametrize("victim", ["ours", "Storm's"])
def test_storms_fleet_lives_on_with_either_alone(storm_peer, theirs, victim, say):
    process, address = theirs
    # Storm's clients have one port for all servers, so the two differ by address.
    with Proxy(address) as proxy:
        ours = PacemakerProcess(proxy.address.port, host="127.0.0.2")
        conf = {
            "pacemaker.servers": [ours.host, proxy.address.host],
            "pacemaker.port": proxy.address.port,
        }
        with ours, PeerProcess(storm_peer, "Fleet", str(WORKERS), TOPOLOGY, conf=conf) as fleet:
            killed = ours if victim == "ours" else process
            assert fleet.ask("beat 100") == WORKERS
            assert fleet.ask("read 100") == WORKERS
            killed.kill()
            until(lambda: fleet.ask("beat 200") == WORKERS, BACK_SECS)
            until(lambda: fleet.ask("read 200") == WORKERS, BACK_SECS)
            killed.start()
            until(lambda: fleet.ask("beat 300") == WORKERS, BACK_SECS)
            until(lambda: fleet.ask("read 300") == WORKERS, BACK_SECS)
            until(lambda: fleet.ask("delete") == 0, BACK_SECS)
    say(f"{WORKERS} of its workers and its Nimbus, both Pacemakers, {victim} killed: go on")


def test_our_pool_reads_the_newest_of_both_and_outlives_either(storm_peer, theirs, say):
    process, address = theirs

    def beat(time_secs):
        record = ClusterWorkerHeartbeat(TOPOLOGY, {}, time_secs, 42)
        return serialize(record, release=Release(storm_peer.release))

    def newest(pool):
        found = pool.get_pulse(PATH)
        return found and deserialize(ClusterWorkerHeartbeat, found).time_secs

    with PacemakerProcess() as ours:
        values = {"pacemaker.servers": [ours.address, str(address)]}
        conf = configuration.defaults().with_values(values)
        with connect(conf) as pool:
            first, second = pool.clients.values()
            first.send_pulse(PATH, beat(100))
            second.send_pulse(PATH, beat(200))
            assert newest(pool) == 200
            first.send_pulse(PATH, beat(300))
            assert newest(pool) == 300
            for number, member in enumerate((ours, process)):
                member.kill()
                pool.send_pulse(PATH, beat(400 + number))
                assert newest(pool) == 400 + number
                member.start()
                until(lambda: reached(pool), BACK_SECS)
            pool.delete_path(f"/workerbeats/{TOPOLOGY}")
            assert newest(pool) is None
            assert process.running
    say("our pool, both Pacemakers, each killed in turn: goes on, and reads the newest")


def reached(pool):
    """Whether all servers answer again."""
    pool.reading(PATH)
    return not pool.silent
