"""Asking several servers at once: what one that is not well costs the others."""

import contextlib
import threading
import time

import pytest

from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.client import PacemakerClient, pool_reads
from stormkeeper.pacemaker.client.pool_reads import GRACE, ask_all
from stormkeeper.pacemaker.client.server_reads import Round, one_request
from stormkeeper.pacemaker.wire.messages import ChangesRequest, Message, MessageType
from support.pacemaker import nobody
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, hang, honest, refusing
from support.waiting import DEADLINE_SECS, until

TRY = 2.0
REQUEST = Message(MessageType.EXISTS, path="/a")


@pytest.fixture
def clients(stack):
    """Make a client of a peer that plays these scripts."""

    def make(*scripts, try_timeout=TRY):
        peer = stack.enter_context(ScriptedPacemaker(*scripts))
        return stack.enter_context(PacemakerClient(peer.address, try_timeout=try_timeout))

    return make


@pytest.fixture
def dead(stack):
    return stack.enter_context(PacemakerClient(nobody(), try_timeout=TRY))


def ask(*clients, try_timeout=TRY, deadline=40.0, question_for=lambda _: one_request(REQUEST)):
    started = time.monotonic()
    outcomes = ask_all(
        clients,
        question_for,
        try_timeout=try_timeout,
        deadline=deadline,
    )
    assert set(outcomes.answered) | set(outcomes.failed) == {c.address for c in clients}
    assert not set(outcomes.answered) & set(outcomes.failed)
    return outcomes, time.monotonic() - started


def test_all_answer(clients):
    asked = [clients(honest) for _ in range(4)]
    outcomes, _ = ask(*asked)
    assert len(outcomes.answered) == 4
    assert all(answer.boolval is False for answer in outcomes.answered.values())


def test_they_are_asked_at_the_same_time(clients):
    all_asked = threading.Barrier(8, timeout=DEADLINE_SECS)

    def together(connection):
        request = connection.request()
        with contextlib.suppress(threading.BrokenBarrierError):
            all_asked.wait()
            connection.answer(Message(3, request.message_id, boolval=True))
        connection.wait_for_end()

    asked = [clients(together, try_timeout=20.0) for _ in range(8)]
    outcomes, _ = ask(*asked, try_timeout=20.0)
    assert len(outcomes.answered) == 8, "no one answers before all were asked"


def test_meanwhile_runs_during_the_request(clients):
    arrived, done = threading.Event(), threading.Event()

    def waits_for_it(connection):
        request = connection.request()
        arrived.set()
        assert done.wait(DEADLINE_SECS)
        connection.answer(Message(3, request.message_id, boolval=True))
        connection.wait_for_end()

    def meanwhile():
        assert arrived.wait(DEADLINE_SECS)
        done.set()

    def question(_):
        (answer,) = yield Round([REQUEST], meanwhile)
        return answer.boolval

    client = clients(waits_for_it, try_timeout=DEADLINE_SECS)
    outcomes, _ = ask(client, try_timeout=DEADLINE_SECS, question_for=question)
    assert outcomes.answered == {client.address: True}


def test_a_frozen_server_costs_one_try_and_then_only_the_grace(clients):
    well, frozen = clients(honest), clients(hang)
    outcomes, took = ask(well, frozen)
    assert set(outcomes.answered) == {well.address}
    assert isinstance(outcomes.failed[frozen.address], PacemakerUnavailableError)
    assert TRY <= took < 3 * TRY
    costs = []
    for _ in range(3):
        until(lambda: frozen.retry_in() == 0.0)
        outcomes, took = ask(well, frozen)
        assert set(outcomes.answered) == {well.address}
        costs.append(took)
    assert min(costs) < GRACE + 0.5 * TRY


def test_a_server_in_its_back_off_costs_nothing(clients, dead):
    well = clients(honest)
    ask(well, dead)
    costs = []
    while len(costs) < 5:
        outcomes, took = ask(well, dead)
        if "failed just now (connection refused" in str(outcomes.failed[dead.address]):
            costs.append(took)
    assert min(costs) < GRACE


