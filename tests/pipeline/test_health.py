import time

from stormkeeper.conf import Address
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline.health import look, look_at_all
from stormkeeper.pipeline.offsets import WITHOUT_REVISIONS, Position
from support.heartbeats import heartbeat, path
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, refusing

#: Within which every server that can answer does so.
PATIENT_SECS = 30.0


def address_of(text):
    return Address.parse(text, 6699)


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


def test_a_server_that_is_gone_or_refuses_is_an_answer_not_an_error(start_pacemaker):
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
    found = look_at_all([address_of(server.address) for server in servers], 3.0)
    waited = time.monotonic() - started
    assert [health.is_reachable for health in found.values()] == [False, False, False, True]
    assert list(found) == [server.address for server in servers]
    assert 3.0 <= waited < 3 * 3.0
