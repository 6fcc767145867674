"""A pool deletes on all servers; on those that are away, the pulses expire."""

import pytest

from stormkeeper.errors import NotAuthorizedError, PacemakerUnavailableError
from stormkeeper.pacemaker.client.pool import PacemakerPool
from support.pacemaker import PacemakerProcess
from support.pools import TRY, address
from support.proxy import Proxy
from support.scripted_pacemaker import ScriptedPacemaker, refusing
from support.waiting import until


def test_a_delete_reaches_every_server(daemons, pool_of, direct):
    clients = [direct(daemon) for daemon in daemons]
    pool = pool_of(*daemons)
    for client in clients:
        for path in ("/w/a", "/w/b", "/v"):
            client.send_pulse(path, b"")
    pool.delete_path("/w/a")
    assert [client.children("/w") for client in clients] == [["b"], ["b"]]
    pool.delete_path("/w")
    assert [client.children("/") for client in clients] == [["v"], ["v"]]


def test_a_delete_that_any_server_refuses_is_refused(stack, daemons, pool_of, direct):
    refuses = stack.enter_context(ScriptedPacemaker(refusing))
    direct(daemons[0]).send_pulse("/w", b"")
    with pytest.raises(NotAuthorizedError):
        pool_of(refuses, daemons[0]).delete_path("/w")
    assert not direct(daemons[0]).exists("/w"), "the others have done it"


@pytest.mark.slow
def test_delete_missed_by_a_server_is_completed_by_expiry(stack, direct):
    first = stack.enter_context(PacemakerProcess())
    second = stack.enter_context(PacemakerProcess(conf={"pacemaker.pulse.ttl.secs": 5}))
    way = stack.enter_context(Proxy(address(second)))
    way.cut()
    held = direct(second)
    held.send_pulse("/w/a", b"")
    with PacemakerPool([address(first), way.address], try_timeout=TRY) as pool:
        pool.delete_path("/w")
    assert held.children("/w") == ["a"]
    until(lambda: held.children("/") == [])


def test_delete_missed_by_all_servers_is_an_error(stack, daemons, pool_of, direct):
    way = stack.enter_context(Proxy(address(daemons[0])))
    pool, client = pool_of(way, retries=1), direct(daemons[0])
    client.send_pulse("/w", b"1")
    way.cut()
    with pytest.raises(PacemakerUnavailableError):
        pool.delete_path("/w")
    way.mend()
    assert pool.children("/") == ["w"]


def test_delete_missed_by_a_server_is_logged(own_daemons, pool_of, caplog):
    first, second = own_daemons
    pool = pool_of(first, second)
    second.suspend()
    pool.delete_path("/w")
    second.resume()
    assert "the pulses of /w stay there until they expire" in caplog.text
    assert str(address(second)) in caplog.text
