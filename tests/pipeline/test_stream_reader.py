"""What a stream's reader plans and reads, without Spark: plans in one process, reads elsewhere."""

import json
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import ConfigError, PacemakerUnavailableError
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import rows, source
from stormkeeper.pipeline.source import Options, PacemakerStreamReader
from support.heartbeats import change_of, page_of, path, send
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker

#: Seconds within which every server that can answer does so; and so few that a test can wait for
#: one that cannot, in which others may be too slow as well.
PATIENT, IMPATIENT = "30", "0.5"


class Driver:
    """Plans and reads batches as Spark does: plans in one process, reads with what was planned."""

    def __init__(self, server, **given):
        self._options, self._impatient = (
            Options.parse({"servers": server.address, "timeoutSecs": secs, **given})
            for secs in (PATIENT, IMPATIENT)
        )
        self._reader = PacemakerStreamReader(self._options)
        self._start = self._end = self._reader.initialOffset()

    @contextmanager
    def impatient(self):
        """Not to wait long, while the server hangs."""
        self._reader._options = self._impatient
        yield
        self._reader._options = self._options

    def restart(self):
        """Begin again from the checkpoint."""
        self._reader = PacemakerStreamReader(self._options)

    def run_available_now(self):
        self._reader.prepareForTriggerAvailableNow()

    def plan(self):
        self._start = self._end
        self._end = json.loads(json.dumps(self._reader.latestOffset(self._start, None)))
        return self._start != self._end

    def partitions(self):
        return self._reader.partitions(self._start, self._end)

    def read(self):
        rows = []
        for partition in self.partitions():
            for arrow in self._reader.read(partition):
                rows += [(row["kind"], row["path"]) for row in arrow.to_pylist()]
        return rows

    def read_aside(self, partitions=None):
        """Read what was planned, and return whose pulses were put aside."""
        found = []
        for partition in partitions or self.partitions():
            for arrow in self._reader.read(partition):
                for file in filter(None, arrow["file"].to_pylist()):
                    table = pa.ipc.open_stream(Path(file).read_bytes()).read_all()
                    found += filter(None, table["path"].to_pylist())
        return found


@pytest.mark.parametrize("then", ["goes on", "is down when the next is planned", "restarts"])
def test_changes_missed_by_a_failed_read_are_in_the_next_batch(pacemaker, then):
    driver = Driver(pacemaker)
    send(pacemaker, "gone", "still")
    for _ in range(3):
        driver.plan()
        driver.read()
    assert driver.read() == [("server", None)]
    with PacemakerClient(pacemaker.address) as client:
        client.delete_path("/workerbeats/gone")
    send(pacemaker, "new")
    driver.plan()
    pacemaker.suspend()
    with driver.impatient():
        assert driver.read() == [("server", None)]
        if then == "is down when the next is planned":
            driver.plan()
            assert driver.read() == [("server", None)]
    pacemaker.resume()
    if then == "restarts":
        driver.restart()
    driver.plan()
    kept = [("tombstone", path("gone")), ("pulse", path("new")), ("server", None)]
    assert driver.read() == kept


@pytest.mark.parametrize("parts", ["1", "3"])
def test_spilled_part_is_not_read_again(pacemaker, tmp_path, parts):
    driver = Driver(pacemaker, packed="true", aside=str(tmp_path), parts=parts)
    names = [f"t{number}" for number in range(9)]
    send(pacemaker, *names)
    driver.plan()
    first, *others = driver.partitions()
    found = driver.read_aside([first])
    send(pacemaker, *names)  # after the plan: who reads now has it
    found += driver.read_aside(others)
    assert sorted(found) == sorted(map(path, names))
    driver.plan()
    # The first part has been read before that, the others after it.
    assert sorted(driver.read_aside()) == sorted(
        path(name) for name in names if first.part is None or first.part.has(name)
    )
    driver.plan()
    assert driver.read_aside() == []

    send(pacemaker, "kept")
    driver.plan()
    pacemaker.suspend()
    with driver.impatient():
        assert driver.read_aside() == []
    pacemaker.resume()
    driver.plan()
    assert driver.read_aside() == [path("kept")]
    pacemaker.kill()
    pacemaker.start()
    send(pacemaker, "anew")
    driver.plan()
    assert driver.read_aside() == [path("anew")]


