"""The pipeline killed at random moments, beside one that is not: both keep the same tables."""

import contextlib
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from faults.counting_workers import RESTARTED, ROWS, SILENT, TOPOLOGIES, CountingWorkers
from stormkeeper.pipeline import tables
from support.pacemaker import PacemakerProcess, nobody
from support.pipelines import START_SECS, PipelineProcess
from support.waiting import until

LATE, TIMEOUT, TRIGGER, STATISTICS = 10, 20, 1, 2

#: The pipeline's own parts in a loop that starts in a second, or as they are.
LOOP: Final = (str(Path(__file__).with_name("pipeline_without_spark.py")),)
SPARK: Final = ("-m", "stormkeeper", "pipeline")

#: How far apart two pipelines may see one event, in seconds: each dates it by an age that it reads.
_APART: Final = 3.0

#: What identifies a row of a log.
KEYS: Final = {
    (tables.STATISTICS, tables.EXECUTOR_STATS): (
        *("server", "instance", "revision", "storm_id", "node", "port"),
        *("task_start", "window", "source", "stream"),
    ),
    (tables.STATISTICS, tables.COMPONENT_STATS): ("read_at", "storm_id", "component", "window"),
    (tables.STATISTICS, tables.TOPOLOGY_STATS): ("read_at", "storm_id", "window"),
    (tables.STATISTICS, tables.ROLLUP_1M): ("bucket", "storm_id", "component"),
    (tables.STATISTICS, tables.REJECTED): ("server", "path", "revision"),
    (tables.LIVENESS, tables.WORKER_EVENTS): ("at", "storm_id", "node", "port", "event"),
}

WORKER: Final = ("storm_id", "node", "port")


class Killed:
    """A pipeline that is killed, and when it was down: from its end to what it published next."""

    def __init__(self, pipeline: PipelineProcess) -> None:
        self.pipeline = pipeline
        self.down: list[tuple[float, float]] = []
        self._since: float | None = None

    def kill(self) -> None:
        self.went_down()
        self.pipeline.kill()

    def went_down(self) -> None:
        self._since = self._since or time.time()

    def is_back(self) -> None:
        if self._since is not None:
            self.down.append((self._since, time.time()))
            self._since = None

    def was_down(self, at: float) -> bool:
        margin = _APART + STATISTICS
        return any(begin - margin <= at <= end + margin for begin, end in self.down)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB, which can be filled."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk, and not everywhere")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "seed", "kills"),
    [
        pytest.param(LOOP, 0, 6, id="loop"),
        pytest.param(LOOP, 1, 40, id="loop-often", marks=pytest.mark.faults),
        pytest.param(SPARK, 2, 2, id="spark", marks=pytest.mark.spark),
        *(
            pytest.param(
                SPARK, seed, 5, id=f"spark-{seed}", marks=[pytest.mark.faults, pytest.mark.spark]
            )
            for seed in range(3, 7)
        ),
    ],
)
def test_killed_pipeline_keeps_the_tables_of_an_unkilled_one(
    tmp_path: Path, small_disk: Path, program: tuple[str, ...], seed: int, kills: int
) -> None:
    chance = random.Random(seed)
    conf = {
        "storm.local.dir": str(tmp_path / "local"),
        "pipeline.trigger.secs": TRIGGER,
        "pipeline.statistics.secs": STATISTICS,
        "pipeline.late.secs": LATE,
        "nimbus.task.timeout.secs": TIMEOUT,
        "task.heartbeat.frequency.secs": 1,
        # Nimbus is away all along.
        "nimbus.seeds": [str(nobody())],
        "spark.master": "local[2]",
    }
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        a, b, c = (enter(PacemakerProcess()) for _ in range(3))
        at_first = [a.address, b.address]
        calm = enter(PipelineProcess(tmp_path / "calm", at_first, conf, program))
        divided = conf | {"pipeline.statistics.parts": 3}
        pipeline = enter(PipelineProcess(small_disk / "tables", at_first, divided, program))
        killed, still = Killed(pipeline), Killed(calm)
        for each in (calm.start(), pipeline.start()):
            each.wait_published()
        workers = enter(CountingWorkers(at_first, seed))

        def use(*servers: PacemakerProcess) -> None:
            """Have both pipelines read other Pacemakers; the calm one ends and begins in peace."""
            pipeline.servers = calm.servers = [server.address for server in servers]
            still.went_down()
            assert calm.stop() == 0, calm.lines[-20:]
            calm.start()

        for number in range(kills):
            if chance.random() < 0.5:
                time.sleep(
                    chance.uniform(0.0, 12.0 if program == SPARK else 3.0)
                )  # while it starts
            else:
                pipeline.wait_published()
                killed.is_back()
                time.sleep(chance.uniform(0.0, 2 * STATISTICS))
            killed.kill()
            if number == 0:
                a.kill()
                a.start()
            elif number == 1:  # one more, and one less
                workers.use([a.address, c.address])
                use(a, c)
                b.kill()
                workers.restart_one()
            pipeline.start()
            calm.wait_published()
            still.is_back()
        workers.silence_one()
        pipeline.wait_published()
        killed.is_back()

        # A disk without room ends it, and once more when it is started again; then it goes on.
        filler = small_disk / "filler"
        killed.went_down()
        fill(filler)
        for start in (lambda: None, pipeline.start):
            start()
            assert pipeline.ended() == 1
            assert "No space left on device" in "".join(pipeline.lines[-3:])
        filler.unlink()
        pipeline.start().wait_published(2)
        killed.is_back()

        for each in (pipeline, calm):
            until(lambda each=each: dead(each) == {SILENT}, START_SECS)
        ended = time.time()  # from here on all are silent
        workers.end()
        expected = {(one.storm_id, one.node): ROWS * one.beats for one in workers.workers}
        for each in (pipeline, calm):
            until(lambda each=each: executed(each) == expected, START_SECS)
        for each in (pipeline, calm):
            assert each.stop() == 0, each.lines[-20:]
        assert_once(pipeline)
        assert_same(pipeline, calm)
        assert_events(killed, still, ended)
        assert_counts(pipeline, workers)
        assert skipped(pipeline) > 0


