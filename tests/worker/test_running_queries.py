"""What a heartbeat says of a worker's JVM and its queries, without a JVM."""

import threading

import pytest

from stormkeeper.thrift.records import QueryActivity
from stormkeeper.worker import running_queries
from stormkeeper.worker.running_queries import JvmWatch, QueryRun
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
    monkeypatch.setattr(running_queries, "_PERIOD_SECS", 0.01)
    watch = JvmWatch(world, 10.0, world.ask, lambda: world.now)
    watch.start()
    yield watch
    world.answers.set()
    watch.close()


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
