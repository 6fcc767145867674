"""`storm local` as a user runs it: real processes, killed for real, and a report that is true."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from stormkeeper.pipeline import tables
from support.processes import all_gone, family, goes_on, name
from support.tables import past, present
from support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
STORM = Path(sys.executable).with_name("storm")
WORD_COUNT = ROOT / "examples" / "word_count.py"
#: Two Spark sessions, one after the other, on a machine that has much else to do.
START_SECS = 300
#: As configured by default: of heartbeats, and from which silence on a worker is dead.
BEAT_SECS = 3
TIMEOUT_SECS = 30

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper]


class Run:
    """A `storm local` in the background; what it prints is gathered line by line."""

    def __init__(self, *args, cwd):
        self.lines = []
        self.process = subprocess.Popen(
            [STORM, "local", *map(str, args)],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"TMPDIR": str(cwd)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def wait_for(self, pattern, secs=START_SECS):
        deadline = time.monotonic() + secs
        while True:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            assert self.process.poll() is None, "ended early:\n" + self.text()
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.text()}"
            time.sleep(0.05)

    def end(self, secs=120):
        code = self.process.wait(timeout=secs)
        self._reader.join(timeout=60)
        return code

    def text(self):
        return "\n".join(self.lines)


@pytest.fixture
def local(tmp_path):
    runs = []

    def start(*args):
        run = Run(*args, cwd=tmp_path)
        runs.append(run)
        return run

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            try:
                run.process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                run.process.kill()


@pytest.fixture
def text(tmp_path):
    """A folder of text, and what plain Python counts in it."""
    folder = tmp_path / "text"
    folder.mkdir()
    # Spark passes over files whose names begin with an underscore.
    stdlib = sorted(Path(os.__file__).parent.glob("[a-z]*.py"))[:40]
    lines, words = 0, Counter()
    for source in stdlib:
        content = source.read_text(errors="ignore").replace("\r", "")
        (folder / source.with_suffix(".txt").name).write_text(content)
        # Spark's lines end at \n alone, and a file's last newline begins no further line.
        for line in content.removesuffix("\n").split("\n"):
            lines += 1
            words.update(word for word in re.split(r"\W+", line, flags=re.ASCII) if word)
    return folder, lines, words


@pytest.mark.slow
def test_report_tells_the_truth_and_nothing_is_left(local, text, tmp_path):
    folder, lines, words = text
    output, report = tmp_path / "totals.json", tmp_path / "r.json"
    before = set(tmp_path.iterdir()) | {output, report}
    run = local(
        WORD_COUNT, "--report", report,
        "-c", f"input={folder}", "-c", f"output={output}", "-c", "files.per.trigger=5",
    )  # fmt: skip
    run.wait_for(r"in another shell: \S+ heartbeats list")
    began = time.monotonic()
    processes = family(run.process.pid)
    servers = run.wait_for(r"pacemaker\.servers=(\[.*\])'").group(1)
    listed = subprocess.run(
        [STORM, "heartbeats", "list", "/workerbeats", "-c", f"pacemaker.servers={servers}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    assert re.fullmatch(r"word-count-1-\d+\n", listed.stdout)
    look = run.wait_for(r"in another shell: (\S+ state tree .*)").group(1)
    tree = subprocess.run(
        shlex.split(look), capture_output=True, text=True, timeout=60, check=False
    )
    assert tree.returncode == 0, tree.stderr
    assert listed.stdout.strip() in tree.stdout
    run.wait_for(r"waiting: Spark is starting in the worker")
    run.wait_for(r"  \| batch 0: ")
    # What would keep Spark from the cores until then starts only now.
    run.wait_for(r"waiting: the heartbeat pipeline is starting")
    run.wait_for(r"is alive in the liveness table")
    until(lambda: json.loads(output.read_text()) == dict(words), START_SECS)
    directory = Path(run.wait_for(r"pipeline writes its tables to (\S+)").group(1))
    # Four windows of at least four counts; the statistics' first batch may be slow to come.
    until(lambda: len(present(directory / "statistics", tables.WORKER_STATS)) >= 4 * 4, START_SECS)
    processes += family(run.process.pid)
    ran_secs = time.monotonic() - began
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0, run.text()

    seen = json.loads(report.read_text())
    counts = seen["components"]
    assert json.loads(output.read_text()) == dict(words)
    assert counts["lines"]["emitted"] == lines
    assert counts["words"] == {"emitted": words.total(), "executed": lines, "partial": False}
    assert counts["counts"]["executed"] == words.total()
    (worker,) = seen["workers"]
    assert worker["max_gap_secs"] < TIMEOUT_SECS
    assert worker["pulses"] >= ran_secs // BEAT_SECS - 3
    assert worker["topology"] == listed.stdout.strip()
    assert sum(p["pulses_received"] for p in seen["pacemakers"]) == worker["pulses"]
    assert sum(p["keys"] for p in seen["pacemakers"]) == 1
    assert seen["tables"]["worker_liveness"] == 1
    assert seen["tables"]["worker_stats"] >= 4 * 4
    assert seen["processes_left"] == 0
    assert not any(map(goes_on, processes))
    assert set(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_run_survives_kills_and_restarts_a_killed_worker(local, text, tmp_path):
    folder, _, _ = text
    report = tmp_path / "r.json"
    run = local(
        WORD_COUNT, "--report", report, "-c", f"input={folder}",
        "-c", "pacemaker.servers=127.0.0.1:1",  # which a local cluster passes over
    )  # fmt: skip
    directory = Path(run.wait_for(r"pipeline writes its tables to (\S+)").group(1))
    alive_row = row_that(directory, lambda row: row["status"] == "alive")
    used = alive_row["server"]
    assert "-c pacemaker.servers: a local cluster has its own" in run.text()
    (other,) = {run.wait_for(rf"pacemaker {n} listens on (\S+)").group(1) for n in (1, 2)} - {used}
    pid = int(run.wait_for(rf"pacemaker \d listens on {used} \(process (\d+)\)").group(1))

    os.kill(pid, signal.SIGKILL)
    row_that(directory, lambda row: (row["server"], row["status"]) == (other, "alive"))
    assert "dead" not in {row["status"] for row in history(directory)}
    worker = int(run.wait_for(r"beats \(process (\d+)\)").group(1))
    orphans = family(worker)
    os.kill(worker, signal.SIGKILL)
    run.wait_for(r"supervisor \d: slot \d+: the worker .* crashed \(1 in a row\): .* by SIGKILL")
    until(lambda: any(pid != worker for pid in beating(run)), START_SECS)
    orphans += [process for pid in beating(run) if pid != worker for process in family(pid)]
    os.kill(int(run.wait_for(r"nimbus 1 listens on .* \(process (\d+)\)").group(1)), signal.SIGKILL)

    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0, run.text()
    seen = json.loads(report.read_text())
    assert seen["processes_left"] == 0
    assert {p["address"] for p in seen["pacemakers"]} == {used, other}
    assert all(p["pulses_received"] > 0 for p in seen["pacemakers"])
    assert [w["topology"] for w in seen["workers"]] == [
        run.wait_for(r"worker (\S+) beats").group(1)
    ]
    assert not any(map(goes_on, orphans))
    assert {path.name for path in tmp_path.iterdir()} == {"text", "r.json"}
    assert "ended by SIGKILL" in run.text()


def beating(run):
    """Return the processes of the workers that have told of themselves."""
    found = (re.search(r"^worker \S+ beats \(process (\d+)\)", line) for line in list(run.lines))
    return [int(match.group(1)) for match in found if match]


def row_that(directory, wanted):
    """Wait until the liveness table's only row is as `wanted`, and return it."""

    def row():
        rows = present(directory / "liveness", tables.WORKER_LIVENESS)
        return rows[0] if len(rows) == 1 and wanted(rows[0]) else None

    return until(row, deadline_secs=START_SECS)


