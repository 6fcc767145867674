import threading
import time

import pytest

from stormkeeper.worker.shutdown import BatchGate, Countdown, stop_queries
from support.waiting import DEADLINE_SECS, until

pytestmark = [pytest.mark.spark]


@pytest.fixture
def gate():
    gate = BatchGate()
    with gate.installed():
        yield gate


class Sink:
    """A ``foreachBatch`` function that takes its time, and knows which batches it finished."""

    def __init__(self, take_time=lambda: None):
        self.take_time = take_time
        self.begun = []
        self.done = []

    def __call__(self, batch, number):
        self.begun.append(number)
        batch.count()
        self.take_time()
        self.done.append(number)


@pytest.fixture
def start(spark, tmp_path):
    """Starts an endless query into a sink."""
    started = []

    def query(sink):
        rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        writer = rows.writeStream.foreachBatch(sink)
        started.append(writer.option("checkpointLocation", str(tmp_path / "c")).start())
        return started[-1]

    yield query
    for query_ in started:
        query_.stop()


def committed(tmp_path):
    return {int(f.name) for f in (tmp_path / "c" / "commits").iterdir() if f.name.isdigit()}


def test_a_stop_waits_for_the_running_batch(gate, start, tmp_path):
    sink = Sink(lambda: time.sleep(1.0))
    query = start(sink)
    until(lambda: len(sink.begun) >= 2)
    gate.close()
    stop_queries([query], DEADLINE_SECS)
    assert not query.isActive
    assert sink.begun == sink.done
    # Whatever was begun is committed, so it is counted, and will not be done again.
    assert committed(tmp_path) == set(sink.done)


def test_closed_gate_stops_batches_and_waiters(gate, start, tmp_path):
    sink = Sink()
    query = start(sink)
    until(lambda: len(sink.done) >= 2)
    ended = []
    waiting = threading.Thread(target=lambda: ended.append(query.awaitTermination()))
    waiting.start()
    gate.close()
    waiting.join(DEADLINE_SECS)
    assert ended == [None]
    assert query.awaitTermination(DEADLINE_SECS) is True
    assert not query.isActive
    assert sink.begun == sink.done
    assert committed(tmp_path) == set(sink.done)


@pytest.mark.usefixtures("gate")
def test_another_failure_is_still_raised(start):
    def fail(_batch, _number):
        raise RuntimeError("no room")

    query = start(fail)
    with pytest.raises(Exception, match="no room"):
        query.awaitTermination(DEADLINE_SECS)


def test_a_batch_that_takes_too_long_is_interrupted(gate, start, caplog):
    release = threading.Event()
    sink = Sink(lambda: release.wait(DEADLINE_SECS))
    query = start(sink)
    try:
        until(lambda: sink.begun)
        gate.close()
        stop_queries([query], 0.3)
        assert sink.done == []
        assert "took too long" in caplog.text
    finally:
        release.set()
    until(lambda: not query.isActive)


def test_the_steps_of_a_stop_share_their_time():
    now = 100.0
    countdown = Countdown(lambda: now)
    assert countdown.left(15.0) == 15.0
    now = 110.0
    assert countdown.left(15.0) == 5.0
    assert countdown.left(18.0) == 8.0
    now = 130.0
    assert countdown.left(18.0) == 0.0
