"""What a heartbeat says of a worker's JVM and its queries, without a JVM."""

import itertools
import threading

import pytest
from py4j.protocol import Py4JError

from stormkeeper.thrift.records import QueryActivity
from stormkeeper.worker import spark_watch
from stormkeeper.worker.query_events import QueryRun
from stormkeeper.worker.spark_watch import ExecutorWatch, JvmWatch, wanted
from support.waiting import until


class World:
    """A clock, queries, and a JVM that answers when the test says so."""

    def __init__(self):
        self.now = 100.0
        self.runs = []
        self.triggers = {}
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()

    def running(self):
        return self.runs

    def ask(self, _):
        self.asked += 1
        assert self.answers.wait(60.0)
        return self.triggers


@pytest.fixture
def world():
    return World()


@pytest.fixture
def watch(world, monkeypatch):
    monkeypatch.setattr(spark_watch, "_PERIOD_SECS", 0.01)
    watch = JvmWatch(world, 10.0, world.ask, lambda: world.now)
    watch.start()
    yield watch
    world.answers.set()
    watch.close(0.0)


def looks(watch, world, *gaps):
    for gap in gaps:
        world.now += gap
        watch.look()
    return watch.silent_ms


def silent(watch, world):
    world.answers.clear()
    asked = world.asked
    until(lambda: world.asked > asked)
    watch.look()


def test_a_jvm_that_answers_is_not_silent(watch, world):
    until(lambda: world.asked > 3)
    assert looks(watch, world, 0.2, 0.2) is None


def test_silence_is_counted_and_told_until_the_answer(watch, world):
    silent(watch, world)
    assert looks(watch, world, *[0.9] * 10) is None
    assert looks(watch, world, *[0.5] * 10) == pytest.approx(14_000, abs=1)
    world.answers.set()
    until(lambda: watch.silent_ms is None)


def test_a_sleep_of_the_machine_is_no_silence(watch, world):
    silent(watch, world)
    assert looks(watch, world, 3600.0, 3600.0) is None
    assert watch.look() == 2.0


def activities(watch, name=lambda run: run.name):
    return watch.activities(name)


def answered(world, triggers):
    world.triggers = triggers
    asked = world.asked
    until(lambda: world.asked > asked + 2)


def test_a_query_tells_of_its_last_batch_and_of_the_running_one(watch, world):
    world.runs = [QueryRun("r1", "q1", "totals"), QueryRun("r2", "q2", None)]
    assert activities(watch) == [QueryActivity("totals")]
    answered(world, {"r1": (7, 0)})
    world.now += 5.0
    assert activities(watch) == [QueryActivity("totals", None, None, 0, 5000)]
    world.runs[0].last_batch, world.runs[0].last_at = 0, world.now
    world.now += 1.0
    assert activities(watch) == [QueryActivity("totals", 0, 1000)]
    answered(world, {"r1": (9, 1)})  # another trigger, so another time
    world.now += 2.0
    assert activities(watch) == [QueryActivity("totals", 0, 3000, 1, 2000)]


def test_queries_of_one_name_are_told_apart(watch, world):
    world.runs = [QueryRun(f"r{n}", f"q{n}", None) for n in range(3)]
    names = [activity.query for activity in activities(watch, lambda _: "script")]
    assert names == ["script", "script-2", "script-3"]


def test_a_query_whose_end_no_event_tells_is_found(watch, world):
    world.runs = [QueryRun("r1", "q1", "totals"), QueryRun("r2", "q2", "other")]
    answered(world, {"r1": None, "r2": (7, 0)})
    world.now += 29.0
    assert watch.find_unreported_end(30.0) is None
    world.now += 1.0
    assert watch.find_unreported_end(30.0) is world.runs[0]
    del world.runs[0]  # the event came
    assert watch.find_unreported_end(30.0) is None


class Executors:
    """A driver's executors, as many as the test says, and a clock."""

    def __init__(self, **limits):
        self.count, self.now = 0, 100.0
        self.watch = ExecutorWatch(
            lambda: self.count, lambda: "two cores", clock=lambda: self.now, **limits
        )

    def look(self, count, now):
        self.count, self.now = count, now
        self.watch.look()
        return self.watch


def test_loss_counts_from_the_last_executor():
    executors = Executors(limit_secs=30.0)
    seen = [(2, 1.0), (0, 2.0), (0, 31.5), (0, 32.0)]
    assert [executors.look(*each).has_lost for each in seen] == [False, False, False, True]


def test_executor_that_comes_back_ends_the_absence():
    executors = Executors(limit_secs=20.0)
    seen = [(1, 0.0), (0, 1.0), (1, 20.0), (0, 40.0), (0, 45.0)]
    assert not any(executors.look(*each).has_lost for each in seen)


def test_driver_without_executors_waits_on():
    executors = Executors()
    assert not any(executors.look(0, now).has_lost for now in (5.0, 3605.0))
    assert executors.watch.waiting == "two cores"


def test_waiting_is_told_until_an_executor_comes(caplog):
    executors = Executors(wait_secs=15.0)
    seen = [(0, 0.0), (0, 14.0), (0, 15.0), (0, 16.0), (1, 17.0)]
    waits = [executors.look(*each).waiting for each in seen]
    assert waits == [None, None, "two cores", "two cores", None]
    assert caplog.messages == ["two cores"]


def test_executors_are_counted_on_a_thread():
    counts = itertools.chain([0, 2], itertools.repeat(0))
    watch = ExecutorWatch(lambda: next(counts), str, limit_secs=0.02, look_secs=0.005)
    watch.start()
    until(lambda: watch.has_lost)
    watch.close(0.0)


def test_driver_that_waits_says_what_it_asks_for():
    conf = {"spark.master": "spark://here:7077", "spark.cores.max": "2"}
    said = wanted(conf.get)
    assert "spark.master=spark://here:7077: others have its cores or memory" in said
    assert "asks for spark.cores.max=2 and spark.executor.memory=1g" in said


def test_end_of_the_jvm_is_no_loss_of_executors():
    def count():
        raise Py4JError("the JVM is gone")

    watch = ExecutorWatch(count, str, limit_secs=0)
    watch.look()
    assert not watch.has_lost