def test_repeated_batch_reads_what_the_server_holds_now(start_pacemaker):
    """Else who beats to a server that is new, or had nothing new, would be silent, and dead."""
    known, new = start_pacemaker(), start_pacemaker()

    def reader(*servers):
        addresses = ",".join(server.address for server in servers)
        given = {"servers": addresses, "timeoutSecs": PATIENT}
        return PacemakerStreamReader(Options.parse(given))

    planning = reader(known)
    start = planning.latestOffset(planning.initialOffset(), None)
    end = planning.latestOffset(start, None)
    send(known, "a")
    send(new, "b")
    repeating = reader(known, new)  # as after a crash
    batches = [
        batch
        for partition in repeating.partitions(start, end)
        for batch in repeating.read(partition)
    ]
    found = [row for batch in batches for row in batch.to_pylist()]
    assert {row["path"] for row in found if row["kind"] == "pulse"} == {path("a"), path("b")}
    assert all(row["health"]["reachable"] for row in found if row["kind"] == "server")


def test_a_checkpoint_of_before_goes_on_where_it_ends(pacemaker):
    """What is in it was written by hand once: it may not change with what writes it now."""
    send(pacemaker, "read", "again", "new")
    with PacemakerClient(pacemaker.address) as client:
        instance = client.server_info().instance
    there = pacemaker.address
    reader = PacemakerStreamReader(Options((Address.parse(there, 0),)))
    start = json.loads(
        f'{{"tick": ["reader", 41], "{there}": ["{instance}", 2],'
        f' "before {there}": ["{instance}", 1]}}'
    )
    end = reader.latestOffset(start, None)
    assert end == {
        "tick": ["reader", 42],
        there: [instance, 3],
        f"before {there}": [instance, 2],
    }
    (partition,) = reader.partitions(start, end)
    found = [row["path"] for arrow in reader.read(partition) for row in arrow.to_pylist()]
    assert found == [path("again"), path("new"), None]


def test_available_now_reads_what_failed_before_and_ends(pacemaker):
    driver = Driver(pacemaker)
    send(pacemaker, "one")
    driver.run_available_now()
    assert driver.plan()
    pacemaker.suspend()
    with driver.impatient():
        assert driver.read() == [("server", None)]
    pacemaker.resume()
    assert not driver.plan()
    driver.restart()
    driver.run_available_now()
    assert driver.plan()
    assert driver.read() == [("pulse", path("one")), ("server", None)]
    assert not driver.plan()


def test_stream_without_values_reads_java_pacemakers_values(pacemaker):
    send(pacemaker, "ours", details=b"0")
    java = JavaPacemaker()
    java.store = {path("java"): b"1"}
    with ScriptedPacemaker(java) as server:
        there = tuple(Address.parse(one.address, 0) for one in (server, pacemaker))
        reader = PacemakerStreamReader(Options(there, values=False))
        start = reader.initialOffset()
        partitions = reader.partitions(start, reader.latestOffset(start, None))
        rows = [row for p in partitions for arrow in reader.read(p) for row in arrow.to_pylist()]
    details = {row["path"]: row["details"] for row in rows if row["kind"] == "pulse"}
    assert details == {path("java"): b"1", path("ours"): b"0"}


@pytest.mark.parametrize("news", [True, False])
def test_file_missing_on_an_executor_is_not_the_servers_fault(start_pacemaker, tmp_path, news):
    jaas = tmp_path / "jaas.conf"
    jaas.write_text('PacemakerDigest { username="spark" password="pw-of-spark"; };\n')
    access = {"pacemaker.auth.method": "DIGEST", "java.security.auth.login.config": str(jaas)}
    server = start_pacemaker(conf=access)
    if news:
        send(server, "one")
    reader = PacemakerStreamReader(
        Options.parse({"servers": server.address, "timeoutSecs": "60", **access})
    )
    start = reader.initialOffset()
    (partition,) = reader.partitions(start, reader.latestOffset(start, None))
    assert partition.health.is_reachable
    jaas.unlink()
    with pytest.raises(ConfigError, match=str(jaas)):
        list(reader.read(partition))


def test_small_pages_are_merged_and_kept_before_a_failure(monkeypatch):
    monkeypatch.setattr(source, "_ROWS", 3)
    pages = [page_of("x", [change_of(path("t"), b"x", n, 1.0)], float(n)) for n in range(5)]

    def failing():
        yield from pages
        raise PacemakerUnavailableError("gone")

    read = source._together(failing())
    assert [len(next(read)), len(next(read))] == [3, 2]
    with pytest.raises(PacemakerUnavailableError):
        next(read)
    batch = rows.page_rows("a:1", pages)
    assert [at.timestamp() for at in batch["read_at"].to_pylist()] == [0.0, 1.0, 2.0, 3.0, 4.0]