def history(directory):
    """Return the rows of the liveness table of every batch so far."""
    return [row for rows in past(directory / "liveness", tables.WORKER_LIVENESS) for row in rows]


FINITE = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
lines = spark.readStream.text({folder!r})
query = lines.writeStream.queryName("copied").format("noop").trigger(availableNow=True).start()
query.awaitTermination()
"""


@pytest.mark.slow
def test_a_job_that_ends_by_itself_is_completed(local, text, tmp_path):
    folder, lines, _ = text
    script, report, kept = (tmp_path / name for name in ("finite.py", "r.json", "kept"))
    script.write_text(FINITE.format(folder=str(folder)))
    run = local(script, "--report", report, "-c", f"pipeline.tables.dir={kept}")
    assert run.end(300) == 0, run.text()
    assert re.search(r"finite-1-\d+ at 670[01] is completed: its queries have ended", run.text())
    assert " is late in " not in run.text()
    seen = json.loads(report.read_text())
    (worker,) = seen["workers"]
    assert worker["completed"]
    copied = {"emitted": lines, "executed": 0, "partial": False}
    # A supervisor's worker runs a plain script as one component.
    assert seen["components"] == {"finite": copied}
    rows = present(kept / "liveness", tables.WORKER_LIVENESS)
    assert [row["status"] for row in rows] == ["completed"]


@pytest.mark.slow
def test_job_without_pipeline_is_stopped_after_its_time(local, text, tmp_path):
    folder, _, _ = text
    report = tmp_path / "r.json"
    run = local(
        WORD_COUNT, "-c", f"input={folder}", "--no-pipeline", "--seconds", 2, "--report", report
    )
    run.wait_for(r"waiting: Spark is starting in the worker")
    assert run.end() == 0, run.text()
    assert any(" ago at " in line for line in run.lines[run.lines.index("stopping") :]), run.text()
    assert "heartbeat pipeline" not in run.text()
    assert "pipeline writes" not in run.text()
    seen = json.loads(report.read_text())
    assert not seen["workers"][0]["completed"]
    assert set(seen["tables"].values()) == {0}


@pytest.mark.slow
def test_nothing_is_left_of_one_that_is_killed_while_spark_runs(local, text, tmp_path):
    folder, _, _ = text
    run = local(WORD_COUNT, "-c", f"input={folder}", "--no-pipeline")
    run.wait_for(r"  \| batch 0: ")
    processes = family(run.process.pid)
    assert any(name(process) == "java" for process in processes)
    os.kill(run.process.pid, signal.SIGKILL)
    all_gone(processes)
    until(lambda: not list(tmp_path.glob("stormkeeper-local-*")))


@pytest.mark.slow
def test_script_that_exits_has_failed_and_its_output_is_shown(local, tmp_path):
    script = tmp_path / "exits.py"
    text = "import os\nprint('rows 5 of', os.getpid(), flush=True)\nos._exit(7)\nrows.writeStream\n"
    script.write_text(text)
    run = local(script, "--no-pipeline")
    assert run.end() == 1
    (crash,) = [line for line in run.lines if " crashed (1 in a row): " in line]
    assert "it ended with exit code 7" in crash
    # Its supervisor may be quicker with the next start: each start is shown once.
    printed = [line for line in run.lines if line.startswith("  | rows 5 of ")]
    assert len(printed) == len(set(printed)) > 0
    assert not list(tmp_path.glob("stormkeeper-local-*"))


def test_a_key_that_nobody_knows_is_an_error_if_so_wanted(local, tmp_path):
    script = tmp_path / "job.py"
    script.write_text("raise RuntimeError\nrows.writeStream\n")
    run = local("--strict", script, "-c", "topology.worker.memory.mbs=1", "--no-pipeline")
    assert run.end() == 2
    assert any("unknown key topology.worker.memory.mbs" in line for line in run.lines)
    assert not list(tmp_path.glob("stormkeeper-local-*"))


def test_script_that_does_not_exist_is_a_usage_error(local, tmp_path):
    run = local(tmp_path / "nothing.py")
    assert run.end() == 2
    assert "does not exist" in run.text()
    assert "Traceback" not in run.text()


def test_failed_topology_shows_its_error_once_and_first(local, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text(
        "import logging\n"
        "logging.getLogger('my.job').warning('3 rows are late')\n"
        "print('rows 5')\n"
        "raise RuntimeError('the moon is in the way')\n"
        "rows.writeStream\n"
    )
    run = local(script)
    assert run.end() == 1
    assert "worker: my.job: 3 rows are late" in run.lines
    assert [line for line in run.lines if "rows 5" in line] == ["  | rows 5"]
    (cause,) = [n for n, line in enumerate(run.lines) if line.endswith(": the moon is in the way")]
    assert cause < run.lines.index("stopping"), run.text()
    ended = next(
        n for n, line in enumerate(run.lines) if re.match("storm: broken-1-.* has failed", line)
    )
    assert '  File "broken.py", line 4, in <module>' in [line[2:] for line in run.lines]
    assert " crashed " not in run.text()
    assert not [line for line in run.lines[ended:] if "waiting: " in line], run.text()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("stormkeeper-local-")]