def dead(pipeline: PipelineProcess) -> set[str]:
    rows = pipeline.rows(tables.LIVENESS, tables.WORKER_LIVENESS)
    return {row["storm_id"] for row in rows if row["status"] == "dead"}


def executed(pipeline: PipelineProcess) -> dict[tuple[str, str], int]:
    """What each worker has executed, by its newest heartbeat in the tables."""
    rows = pipeline.rows(tables.STATISTICS, tables.WORKER_STATS)
    return {
        (row["storm_id"], row["node"]): row["executed"]
        for row in rows
        if row["window"] == ":all-time" and row["executed"]
    }


def assert_once(pipeline: PipelineProcess) -> None:
    for (query, name), key in KEYS.items():
        rows = pipeline.table(query, name)
        counted = Counter(zip(*(rows[column].to_pylist() for column in key), strict=True))
        assert [row for row, count in counted.items() if count > 1] == [], name
        assert counted or name in (tables.REJECTED, tables.ROLLUP_1M), name


def assert_same(pipeline: PipelineProcess, calm: PipelineProcess) -> None:
    """The newest of both is of the same heartbeats."""
    of_reports = ("server", "instance", "revision", "time_secs", "uptime_secs", "completed")
    assert newest(pipeline, tables.WORKER_REPORTS, of_reports) == newest(
        calm, tables.WORKER_REPORTS, of_reports
    )
    for name, key in (
        (tables.WORKER_STATS, (*WORKER, "component", "window")),
        (tables.COMPONENT_STATS, ("storm_id", "component", "window")),
        (tables.TOPOLOGY_STATS, ("storm_id", "window")),
    ):
        found = [newest(each, name, key=key) for each in (pipeline, calm)]
        assert found[0] == found[1], name
        assert found[0], name


def newest(
    pipeline: PipelineProcess,
    name: str,
    columns: Iterable[str] = (),
    key: Iterable[str] = WORKER,
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The newest row of each key; all columns but those that say when it was read, or some."""
    rows = pipeline.rows(tables.STATISTICS, name)
    if rows and "read_at" in rows[0]:
        rows.sort(key=lambda row: row["read_at"])
    return {
        tuple(row[column] for column in key): {
            column: value
            for column, value in row.items()
            if (column in columns if columns else column not in ("read_at", "received_at"))
        }
        for row in rows
    }


def assert_events(killed: Killed, still: Killed, ended: float) -> None:
    """The events of both are the same, but for those that began and ended while one was down."""
    found = [
        [
            (*(row[column] for column in (*WORKER, "event")), row["at"].timestamp())
            for row in each.pipeline.rows(tables.LIVENESS, tables.WORKER_EVENTS)
            if row["at"].timestamp() < ended
            and row["event"] != "flapping"  # counts events, also those that one has not seen
        ]
        for each in (killed, still)
    ]
    for mine, others in (found, found[::-1]):
        missing = [
            event
            for event in mine
            if not any(
                event[:-1] == other[:-1] and abs(event[-1] - other[-1]) < _APART for other in others
            )
        ]
        both_up = [e for e in missing if not (killed.was_down(e[-1]) or still.was_down(e[-1]))]
        assert both_up == []
    assert {event[0] for event in found[0] if event[3] == "dead"} == {SILENT}


def assert_counts(pipeline: PipelineProcess, workers: CountingWorkers) -> None:
    """What the roll-ups have adds up to what was counted: all of it where nobody restarted."""
    names = (tables.ROLLUP_1M, tables.ROLLUP_OPEN)
    rows = [row for name in names for row in pipeline.rows(tables.STATISTICS, name)]
    counted: Counter[str] = Counter()
    for row in rows:
        counted[row["storm_id"]] += row["executed"] or 0
    for storm_id in (*TOPOLOGIES, SILENT):
        assert counted[storm_id] == sum(ROWS * one.beats for one in workers.of(storm_id)), storm_id
    (one,) = workers.of(RESTARTED)
    assert ROWS * one.beats <= counted[RESTARTED] <= ROWS * (one.beats + one.before)
    # Every beat since a worker was known was read, or is said to have been skipped, as far as times
    # tell.
    beats = sum(one.beats + one.before for one in workers.workers) - beats_unknown(pipeline)
    said = sum(row["readings"] + row["skipped"] for row in rows) / 2  # of two components
    assert 0.75 * beats <= said <= 1.25 * beats, (said, beats)


def beats_unknown(pipeline: PipelineProcess) -> int:
    """How many beats there were before those with which workers were read for the first time.

    That is long after they have begun, if the pipeline is killed before its first batch of them.
    """
    rows = pipeline.rows(tables.STATISTICS, tables.EXECUTOR_STATS)
    rows = [row for row in rows if row["window"] == ":all-time" and row["executed"]]
    rows.sort(key=lambda row: row["read_at"], reverse=True)
    first = {(row["storm_id"], row["node"]): row["executed"] // ROWS for row in rows}
    return sum(beats - 1 for beats in first.values())


def skipped(pipeline: PipelineProcess) -> int:
    names = (tables.ROLLUP_1M, tables.ROLLUP_OPEN)
    return sum(row["skipped"] for name in names for row in pipeline.rows(tables.STATISTICS, name))
