import pyarrow as pa
import pytest

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.following import Position
from stormkeeper.pipeline import decode, rows
from stormkeeper.pipeline.servers import SERVERS, cause, next_servers, one_each
from support.heartbeats import change_of, page_of

POSITION = Position("i", 7)


def up(at):
    return Coverage(at, None, POSITION, 30.0, 20.0, 3)


def batch(**servers):
    """Return a batch as the pipeline reads it, of these servers and one pulse."""
    pulse = rows.of_pages(
        "b", [page_of("i", [change_of("/workerbeats/wc-1-17/n-1", b"x", 7, 1.0)], 5.0)]
    )
    found = [pulse, *(rows.of_server(name, health) for name, health in servers.items())]
    return pa.Table.from_batches(list(decode.decode_batches(iter(found))))


def test_every_server_has_a_row_whether_it_answers_or_not():
    table = next_servers(None, batch(b=Coverage(11.0, "it hangs"), a=up(10.0)))
    assert table.schema == SERVERS
    a, b = table.to_pylist()
    assert (a["server"], a["reachable"], a["reason"]) == ("a", True, None)
    assert (a["instance"], a["revision"], a["keys"]) == ("i", 7, 3)
    assert (a["uptime_secs"], a["horizon_secs"], a["reset"]) == (30.0, 20.0, False)
    assert a["since"].timestamp() == a["read_at"].timestamp() == 10
    assert (b["server"], b["reachable"], b["reason"]) == ("b", False, "it hangs")
    assert b["horizon_secs"] is None


def test_a_server_is_as_it_is_since_that_changed():
    table, since = None, []
    states = [up(1.0), up(2.0), Coverage(3.0, "down"), Coverage(4.0, "refused"), up(5.0)]
    for health in states:
        table = next_servers(table, batch(a=health))
        (row,) = table.to_pylist()
        assert row["read_at"].timestamp() == health.read_at
        since.append(row["since"].timestamp())
    assert since == [1, 1, 3, 3, 5]


def test_a_server_that_is_no_longer_read_has_no_row():
    before = next_servers(None, batch(a=up(1.0), b=up(1.0)))
    assert next_servers(before, batch(b=up(2.0)))["server"].to_pylist() == ["b"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            "a did not answer X (1 try in 0.0 s; gone)",
            "a did not answer Y (2 tries in 4.0 s; gone)",
            1,
        ),
        (
            "a did not answer X (1 try in 0.0 s; gone)",
            "a did not answer X (1 try in 0.0 s; far)",
            0,
        ),
        ("a did not answer X (1 try in 2.0 s)", "a did not answer Y (1 try in 2.1 s)", 1),
        ("refused after 3 s", "refused after 12 s", 1),
        ("refused", "not trusted", 0),
    ],
)
def test_a_failure_is_the_same_as_long_as_its_cause_is(one, other, same):
    assert (cause(one) == cause(other)) == bool(same)


def test_a_server_that_was_read_in_parts_was_read_if_all_of_them_were():
    def of_parts(*parts):
        found = [rows.of_server("a", health, reset=reset) for health, reset in parts]
        return one_each(pa.Table.from_batches(list(decode.decode_batches(iter(found)))))

    found = of_parts((up(3.0), False), (up(2.0), True), (up(4.0), False))
    (row,) = next_servers(None, found).to_pylist()
    assert (row["reachable"], row["reset"], row["read_at"].timestamp()) == (True, True, 2.0)
    found = of_parts((up(3.0), False), (Coverage(4.0, "it hangs"), False))
    (row,) = next_servers(None, found).to_pylist()
    assert (row["reachable"], row["reason"]) == (False, "it hangs")
    pulses_and_servers = batch(a=up(1.0), b=up(1.0))
    assert one_each(pulses_and_servers) is pulses_and_servers
    doubled = pa.concat_tables([pulses_and_servers, pulses_and_servers])
    assert one_each(doubled)["kind"].to_pylist().count("pulse") == 2
    assert next_servers(None, one_each(doubled)).num_rows == 2
