import contextlib
import http.client
import re
import signal
import threading
import time
from collections import Counter

import pyarrow as pa
import pytest

from stormkeeper.conf import defaults
from stormkeeper.daemon.lifecycle import StopSignals
from stormkeeper.errors import ConfigError
from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.history.table_store import TableStore
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import batch, process, queries, table_updates, tables
from stormkeeper.pipeline.rows import page_rows, server_row
from support.heartbeats import bolt, change_of, heartbeat, page_of, path, spout
from support.pipelines import PipelineProcess
from support.processes import all_gone, name
from support.tables import past, present
from support.waiting import DEADLINE_SECS, until

LATE, TIMEOUT, TRIGGER, STATISTICS = 3, 6, 1, 2


class Pipeline(PipelineProcess):
    """``storm pipeline``, and what it has kept so far."""

    def __init__(self, directory, servers, **conf):
        given = {
            "storm.local.dir": str(directory),
            "pipeline.trigger.secs": TRIGGER,
            "pipeline.statistics.secs": STATISTICS,
            "pipeline.late.secs": LATE,
            "nimbus.task.timeout.secs": TIMEOUT,
            "spark.master": "local[2]",
            "spark.sql.session.timeZone": "Asia/Kolkata",  # which the tables do not show
            **conf,
        }
        super().__init__(directory / "tables", servers, given)

    def workers(self):
        """Return the rows of the liveness table by storm id."""
        rows = present(self.folder / "liveness", tables.WORKER_LIVENESS)
        return {row["storm_id"]: row for row in rows}

    def statistics(self, name=tables.WORKER_STATS):
        return present(self.folder / "statistics", name)

    def events(self):
        return present(self.folder / "liveness", tables.WORKER_EVENTS)

    def history(self, name=tables.WORKER_LIVENESS):
        """Return all rows of a table so far, by commit."""
        (folder,) = (self.folder / query for query, of in tables.NAMES.items() if name in of)
        return past(folder, name)

    def until(self, condition):
        """Wait until the rows of the liveness table fulfil the condition."""

        def check():
            assert self.is_running, self.lines
            return condition(self.workers())

        return until(check)


class Beating:
    """A worker that beats until the block ends."""

    def __init__(self, server, storm_id):
        self._client = PacemakerClient(server.address)
        self._storm_id = storm_id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join(DEADLINE_SECS)
        self._client.close()

    def _run(self):
        beats = 0
        while not self._stop.wait(0.5):
            beats += 1
            stats = bolt({("lines", "default"): 10 * beats}, beats)
            stats.component = "words"
            details = heartbeat(self._storm_id, {(1, 1): spout(beats), (2, 2): stats})
            self._client.send_pulse(path(self._storm_id), details)


def status_of(rows, storm_id):
    return rows[storm_id]["status"] if storm_id in rows else None


