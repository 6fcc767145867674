"""A pool deletes at all servers, and makes good what those that were down have missed."""

import pytest

from stormkeeper.errors import NotAuthorizedError, PacemakerUnavailableError
from stormkeeper.pacemaker.client import PacemakerClient, pool_reads
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


def test_delete_reaches_a_frozen_server_later(own_daemons, pool_of, direct):
    first, second = own_daemons
    held = direct(second)
    pool = pool_of(first, second)
    for number in range(3):
        held.send_pulse(f"/w-{number}/x", b"")
    second.suspend()
    for number in range(3):
        pool.delete_path(f"/w-{number}")
    second.resume()
    until(lambda: held.children("/") == [])


def test_revived_server_shows_no_deleted_pulses(stack, daemons, pool_of, direct):
    first, second = daemons
    way = stack.enter_context(Proxy(address(second)))
    pool = pool_of(first, way)
    way.cut()
    pool.delete_path("/w")
    pool.delete_path("/v")
    client = direct(second)
    for path in ("/w/late", "/v"):  # a worker that had not heard of the end of its topology
        client.send_pulse(path, b"")
    client.send_pulse("/kept", b"")
    way.mend()
    names = until(lambda: pool.children("/"))
    assert names == ["kept"]
    assert client.children("/") == ["kept"]


@pytest.mark.slow
def test_server_revived_during_retries_shows_no_deleted_pulses(
    stack, daemons, pool_of, direct, monkeypatch
):
    way = stack.enter_context(Proxy(address(daemons[0])))
    pool, client = pool_of(way), direct(daemons[0])
    for path in ("/w/x", "/kept"):
        client.send_pulse(path, b"")
    way.cut()
    ask_once, failed = pool_reads._Fanout.ask, []

    def ask(*args):
        outcomes = ask_once(*args)
        if outcomes.failed and is_read and not failed:
            failed.append(outcomes)
            way.mend()
        return outcomes

    monkeypatch.setattr(pool_reads._Fanout, "ask", ask)
    is_read = False
    with pytest.raises(PacemakerUnavailableError):
        pool.delete_path("/w")
    is_read = True
    assert pool.children("/") == ["kept"]
    assert failed


@pytest.mark.slow
def test_forgotten_delete_is_completed_by_expiry(stack, direct):
    """The pool that deleted is gone; the server that missed it forgets the pulse by its age."""
    first = stack.enter_context(PacemakerProcess())
    second = stack.enter_context(PacemakerProcess(conf={"pacemaker.pulse.ttl.secs": 5}))
    way = stack.enter_context(Proxy(address(second)))
    way.cut()
    held = direct(second)
    held.send_pulse("/w/a", b"")
    with PacemakerPool([address(first), way.address], try_timeout=TRY) as pool:
        pool.delete_path("/w")
    assert held.children("/w") == ["a"], "nobody makes it good"
    until(lambda: held.children("/") == [])


def test_a_newer_pulse_is_not_deleted_by_what_is_made_good(own_daemons, pool_of, direct):
    first, second = own_daemons
    pool = pool_of(second, first)
    direct(second).send_pulse("/w/old", b"old")
    second.suspend()
    pool.delete_path("/w")
    second.resume()
    until(lambda: pool.clients[address(second)].retry_in() == 0.0)
    pool.send_pulse("/w/new", b"new")
    assert pool.sender.placement.current == address(second)
    until(lambda: not pool._missed_deletes._missed)
    assert direct(second).children("/w") == ["new"]


def test_delete_missed_by_all_is_an_error_and_repeated(own_daemons, pool_of):
    daemon = own_daemons[0]
    pool = pool_of(daemon, retries=1)
    pool.send_pulse("/w", b"1")
    daemon.suspend()
    with pytest.raises(PacemakerUnavailableError):
        pool.delete_path("/w")
    daemon.resume()
    with PacemakerClient(daemon.address) as client:
        until(lambda: not client.exists("/w"))
