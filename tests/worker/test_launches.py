"""Two launches of one query, as processes: a worker that was cut off, and its replacement."""

import json
import re
import signal
from collections import Counter
from contextlib import ExitStack

import pytest

from stormkeeper.worker.shutdown import CLAIMED
from support.pacemaker import PacemakerProcess
from support.processes import all_gone, send
from support.waiting import until
from support.worker import START_SECS, WorkerProcess

pytestmark = [pytest.mark.spark]

#: Writes each batch to a file of its own, as a sink should that may see a batch twice.
COPYING = """
import json, os
from pathlib import Path
from stormkeeper.topology import Topology

topology = Topology("copying", conf={{"folder": {folder!r}}})

@topology.spout
def lines(spark, conf):
    return spark.readStream.option("maxFilesPerTrigger", 1).text(conf["folder"] + "/in")

@topology.bolt(lines)
def out(lines, conf):
    def write(batch, number):
        rows = [row.value for row in batch.collect()]
        new = Path(conf["folder"], f"new-{{os.getpid()}}")
        new.write_text(json.dumps(rows))
        new.replace(Path(conf["folder"], "out", f"{{number}}.json"))
        print("wrote", number)
    return lines.writeStream.trigger(processingTime="200 milliseconds").foreachBatch(write)
"""

FILES = 40


@pytest.fixture
def start(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number:03}.txt").write_text(f"{number}\n")
    script = tmp_path / "copying.py"
    script.write_text(COPYING.format(folder=str(tmp_path)))
    with ExitStack() as stack:
        pacemaker = stack.enter_context(PacemakerProcess())
        conf = {
            "storm.cluster.state.store": "org.apache.storm.cluster.PaceMakerStateStorageFactory",
            "pacemaker.servers": [pacemaker.address],
            "storm.local.dir": str(tmp_path / "local"),
            "spark.master": "local[1]",
        }

        def worker(claim=None):
            options = ("--claim", f"out={claim}") if claim else ()
            return stack.enter_context(WorkerProcess(script, conf, tmp_path, options=options))

        yield worker


def written(folder):
    """Batches by number, as they were written last."""
    return {int(file.stem): json.loads(file.read_text()) for file in (folder / "out").iterdir()}


@pytest.mark.slow
def test_cut_off_worker_leaves_query_to_next_launch(start, tmp_path):
    first = start("7-1-0")
    first.wait_for(r"^wrote 3$")
    family = first.stand_still()
    begun = max(written(tmp_path))
    second = start("7-2-0")
    second.wait_for(rf"^wrote {begun + 4}$")
    send(family, signal.SIGCONT)
    assert first.ended() == CLAIMED, first.text
    assert "left to the worker's start 7-2-0, which has claimed it" in first.text
    all_gone(family)

    until(lambda: len(written(tmp_path)) == FILES, START_SECS)
    assert second.stop() == 0, second.text
    rows = Counter(row for batch in written(tmp_path).values() for row in batch)
    assert rows == {str(number): 1 for number in range(FILES)}

    late = start("7-1-0")
    assert late.ended() == CLAIMED, late.text
    assert "the query out is left to the worker's start 7-2-0" in late.text


@pytest.mark.slow
def test_spark_refuses_second_writer_of_checkpoint(start, tmp_path):
    """Without claims: the second line, where a claim could not be read in time."""
    first = start()
    first.wait_for(r"^wrote 3$")
    family = first.stand_still()
    begun = max(written(tmp_path))
    second = start()
    second.wait_for(rf"^wrote {begun + 4}$")
    send(family, signal.SIGCONT)
    assert first.ended() == 1, first.text
    assert re.search(r"(?i)concurrent|multiple streaming jobs", first.text), first.text
    all_gone(family)

    until(lambda: len(written(tmp_path)) == FILES, START_SECS)
    assert second.stop() == 0, second.text
    rows = Counter(row for batch in written(tmp_path).values() for row in batch)
    assert rows == {str(number): 1 for number in range(FILES)}
