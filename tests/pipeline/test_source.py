import json
import os
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from stormkeeper.conf import Address
from stormkeeper.errors import ConfigError, PacemakerUnavailableError
from stormkeeper.heartbeats.following import Part
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.settings import of_texts
from stormkeeper.pacemaker.wire import MessageType
from stormkeeper.pipeline import rows, source
from stormkeeper.pipeline.options import Options
from stormkeeper.pipeline.source import PacemakerReader, PacemakerStreamReader
from support.certificates import certificates, tls_conf
from support.heartbeats import change_of, page_of, path
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker
from support.storm_pacemaker import StormPacemaker
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: Seconds within which every server that can answer does so; and so few that a test can wait for
#: one that cannot, in which others may be too slow as well.
PATIENT, IMPATIENT = "30", "0.5"


def send(server, *names, details=b"x"):
    with PacemakerClient(server.address) as client:
        for name in names:
            client.send_pulse(path(name), details)


def names_of(rows, kind="pulse"):
    return sorted(row.path.split("/")[2] for row in rows if row.kind == kind)


def servers_of(rows):
    return {row.server: row for row in rows if row.kind == "server"}


def unreachable(rows):
    return {name for name, row in servers_of(rows).items() if not row.health.reachable}


class Stream:
    """A running stream of the source, and its batches as they come."""

    def __init__(self, writer, batches):
        self._writer = writer
        self.query = writer.start()
        self.batches = batches
        self._seen = 0

    def until(self, condition):
        """Wait for a batch, after those seen here, that fulfils the condition; return its rows."""

        def found():
            if not self.query.isActive:
                self._start_again()
            while self._seen < len(self.batches):
                self._seen += 1
                if condition(self.batches[self._seen - 1]):
                    return self.batches[self._seen - 1]
            return None

        return until(found)

    def until_it_ends(self):
        """Wait until there is nothing more to do for it."""

        def ended():
            if self.query.isActive:
                return False
            if self.query.exception() is None:
                return True
            self._start_again()
            return False

        until(ended)

    def _start_again(self):
        # Spark waits 10 s for its Python workers to start, and no longer.
        assert "failed to connect back" in str(self.query.exception())
        self.query = self._writer.start()

    def first(self):
        """Wait for the next batch, whatever it has; return its rows."""
        return self.until(lambda _: True)