@pytest.mark.slow
@pytest.mark.spark
def test_the_tables_follow_workers_and_servers(start_pacemaker, tmp_path):
    a, b = start_pacemaker(), start_pacemaker()
    with Pipeline(tmp_path, [a.address, b.address]) as pipeline:
        pipeline.start()
        with PacemakerClient(a.address) as client:
            client.send_pulse(path("silent"), heartbeat("silent"))
            client.send_pulse(path("garbage"), b"garbage")
            client.send_pulse(path("killed"), heartbeat("killed"))
            client.send_pulse(path("done"), heartbeat("done", completed=True))
        with Beating(b, "steady-1-17"):
            assert pipeline.first_line() == f"pipeline writing to {pipeline.folder}"
            rows = pipeline.until(lambda rows: len(rows) == 5 and rows)
            (error,) = until(
                lambda: [
                    row["error"]
                    for row in pipeline.statistics(tables.WORKER_REPORTS)
                    if row["storm_id"] == "garbage"
                ]
            )
            assert "ClusterWorkerHeartbeat" in error
            (rejected,) = pipeline.statistics(tables.REJECTED)
            assert (rejected["path"], rejected["reason"]) == (path("garbage"), error)
            with PacemakerClient(a.address) as client:
                client.delete_path("/workerbeats/killed")
            pipeline.until(lambda rows: "killed" not in rows)
            # Nobody says so, but who says nothing is dead,
            # and who beats is alive,
            pipeline.until(
                lambda rows: (
                    (status_of(rows, "silent"), status_of(rows, "steady-1-17")) == ("dead", "alive")
                )
            )

            # and who had said that it was done is completed, though its pulse is not read before,
            pipeline.until(lambda rows: status_of(rows, "done") == "completed")

            # with the counts of its newest pulse.
            def words():
                return [
                    row
                    for row in pipeline.statistics()
                    if row["component"] == "words"
                    and row["window"] == ":all-time"
                    and row["executed"] > 10
                ]

            (row,) = until(words)
            assert row["topology"] == "steady"
            assert row["executed"] == 10 * row["emitted"]
            # A server that is gone is no evidence against its workers.
            with Beating(a, "orphan"):
                pipeline.until(lambda rows: status_of(rows, "orphan") == "alive")
            a.kill()
            rows = pipeline.until(lambda rows: rows["orphan"]["stale"] and rows)
            assert status_of(rows, "silent") == "dead"
            a.start()
            pipeline.until(lambda rows: status_of(rows, "orphan") == "dead")
            seen = pipeline.history()
        for row in (row for rows in seen for row in rows):
            expected = "dead" if row["age_secs"] > TIMEOUT else "late"
            expected = expected if row["age_secs"] > LATE else "alive"
            if row["storm_id"] == "done":
                assert row["status"] in ("alive", "completed"), row
            elif row["storm_id"] != "orphan" and not row["stale"]:
                assert row["status"] == expected, row
        said = Counter((e["storm_id"], e["event"], e["at"]) for e in pipeline.events())
        assert set(said.values()) == {1}
        # What the first batch found was no event; and who is slow may find one late before it went.
        found = {(name, event) for name, event, _ in said if name in ("killed", "orphan")}
        assert found - {("killed", "late"), ("killed", "dead")} == {
            ("killed", "gone"),
            ("orphan", "started"),
            ("orphan", "late"),
            ("orphan", "dead"),
        }
        assert not [name for name, event, _ in said if name == "done" and event != "completed"]
        before = pipeline.descendants()
        assert any("java" in name(child) for child in before)
        pipeline.signal(signal.SIGTERM)
        assert pipeline.ended() == 0
        assert pipeline.stops == [
            "stopping: batches that run are done first; asked by SIGTERM",
            "stopped",
        ]
        all_gone(before)
        of_a = [line for line in pipeline.lines if f"the Pacemaker {a.address} " in line]
        assert f"the Pacemaker {a.address} cannot be read: " in of_a[0]
        assert f"the Pacemaker {a.address} is read again" in of_a[-1]

        # What tasks put aside is taken; and what a killed one left goes at the next start.
        asides = [pipeline.folder / query / ".aside" for query in queries.NAMES]
        assert [list(aside.glob("*.arrow")) for aside in asides] == [[], []]
        left = [aside / "left.arrow" for aside in asides]
        for file in left:
            file.touch()

        # It goes on where it was, and when it is killed it leaves nothing running either.
        rows, number = pipeline.workers(), len(pipeline.history())
        assert len(pipeline.history(tables.SERVERS)) == number
        assert len(pipeline.history(tables.WORKER_REPORTS)) < number  # at their own interval
        pipeline.start()
        assert pipeline.first_line() == f"pipeline writing to {pipeline.folder}"
        until(lambda: len(pipeline.history()) > number)
        assert not any(file.exists() for file in left)
        assert pipeline.workers().keys() == rows.keys()
        assert status_of(pipeline.workers(), "silent") == "dead"
        assert said.keys() <= {(e["storm_id"], e["event"], e["at"]) for e in pipeline.events()}
        before = pipeline.descendants()
        (jvm,) = (one for one in before if one.name() == "java")
        # So has it this process.
        assert jvm.environ()["ARROW_DEFAULT_MEMORY_POOL"] in ("jemalloc", "system")
        pipeline.signal(signal.SIGKILL)
        assert pipeline.ended() == -signal.SIGKILL
        all_gone(before)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("pipeline.tables.dir", "pipeline.tables.dir cannot be "),
        pytest.param(
            "pipeline.checkpoint.dir",
            "pipeline.checkpoint.dir cannot be ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            None,
            "the pipeline's query failed: org.apache.hadoop.fs.FileAlreadyExistsException",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_failing_query_is_one_readable_line(pacemaker, tmp_path, key, error):
    blocked = tmp_path / ("file" if key else "tables/statistics/.checkpoint")
    blocked.parent.mkdir(exist_ok=True, parents=True)
    blocked.write_text("in the way")
    conf = {key: str(blocked / "here")} if key else {}
    with Pipeline(tmp_path, [pacemaker.address], **conf) as pipeline:
        pipeline.start()
        assert pipeline.first_line() == ""
        assert pipeline.ended() == 1
        line, *more = pipeline.errors
        assert (more, error in line, str(blocked) in line) == ([], True, True), line


def store_of(folder, query):
    return TableStore(folder, queries.table_specs(defaults(), query), interval_secs=1)


#: Has the process kill itself between the files of one batch of tables, once the named file is
#: there.
KILLED_BETWEEN_TABLES = """
import os, pathlib, re, signal, sys

before = None

def on_event(event, arguments):
    global before
    batch = event == "open" and re.search(r"/statistics/\\w+/(\\d+)-", str(arguments[0]))
    if not batch or "x" not in str(arguments[1]):
        return
    if batch[1] == before and pathlib.Path({armed!r}).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    before = batch[1]

sys.addaudithook(on_event)
"""


@pytest.mark.spark
@pytest.mark.slow
def test_tables_after_a_cut_off_batch_are_of_one_reading(pacemaker, tmp_path):
    def send(emitted):
        with PacemakerClient(pacemaker.address) as client:
            executors = {(1, 1): spout(emitted)}
            client.send_pulse(path("t"), heartbeat("t", executors, time_secs=emitted))

    def receipts(name, column):
        return {row[column] for row in pipeline.statistics(name)}

    armed = tmp_path / "armed"
    with Pipeline(tmp_path, [pacemaker.address]) as pipeline:
        send(1)
        pipeline.start(KILLED_BETWEEN_TABLES.format(armed=str(armed)))
        assert pipeline.first_line()
        send(2)  # what the batch that is cut off reads
        armed.touch()
        assert pipeline.ended() == -signal.SIGKILL
        left = len(pipeline.history(tables.WORKER_REPORTS))
        send(3)  # what it reads when it is repeated
        pipeline.start()
        assert pipeline.first_line()
        until(lambda: len(pipeline.history(tables.WORKER_REPORTS)) > left)
        until(lambda: {row["emitted"] for row in pipeline.statistics()} == {3})
        # What was cut off is in no log, and what was read instead is there once.
        assert receipts(tables.WORKER_REPORTS, "time_secs") == {3}
        assert receipts(tables.EXECUTOR_STATS, "time_secs") == {1, 3}
        read = [row["read_at"] for row in pipeline.statistics(tables.TOPOLOGY_STATS)]
        assert len(read) == 4 * len(set(read))  # a row per window


@pytest.mark.spark
@pytest.mark.parametrize("ahead", [-60, 60])
def test_a_reader_whose_clock_is_wrong_makes_nobody_dead(spark, tmp_path, ahead):
    store = store_of(tmp_path, tables.LIVENESS)
    keeper = table_updates.TableUpdater(store, table_updates.liveness_tables(LivenessLimits(9, 30)))
    for number in (1, 2):
        began = time.time()
        there = began + ahead
        page = page_of("x", [change_of(path("t"), heartbeat(), number, 1.0)], there)
        health = Coverage(there, None, Position("x", number), 1e6, 1e6, 1)
        down = Coverage(began, "gone")
        raw = [page_rows("a:1", [page]), server_row("a:1", health), server_row("b:1", down)]
        keeper(batch.pack(spark.createDataFrame(pa.Table.from_batches(raw))), number)
        (row,) = present(tmp_path, tables.WORKER_LIVENESS)
        assert (row["status"], row["age_secs"]) == ("alive", pytest.approx(1.0, abs=0.001))
        assert began < row["last_seen"].timestamp() + 1 < time.time()


@pytest.mark.spark
def test_published_micro_batch_is_not_repeated(spark, pacemaker, tmp_path):
    def read(emitted):
        with PacemakerClient(pacemaker.address) as client:
            client.send_pulse(path("t"), heartbeat("t", {(1, 1): spout(emitted)}))
        raw = spark.read.format("pacemaker").option("servers", pacemaker.address)
        return batch.pack(raw.option("timeoutSecs", 30).load())

    def keeper():
        advance = table_updates.statistics_tables(LivenessLimits(9, 30), period_secs=3)
        return table_updates.TableUpdater(store_of(tmp_path, tables.STATISTICS), advance)

    keeper()(read(1), 1)
    before = (tmp_path / "manifest.json").read_bytes()
    keeper()(read(2), 1)
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert {row["emitted"] for row in present(tmp_path, tables.TOPOLOGY_STATS)} == {1}


#: Has the process say when it starts Spark, and wait for whatever a server has to say.
PATIENT = """
from stormkeeper.daemon import spark
from stormkeeper.pipeline import process, queries

options, session = queries.source_options, spark.session

def start_session(*given, **more):
    process.log.info("Spark is started")
    return session(*given, **more)

spark.session = start_session
queries.source_options = lambda *given: {**options(*given), "timeoutSecs": "30"}
"""


@pytest.mark.slow
@pytest.mark.spark
def test_a_pipeline_that_sees_nothing_says_so_and_why(start_pacemaker, tmp_path):
    def jaas(name, password):
        file = tmp_path / name
        file.write_text(f'PacemakerDigest {{ username="storm" password="{password}"; }};\n')
        return {
            "pacemaker.auth.method": "DIGEST",
            "java.security.auth.login.config": str(file),
        }

    def connect():
        return http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECS)

    def readyz():
        with contextlib.closing(connect()) as connection:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def servers():
        rows = present(pipeline.folder / "liveness", tables.SERVERS)
        return {row["server"]: row for row in rows}

    def said():
        return [line for line in pipeline.lines if " stormkeeper.pipeline." in line]

    down, refusing = start_pacemaker(), start_pacemaker(conf=jaas("server.jaas", "right"))
    down.kill()
    conf = {**jaas("pipeline.jaas", "wrong"), "pipeline.metrics.port": 0}
    with Pipeline(tmp_path, [down.address, refusing.address], **conf) as pipeline:
        pipeline.start(PATIENT)
        log = until(lambda: len(said()) >= 5 and said())
        port = int(re.search(r"metrics on http://127.0.0.1:(\d+)/metrics", log[0])[1])
        assert (
            f"WARNING stormkeeper.pipeline.status the Pacemaker {down.address} cannot be" in log[1]
        )
        assert "connection refused" in log[1]
        assert f"the Pacemaker {refusing.address} cannot be read: " in log[2]
        assert "password" in log[2]
        assert "no Pacemaker can be read" in log[3]
        assert "Spark is started" in log[4]
        status, text = readyz()
        assert (status, text.splitlines()[0]) == (503, "no Pacemaker can be read")
        assert f"{down.address} " in text
        assert f"{refusing.address} " in text
        # Nor do the tables of its batches look like those of a cluster without workers.
        assert pipeline.first_line()
        assert pipeline.workers() == {}
        found = servers()
        assert {row["reachable"] for row in found.values()} == {False}
        assert "connection refused" in found[down.address]["reason"]
        assert readyz()[0] == 503
        # What was said is not said again, but for what changes.
        until(lambda: len(pipeline.history()) > 3)
        assert said() == log
        assert [line for line in pipeline.lines if " INFO stormkeeper.pacemaker." in line] == []
        pipeline.signal(signal.SIGTERM)
        assert pipeline.ended() == 0


