import threading

import pytest

from stormkeeper.pacemaker.client.authentication import StepRunner
from support.waiting import DEADLINE_SECS, until


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "background-test"]


def test_hanging_work_is_followed_by_newest_only():
    background, go_on, done = StepRunner("background-test"), threading.Event(), []
    began = threading.Event()
    background.run(lambda: (began.set(), go_on.wait(DEADLINE_SECS)))
    assert began.wait(DEADLINE_SECS)
    for number in range(5):
        background.run(lambda number=number: done.append(number))
    assert len(threads()) == 1
    assert done == []
    go_on.set()
    until(lambda: done == [4] and not threads())
    background.run(lambda: done.append("again"))
    until(lambda: done == [4, "again"] and not threads())


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_piece_that_fails_keeps_no_later_one_from_being_done(caplog, kind):
    def fail():
        raise kind("on purpose")

    background, done = StepRunner("background-test"), []
    background.run(fail)
    until(lambda: not threads())
    background.run(lambda: done.append("later"))
    until(lambda: done == ["later"])
    assert [str(record.exc_info[1]) for record in caplog.records] == ["on purpose"]


def test_work_without_thread_does_not_block_later_work(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    background, done = StepRunner("background-test"), []
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            background.run(lambda: done.append("never"))
    background.run(lambda: done.append("later"))
    until(lambda: done == ["later"])
