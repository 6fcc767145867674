from stormkeeper.cli.heartbeats_top import (
    OTHER,
    PulseStatistics,
    ServerState,
)
from stormkeeper.errors import NotAuthorizedError, PacemakerUnavailableError
from stormkeeper.heartbeats.change_pages import ChangePage, PathChange, Position, ServerReading
from stormkeeper.thrift.pacemaker import ServerInfo

A, B = "a:1", "b:1"


def path(topology, port):
    return f"/workerbeats/{topology}/node-{port}"


def told(received=0, *, horizon=100.0):
    return ServerInfo(
        version="0.1",
        uptime_ms=100_000,
        horizon_ms=int(1000 * horizon),
        keys=7,
        pulses_received=received,
        connections=3,
    )


def pulse(path, size, received):
    """A pulse, or a deletion, received at that time; all pages here are read at 0."""
    return PathChange(path, size, age_secs=-received)


def look(server, *changes, received=0, is_anew=False, horizon=100.0):
    position = Position("i", 0)
    pages = [ChangePage(list(changes), 0.0, position)]
    info = told(received, horizon=horizon)
    return server, ServerReading(pages, position, is_anew, len(changes), info)


def statistics():
    return PulseStatistics(period_secs=3, timeout_secs=30)


def rows(summary):
    return {row.topology: row for row in summary.topologies}


def test_what_a_server_held_already_is_no_rate():
    book = statistics()
    first = [pulse(path("t", n), 1000, 8.0) for n in range(10)]
    book.record([look(A, *first, received=500, is_anew=True)], 10.0)
    row = rows(book.summary(10.0, 5))["t"]
    assert (row.workers, row.pulses_per_s, row.mean_bytes, row.oldest_secs) == (10, None, 1000, 2)
    book.record(
        [look(A, *(pulse(path("t", n), 3000, 11.0) for n in range(4)), received=506)],
        12.0,
    )
    summary = book.summary(12.0, 5)
    row = rows(summary)["t"]
    assert (row.workers, row.pulses_per_s, row.bytes_per_s) == (10, 2.0, 6000.0)
    assert row.mean_bytes == (4 * 3000 + 6 * 1000) / 10
    assert row.oldest_secs == 4.0
    # What was overwritten between two looks is only in the server's own count.
    assert summary.servers[0].pulses_per_s == 3.0
    assert summary.pulses_per_s == 3.0
    assert summary.oldest[0].worker == "node-4"


def test_rates_are_over_the_last_ten_seconds():
    book = statistics()
    book.record([look(A, is_anew=True)], 0.0)
    for at in range(1, 31):
        beats = [pulse(path("t", at % 3), 100, at)] if at <= 20 else []
        book.record([look(A, *beats, received=min(at, 20))], float(at))
        if at == 10:
            assert book.summary(10.0, 1).pulses_per_s == 1.0
    assert book.summary(30.0, 1).pulses_per_s == 0.0
    assert book.summary(30.0, 1).servers[0].pulses_per_s == 0.0


def test_of_a_workers_pulses_the_newest_counts():
    book = statistics()
    left_behind = pulse(path("t", 1), 500, 1.0)
    book.record(
        [
            look(A, left_behind, is_anew=True),
            look(B, pulse(path("t", 1), 700, 49.0), is_anew=True),
        ],
        50.0,
    )
    summary = book.summary(50.0, 5)
    assert (summary.workers, summary.silent) == (1, 0)
    [oldest] = summary.oldest
    assert (oldest.worker, oldest.server, oldest.age_secs, oldest.bytes) == ("node-1", B, 1.0, 700)
    assert book.summary(79.5, 5).silent == 1


def test_the_noisiest_topology_and_the_oldest_worker_come_first():
    book = statistics()
    book.record([look(A, is_anew=True)], 100.0)
    changes = [pulse(path("many-small", n), 10, 101.0 - n / 10) for n in range(9)]
    changes += [pulse(path("few-large", n), 5000, 101.5) for n in range(2)]
    changes += [pulse("/elsewhere", 7, 90.0)]
    book.record([look(A, *changes)], 102.0)
    summary = book.summary(102.0, 3)
    assert [row.topology for row in summary.topologies] == ["few-large", "many-small", OTHER]
    assert [row.worker for row in summary.oldest] == ["/elsewhere", "node-8", "node-7"]
    assert summary.workers == 12


def test_deleted_pulses_and_restarted_servers_are_forgotten():
    book = statistics()
    changes = [pulse(path("t", n), 10, 0.5) for n in range(3)]
    book.record([look(A, *changes, received=3, is_anew=True)], 1.0)
    book.record([look(A, pulse(path("t", 0), None, 1.5), received=3)], 2.0)
    assert book.summary(2.0, 9).workers == 2
    book.record([look(A, pulse(path("u", 0), 10, 2.9), received=1, is_anew=True)], 3.0)
    summary = book.summary(3.0, 9)
    assert [row.topology for row in summary.topologies] == ["u"]
    # 1 received after 3 would be a negative rate.
    assert summary.servers[0].pulses_per_s is None


def test_pulses_of_an_unreadable_server_are_kept():
    book = statistics()
    book.record(
        [
            look(A, pulse(path("t", 0), 10, 1.0), is_anew=True),
            (B, NotAuthorizedError("no")),
        ],
        1.0,
    )
    book.record(
        [
            (A, PacemakerUnavailableError("gone")),
            (B, NotAuthorizedError("no")),
        ],
        2.0,
    )
    summary = book.summary(5.0, 9)
    assert [(s.state, s.problem, s.keys) for s in summary.servers] == [
        (ServerState.DOWN, "gone", None),
        (ServerState.REFUSED, "no", None),
    ]
    assert summary.oldest[0].age_secs == 4.0


def test_server_is_filling_for_a_heartbeat_period():
    book = statistics()
    for horizon, state in [
        (0.0, ServerState.FILLING),
        (2.9, ServerState.FILLING),
        (3.0, ServerState.SERVING),
    ]:
        book.record([look(A, horizon=horizon, is_anew=True)], 1.0)
        assert book.summary(1.0, 1).servers[0].state is state