def test_without_a_pacemaker_there_is_nothing_to_read(tmp_path):
    with Pipeline(tmp_path, []) as pipeline:
        pipeline.start()
        assert pipeline.first_line() == ""
        assert pipeline.ended() == 2
        assert "pacemaker.servers" in pipeline.errors[-1]


@pytest.mark.parametrize("key", ["pipeline.tables.dir", "pipeline.checkpoint.dir"])
def test_a_url_is_refused_before_anything_is_done(key):
    conf = defaults().with_values({"pacemaker.servers": ["127.0.0.1:1"], key: "s3a://bucket/t"})
    with StopSignals() as stop, pytest.raises(ConfigError, match=f"^{key} is a folder"):
        process.serve(conf, stop)


def test_statistics_interval_defaults_to_that_of_liveness():
    conf = defaults().with_values({"pipeline.trigger.secs": 2})
    assert [queries.interval_secs(conf, name) for name in queries.NAMES] == [2, 15]
    conf = conf.with_values({"pipeline.statistics.secs": 0})
    assert [queries.interval_secs(conf, name) for name in queries.NAMES] == [2, 2]


def test_ages_are_those_of_the_configuration():
    conf = defaults()
    assert queries.limits(conf) == LivenessLimits(late_secs=9.0, timeout_secs=30.0)
    conf = conf.with_values({"task.heartbeat.frequency.secs": 1, "nimbus.task.timeout.secs": 20})
    assert queries.limits(conf) == LivenessLimits(late_secs=3.0, timeout_secs=20.0)
    assert queries.limits(conf.with_values({"pipeline.late.secs": 7})).late_secs == 7
