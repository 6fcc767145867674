import itertools
import threading

from py4j.protocol import Py4JError

from stormkeeper.worker.remote_spark import ExecutorAbsence, ExecutorWatch, wanted
from support.waiting import until


def test_absence_counts_from_the_last_executor():
    absence = ExecutorAbsence()
    assert [absence.update(*seen) for seen in [(2, 1.0), (0, 2.0), (0, 32.5)]] == [0.0, 0.0, 30.5]
    assert absence.had_one


def test_one_that_comes_back_ends_the_absence():
    absence = ExecutorAbsence()
    seen = [(1, 0.0), (0, 1.0), (1, 20.0), (0, 40.0), (0, 45.0)]
    assert [absence.update(*each) for each in seen] == [0.0, 0.0, 0.0, 0.0, 5.0]


def test_whoever_never_had_one_is_told_from_who_lost_all():
    absence = ExecutorAbsence()
    assert [absence.update(0, now) for now in (5.0, 3605.0)] == [0.0, 3600.0]
    assert not absence.had_one


def test_a_watch_says_when_there_was_none_for_too_long():
    counts = itertools.chain([0, 2], itertools.repeat(0))
    watch = ExecutorWatch(lambda: next(counts), str, limit_secs=0.02, look_secs=0.005)
    until(lambda: watch.has_lost)
    assert watch.waiting is None


def test_a_watch_says_what_is_waited_for_until_an_executor_comes(caplog):
    count = [0]
    watch = ExecutorWatch(lambda: count[0], lambda: "two cores", wait_secs=0.001, look_secs=0.001)
    until(lambda: watch.waiting == "two cores")
    count[0] = 1
    until(lambda: watch.waiting is None)
    assert not watch.has_lost
    assert caplog.messages == ["two cores"]
    watch.close()


def test_a_driver_that_waits_says_what_it_asks_for():
    conf = {"spark.master": "spark://here:7077", "spark.cores.max": "2"}
    said = wanted(conf.get)
    assert "spark.master=spark://here:7077: others have its cores or memory" in said
    assert "asks for spark.cores.max=2 and spark.executor.memory=1g" in said


def test_a_watch_leaves_a_jvm_that_is_gone_to_others():
    looked = threading.Event()

    def count():
        looked.set()
        raise Py4JError("the JVM is gone")

    watch = ExecutorWatch(count, str, limit_secs=0, look_secs=0.001)
    assert looked.wait(60.0)
    assert not watch.has_lost
