import math
import time

from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerUnavailableError
from stormkeeper.heartbeats import coverage
from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS, Position
from stormkeeper.heartbeats.coverage import unproven_on
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.client_settings import ClientSettings
from stormkeeper.thrift.pacemaker import ServerInfo
from support.heartbeats import heartbeat, path
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, refusing

#: Within which every server that can answer does so.
PATIENT_SECS = 30.0


A, B = Address("a", 1), Address("b", 2)


def address_of(text):
    return Address.parse(text, 6699)


def look(server, timeout_secs):
    (found,) = coverage.ask([server], timeout_secs, ClientSettings()).values()
    return found


def test_a_server_tells_how_it_is(start_pacemaker):
    began = time.monotonic()
    pacemaker = start_pacemaker()
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("a"), heartbeat())
        client.send_pulse(path("b"), heartbeat())
    before = time.time()
    health = look(address_of(pacemaker.address), PATIENT_SECS)
    assert health.is_reachable
    assert health.position.revision == 2
    assert health.position.instance != WITHOUT_REVISIONS
    assert health.keys == 2
    assert 0 <= health.horizon_secs <= health.uptime_secs < time.monotonic() - began
    assert before <= health.read_at <= time.time()


def test_a_java_pacemaker_is_known_by_its_silence_about_itself():
    java = JavaPacemaker()
    with ScriptedPacemaker(java) as server:
        health = look(address_of(server.address), PATIENT_SECS)
    assert health.is_reachable
    assert health.position == Position(WITHOUT_REVISIONS, 0)
    assert (health.uptime_secs, health.horizon_secs, health.keys) == (None, None, None)


def test_a_server_that_is_down_is_an_answer_not_an_error(start_pacemaker):
    gone = start_pacemaker()
    gone.kill()
    health = look(address_of(gone.address), PATIENT_SECS)
    assert not health.is_reachable
    assert "refused" in health.error
    assert health.position is None
    with ScriptedPacemaker(refusing) as server:
        health = look(address_of(server.address), PATIENT_SECS)
    assert not health.is_reachable
    assert health.error


def test_servers_that_hang_cost_one_wait_together(start_pacemaker):
    servers = [start_pacemaker() for _ in range(4)]
    for server in servers[:3]:
        server.suspend()
    started = time.monotonic()
    found = coverage.ask([address_of(server.address) for server in servers], 3.0, ClientSettings())
    waited = time.monotonic() - started
    assert [health.is_reachable for health in found.values()] == [False, False, False, True]
    assert list(found) == [server.address for server in servers]
    assert 3.0 <= waited < 3 * 3.0


def up_for(uptime_secs, horizon_secs):
    return ServerInfo(uptime_ms=uptime_secs * 1000, horizon_ms=horizon_secs * 1000)


def is_unproven(info, *, since_secs, timeout_secs=30):
    return bool(unproven_on({A: info}, since_secs, timeout_secs))


def test_a_restarted_server_vouches_after_the_timeout():
    assert is_unproven(up_for(4, 4), since_secs=5)
    assert is_unproven(up_for(29, 29), since_secs=60)
    assert not is_unproven(up_for(30, 30), since_secs=60)


def test_a_server_that_was_there_all_the_time_vouches_at_once():
    assert not is_unproven(up_for(5, 5), since_secs=4)
    # It was stopped for a while, and has what it had.
    assert not is_unproven(up_for(500, 1), since_secs=4)


def test_a_server_that_was_stopped_since_it_started_begins_anew():
    assert is_unproven(up_for(50, 1), since_secs=math.inf)


def test_only_who_is_in_doubt_is_named():
    infos = {A: up_for(1, 1), B: up_for(99, 99)}
    assert list(unproven_on(infos, math.inf, 30)) == [A]
    assert unproven_on({A: None, B: PacemakerUnavailableError("gone")}, math.inf, 30) == {}