def test_a_suspect_that_refuses_at_once_is_not_waited_for(clients, dead, monkeypatch):
    monkeypatch.setattr(pool_reads, "GRACE", 30.0)
    well = clients(honest)
    ask(well, dead)
    for _ in range(3):
        until(lambda: dead.retry_in() == 0.0)
        outcomes, _ = ask(well, dead)
        # And not that it did not answer within the grace.
        assert "(1 try in" in str(outcomes.failed[dead.address])


def test_a_server_that_comes_back_is_asked_and_heard_again(clients):
    well, returning = clients(honest), clients(hang, hang, honest)

    def both_answer():
        outcomes, _ = ask(well, returning)
        return len(outcomes.answered) == 2

    assert not both_answer()
    until(both_answer)
    assert not returning.suspect


def test_a_connection_that_is_cut_has_a_second_chance(clients):
    def cut(connection):
        connection.request()
        connection.reset()

    asked = clients(cut, honest), clients(honest)
    outcomes, _ = ask(*asked, try_timeout=20.0)  # within half of which a failure is a quick one
    assert len(outcomes.answered) == 2


def test_where_every_server_is_a_suspect_all_are_waited_for(clients):
    def slowly(connection):
        request = connection.request()
        connection.wait(2 * GRACE)
        connection.answer(Message(3, request.message_id, boolval=True))
        connection.wait_for_end()

    client = clients(hang, slowly)
    outcomes, _ = ask(client)
    assert client.suspect
    outcomes, _ = ask(client)
    assert outcomes.answered[client.address].boolval is True


def test_hurried_read_skips_servers_in_back_off(dead):
    def hurried():
        outcomes = ask_all(
            [dead],
            lambda _: one_request(REQUEST),
            try_timeout=TRY,
            deadline=40.0,
            retries=10,
            hurried=True,
        )
        return str(outcomes.failed[dead.address])

    first = hurried()
    assert "(2 tries in" in first, "the first time it has its second chance"
    assert "connection refused" in first
    until(lambda: "failed just now (connection refused" in hurried())
    until(lambda: "(1 try in" in hurried())


def test_refusals_and_broken_rules_are_outcomes_too(clients):
    def wrong(connection):
        request = connection.request()
        connection.answer(Message(MessageType.GET_PULSE_RESPONSE, request.message_id))
        connection.wait_for_end()

    well, refuses, breaks = clients(honest), clients(refusing), clients(wrong)
    outcomes, _ = ask(well, refuses, breaks)
    assert set(outcomes.answered) == {well.address}
    assert isinstance(outcomes.failed[refuses.address], NotAuthorizedError)
    assert isinstance(outcomes.failed[breaks.address], RemoteProtocolError)


def test_the_deadline_ends_it_whatever_is_missing(clients):
    client = clients(hang, try_timeout=60.0)
    outcomes, took = ask(client, try_timeout=60.0, deadline=0.1)
    assert isinstance(outcomes.failed[client.address], PacemakerUnavailableError)
    assert took < 30.0, "a try takes a minute"


def test_a_closed_client_says_so(clients):
    closed = clients(honest)
    closed.close()
    outcomes, _ = ask(closed, clients(honest))
    assert isinstance(outcomes.failed[closed.address], PacemakerClosedError)


def test_servers_answer_rounds_independently(clients):
    def count(_client):
        total = 0
        for size in (3, 1, 5):
            answers = yield Round([Message(MessageType.EXISTS, path=f"/{n}") for n in range(size)])
            assert len(answers) == size
            total += size
        return total

    outcomes, _ = ask(clients(honest), clients(honest), question_for=count)
    assert list(outcomes.answered.values()) == [9, 9]


def test_question_can_turn_to_requests_of_storm(clients):
    def question_for(_client):
        request = ChangesRequest("/", 0, 0, None)
        try:
            yield Round([Message(MessageType.CHANGES, changes_request=request)])
        except UnsupportedExtensionError:
            (answer,) = yield Round([REQUEST])
            return answer.boolval
        return "it has changes"

    outcomes, _ = ask(clients(JavaPacemaker()), question_for=question_for)
    assert list(outcomes.answered.values()) == [False]


def test_nobody_to_ask():
    outcomes, _ = ask()
    assert outcomes.answered == outcomes.failed == {}