def _between_batches(query):
    """Wait a little for the running batch: Spark cuts it off with many words."""
    deadline = time.monotonic() + 5
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.fixture
def streaming(spark, tmp_path):
    """Starts streams with one checkpoint; a stream is stopped as its block ends."""

    @contextmanager
    def start(*servers, trigger=None, **options):
        batches = []
        reader = spark.readStream.format("pacemaker")
        reader = reader.option("servers", ",".join(server.address for server in servers))
        writer = (
            reader.options(**{"timeoutSecs": PATIENT} | options)
            .load()
            .writeStream.foreachBatch(lambda df, _: batches.append(df.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger or {"processingTime": "500 milliseconds"})
        )
        stream = Stream(writer, batches)
        try:
            yield stream
        finally:
            _between_batches(stream.query)
            stream.query.stop()

    return start


def batch(spark, *addresses, **options):
    reader = spark.read.format("pacemaker").option("servers", ",".join(addresses))
    return reader.options(**{"timeoutSecs": PATIENT} | options).load()


def test_the_format_is_there_in_a_fresh_session_without_registration(pacemaker, tmp_path):
    send(pacemaker, "a")
    program = f"""
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False)
        spark = spark.getOrCreate()
        reader = spark.read.format("pacemaker").option("timeoutSecs", {PATIENT})
        df = reader.option("servers", "{pacemaker.address}").load()
        print([(row.kind, row.path) for row in df.collect()])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([("pulse", path("a")), ("server", None)])


def test_a_batch_is_what_the_servers_hold(spark, start_pacemaker):
    a, b = start_pacemaker(), start_pacemaker()
    send(a, "one", "two", "gone")
    send(b, "two", "three")
    with PacemakerClient(a.address) as client:
        client.delete_path("/workerbeats/gone")
    rows = batch(spark, a.address, b.address, pageSize="1").collect()
    assert names_of(rows) == ["one", "three", "two", "two"]
    assert names_of(rows, "tombstone") == []
    assert servers_of(rows).keys() == {a.address, b.address}
    assert all(row.health.reachable for row in servers_of(rows).values())
    for row in rows:
        if row.kind == "pulse":
            received = row.read_at.timestamp() - row.age_secs
            assert row.received_at.timestamp() == pytest.approx(received, abs=1e-3)
            assert bytes(row.details) == b"x"


def test_load_takes_the_path(spark, pacemaker):
    send(pacemaker, "one", "two")
    reader = spark.read.format("pacemaker").option("servers", pacemaker.address)
    reader = reader.option("timeoutSecs", PATIENT)
    assert names_of(reader.load("/workerbeats/two").collect()) == ["two"]


def test_an_empty_server_has_its_row_alone(spark, pacemaker):
    (row,) = batch(spark, pacemaker.address).collect()
    assert (row.kind, row.server, row.health["keys"]) == ("server", pacemaker.address, 0)


def test_parts_of_a_server_are_partitions_of_their_own(spark, start_pacemaker):
    a, java = start_pacemaker(), JavaPacemaker()
    names = [f"t-{number}" for number in range(9)]
    send(a, *names)
    java.store = {path("of-java"): b"x"}
    with ScriptedPacemaker(java) as server:
        rows = batch(spark, a.address, server.address, parts="3").collect()
    assert names_of(rows) == ["of-java", *names]
    assert [row.server for row in rows if row.kind == "server"].count(a.address) == 3
    assert unreachable(rows) == set()
    partitions = PacemakerReader(Options.parse({"servers": a.address, "parts": "3"})).partitions()
    assert [partition.part for partition in partitions] == [Part(n, 3) for n in range(3)]


def test_small_pages_are_put_together_and_what_was_read_before_a_failure_counts(monkeypatch):
    monkeypatch.setattr(source, "_ROWS", 3)
    pages = [page_of("x", [change_of(path("t"), b"x", n, 1.0)], float(n)) for n in range(5)]

    def failing():
        yield from pages
        raise PacemakerUnavailableError("gone")

    read = source._together(failing())
    assert [len(next(read)), len(next(read))] == [3, 2]
    with pytest.raises(PacemakerUnavailableError):
        next(read)
    batch = rows.of_pages("a:1", pages)
    assert [at.timestamp() for at in batch["read_at"].to_pylist()] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_server_that_is_down_or_hangs_does_not_hide_the_others(spark, start_pacemaker):
    up, hanging, down = start_pacemaker(), start_pacemaker(), start_pacemaker()
    send(up, "one")
    hanging.suspend()
    down.kill()
    rows = batch(spark, down.address, up.address, hanging.address, timeoutSecs="5").collect()
    assert names_of(rows) == ["one"]
    servers = servers_of(rows)
    assert servers[up.address].health.reachable
    assert not servers[hanging.address].health.reachable
    assert not servers[down.address].health.reachable
    assert "refused" in servers[down.address].health.error


def test_a_java_pacemaker_is_read_by_its_own_means(spark):
    java = JavaPacemaker()
    java.store = {path("one"): b"1", path("two"): b"2"}
    with ScriptedPacemaker(java) as server:
        rows = batch(spark, server.address).collect()
    assert names_of(rows) == ["one", "two"]
    assert {(row.instance, row.revision, row.received_at) for row in rows} == {(None, None, None)}
    assert [row.health.reachable for row in rows if row.kind == "server"] == [True]


def test_without_values_a_batch_has_ages_and_revisions(spark, pacemaker):
    send(pacemaker, "one", "two")
    rows = batch(spark, pacemaker.address, values="false").collect()
    pulses = [row for row in rows if row.kind == "pulse"]
    assert names_of(rows) == ["one", "two"]
    assert {row.details for row in pulses} == {None}
    assert sorted(row.revision for row in pulses) == [1, 2]
    assert all(row.received_at <= row.read_at for row in pulses)


def test_without_values_a_java_pacemaker_has_them_and_all_beside_it(spark, pacemaker):
    send(pacemaker, "ours", details=b"0")
    java = JavaPacemaker()
    java.store = {path("one"): b"1", path("two"): b"2"}
    with ScriptedPacemaker(java) as server:
        rows = batch(spark, server.address, pacemaker.address, values="false").collect()
    details = {row.path: bytes(row.details) for row in rows if row.kind == "pulse"}
    assert details == {path("ours"): b"0", **java.store}


@pytest.mark.parametrize("method", ["read", "readStream"])
def test_a_missing_option_is_named(spark, method):
    with pytest.raises(PySparkException, match="option 'servers'"):
        getattr(spark, method).format("pacemaker").load()


def test_another_schema_is_refused(spark, pacemaker):
    reader = spark.read.format("pacemaker").option("servers", pacemaker.address)
    with pytest.raises(PySparkException, match="has its own schema"):
        reader.schema("path STRING").load().collect()


def test_a_stream_has_what_is_new_and_a_batch_at_every_trigger(streaming, start_pacemaker):
    a, b = start_pacemaker(), start_pacemaker()
    send(a, "one")
    send(b, "two")
    with streaming(a, b) as stream:
        assert names_of(stream.first()) == ["one", "two"]
        stream.until(lambda rows: not names_of(rows))  # silence makes batches as well,
        silent = stream.until(lambda rows: not names_of(rows))
        assert servers_of(silent).keys() == {a.address, b.address}  # with a row for every server
        send(b, "three")
        news = stream.until(lambda rows: names_of(rows) == ["three"])
        assert servers_of(news).keys() == {a.address, b.address}
        with PacemakerClient(a.address) as client:
            client.delete_path("/workerbeats/one")
        stream.until(lambda rows: names_of(rows, "tombstone") == ["one"])


def test_a_stream_without_values_has_what_is_new_and_what_is_gone(streaming, pacemaker):
    send(pacemaker, "one")
    with streaming(pacemaker, values="false") as stream:
        first = stream.until(names_of)
        assert {row.details for row in first} == {None}
        with PacemakerClient(pacemaker.address) as client:
            client.delete_path("/workerbeats/one")
        send(pacemaker, "two")
        both = stream.until(lambda rows: names_of(rows) and names_of(rows, "tombstone"))
        assert (names_of(both), names_of(both, "tombstone")) == (["two"], ["one"])


def test_a_stream_goes_on_where_its_checkpoint_ends(streaming, start_pacemaker):
    a, b = start_pacemaker(), start_pacemaker()
    send(a, "one")
    with streaming(a) as stream:
        assert names_of(stream.first()) == ["one"]
    send(a, "two")
    send(b, "three")
    # A batch that the stop cut off comes first, as it was planned.
    with streaming(a, b) as stream:  # and a server that it did not know comes in as a whole
        stream.until(lambda rows: names_of(rows)[-2:] == ["three", "two"])
    with streaming(b) as stream:
        assert servers_of(stream.first()).keys() == {b.address}


def test_a_restarted_server_is_read_from_its_beginning(streaming, start_pacemaker):
    a, b = start_pacemaker(), start_pacemaker()
    send(a, "one", "two", "three")
    with streaming(a, b) as stream:
        first = servers_of(stream.first())[a.address]
        a.kill()
        down = stream.until(lambda rows: not servers_of(rows)[a.address].health.reachable)
        assert servers_of(down)[b.address].health.reachable
        a.start()
        send(a, "one")
        back = stream.until(lambda rows: names_of(rows) == ["one"])
        again = servers_of(back)[a.address]
        assert again.instance not in (None, first.instance)
        assert again.revision == 1


def test_a_new_instance_is_a_reset(streaming, pacemaker):
    send(pacemaker, "one")
    with streaming(pacemaker) as stream:
        assert not servers_of(stream.first())[pacemaker.address].health.reset
    pacemaker.restart()
    send(pacemaker, "two")
    with streaming(pacemaker) as stream:
        # (A batch that the stop cut off may come before, in which there was nothing to read.)
        news = stream.until(names_of)
        assert names_of(news) == ["two"]
        assert servers_of(news)[pacemaker.address].health.reset
        stream.until(lambda rows: not servers_of(rows)[pacemaker.address].health.reset)


@pytest.mark.slow
def test_servers_that_hang_cost_one_wait_together_and_lose_nothing(streaming, start_pacemaker):
    hanging, b = [start_pacemaker() for _ in range(3)], start_pacemaker()
    wait_secs = 3
    send(hanging[0], "one")
    with streaming(*hanging, b, timeoutSecs=str(wait_secs)) as stream:
        stream.first()
        for server in hanging:
            server.suspend()
        addresses = {server.address for server in hanging}
        stream.until(lambda rows: addresses == unreachable(rows))
        send(b, "two")
        stream.until(lambda rows: "two" in names_of(rows))
        # The batch before that one was planned with them hanging, too.
        assert stream.query.lastProgress["durationMs"]["latestOffset"] < 3 * wait_secs * 1000
        for server in hanging:
            server.resume()
        send(hanging[0], "four")
        stream.until(lambda rows: "four" in names_of(rows))


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
def test_what_a_server_kept_from_a_batch_by_failing_under_it_is_in_the_next(pacemaker, then):
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
def test_what_was_read_of_a_part_that_is_put_aside_is_not_read_again(pacemaker, tmp_path, parts):
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


def test_what_a_server_vouches_for_is_read_in_a_batch_that_is_repeated(start_pacemaker):
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


def test_a_run_of_available_now_has_what_failed_in_the_one_before_and_ends(pacemaker):
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


def test_available_now_reads_what_there_is_and_ends(streaming, start_pacemaker):
    a, down = start_pacemaker(), start_pacemaker()
    down.kill()
    send(a, "one")
    for expected in (["one"], ["one"], [], ["two"]):
        if "two" in expected:
            send(a, "two")
        with streaming(a, down, trigger={"availableNow": True}) as stream:
            stream.until_it_ends()
            (rows,) = stream.batches
            assert names_of(rows) == expected
            assert servers_of(rows).keys() == {a.address, down.address}


def test_a_java_pacemaker_is_read_whole_at_every_trigger(streaming):
    java = JavaPacemaker()
    java.store = {path("one"): b"1"}
    with ScriptedPacemaker(java) as server, streaming(server) as stream:
        stream.until(lambda rows: names_of(rows) == ["one"])
        java.store = {**java.store, path("two"): b"2"}
        stream.until(lambda rows: names_of(rows) == ["one", "two"])
        stream.until(lambda rows: names_of(rows) == ["one", "two"])


def test_a_stream_without_values_has_those_that_alone_tell_what_is_new(pacemaker):
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


def test_neither_driver_nor_executors_end_a_java_pacemaker_that_wants_a_password(
    spark, streaming, start_pacemaker, tmp_path
):
    jaas = tmp_path / "jaas.conf"
    jaas.write_text('PacemakerDigest { username="spark" password="pw-of-spark"; };\n')
    access = {"pacemaker.auth.method": "DIGEST", "java.security.auth.login.config": str(jaas)}
    ours = start_pacemaker(conf=access)
    send(ours, "one")
    with StormPacemaker("DIGEST", jaas) as java:
        java.store.pulses[path("two")] = b"2"
        java.store.pulses[path("odd(")] = b"3"
        rows = batch(spark, ours.address, java.address, **access).collect()
        assert names_of(rows) == ["one", "two"]
        assert all(row.health.reachable for row in servers_of(rows).values())
        with streaming(ours, java, **access) as stream:
            stream.until(lambda rows: names_of(rows) == ["one", "two"])
            java.store.pulses[path("three")] = b"3"
            stream.until(lambda rows: names_of(rows) == ["three", "two"])
        assert java.ended_by is None
        assert java.store.asked[MessageType.GET_PULSE]


def test_executors_authenticate_and_speak_tls_by_the_names_of_files(
    spark, start_pacemaker, tmp_path
):
    jaas = tmp_path / "jaas.conf"
    jaas.write_text('PacemakerDigest { username="spark" password="pw-of-spark"; };\n')
    access = {
        "pacemaker.auth.method": "DIGEST",
        "java.security.auth.login.config": str(jaas),
        "pacemaker.tls.enable": "true",
        "pacemaker.tls.ca.file": str(certificates().server.authority),
    }
    conf = {**tls_conf(), **access, "pacemaker.tls.enable": True}
    del conf["pacemaker.tls.ca.file"]
    server = start_pacemaker(conf=conf)
    settings = of_texts({**access, "pacemaker.auth.method": "NONE"})
    with settings.client(Address(server.host, server.port)) as worker:
        worker.send_pulse(path("wc-1-17"), b"x")
    frame = batch(spark, server.address, **access)
    rows = frame.collect()
    assert names_of(rows) == ["wc-1-17"]
    plan = frame._jdf.queryExecution().toString()
    assert "pw-of-spark" not in plan
    (row,) = batch(spark, server.address).collect()
    assert not row.health.reachable
    assert "pacemaker.tls.enable" in row.health.error
    method = {**access, "pacemaker.auth.method": "NONE"}
    (row,) = batch(spark, server.address, **method).collect()
    assert "set pacemaker.auth.method to" in row.health.error
    assert "-c" not in row.health.error
    absent = {**access, "java.security.auth.login.config": "/nowhere/jaas.conf"}
    with pytest.raises(PySparkException, match=r"/nowhere/jaas\.conf"):
        batch(spark, server.address, **absent).collect()


@pytest.mark.parametrize("news", [True, False])
def test_a_file_that_an_executor_alone_lacks_is_no_fault_of_the_servers(
    start_pacemaker, tmp_path, news
):
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
