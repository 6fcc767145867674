"""Which Pacemakers cannot say yet that a worker has gone."""

import math

from stormkeeper.cli.following import doubtful_of
from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerUnavailableError
from stormkeeper.thrift.pacemaker import ServerInfo

A, B = Address("a", 1), Address("b", 2)


def up_for(uptime_secs, horizon_secs):
    return ServerInfo(uptime_ms=uptime_secs * 1000, horizon_ms=horizon_secs * 1000)


def doubtful(info, *, since_secs, timeout_secs=30):
    return bool(doubtful_of({A: info}, since_secs, timeout_secs))


def test_a_server_that_has_started_since_vouches_after_the_timeout():
    assert doubtful(up_for(4, 4), since_secs=5)
    assert doubtful(up_for(29, 29), since_secs=60)
    assert not doubtful(up_for(30, 30), since_secs=60)


def test_a_server_that_was_there_all_the_time_vouches_at_once():
    assert not doubtful(up_for(5, 5), since_secs=4)
    # It was stopped for a while, and has what it had.
    assert not doubtful(up_for(500, 1), since_secs=4)


def test_a_server_that_was_stopped_since_it_started_begins_anew():
    assert doubtful(up_for(50, 1), since_secs=math.inf)


def test_only_who_is_in_doubt_is_named():
    infos = {A: up_for(1, 1), B: up_for(99, 99)}
    assert list(doubtful_of(infos, math.inf, 30)) == [A]
    assert doubtful_of({A: None, B: PacemakerUnavailableError("gone")}, math.inf, 30) == {}
