import os
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import pytest
from pyspark.errors import PySparkException

from stormkeeper.conf import Address
from stormkeeper.daemon import spark as engine
from stormkeeper.heartbeats.change_pages import Part
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.client_settings import of_texts
from stormkeeper.pacemaker.wire.messages import MessageType
from stormkeeper.pipeline.source import Options, PacemakerReader
from support.certificates import certificates, tls_conf
from support.heartbeats import path, send
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker
from support.storm_pacemaker import StormPacemaker
from support.waiting import until

pytestmark = [pytest.mark.spark]

#: Seconds within which every server that can answer does so.
PATIENT = "30"


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


def test_fresh_session_finds_the_format_unregistered(pacemaker, tmp_path):
    send(pacemaker, "a")
    quick = engine.settings({}, "")["spark.driver.defaultJavaOptions"]  # it starts in half the time
    program = f"""
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False)
        spark = spark.config("spark.driver.defaultJavaOptions", {quick!r}).getOrCreate()
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


def test_java_pacemaker_forces_values_for_all_servers(spark, pacemaker):
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


def test_stream_without_values_has_changes_and_tombstones(streaming, pacemaker):
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


@pytest.mark.slow
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
def test_hanging_servers_cost_one_timeout_and_lose_nothing(streaming, start_pacemaker):
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


@pytest.mark.slow
def test_java_pacemaker_that_wants_a_password_survives_us(
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


def test_executors_authenticate_and_use_tls_by_file_names(spark, start_pacemaker, tmp_path):
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
