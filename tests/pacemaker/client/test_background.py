import threading

from stormkeeper.pacemaker.client.background import Background
from support.waiting import until


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "background-test"]


def test_work_that_hangs_holds_up_one_thread_and_only_the_newest_piece_follows():
    background, go_on, done = Background("background-test"), threading.Event(), []
    background.run(lambda: go_on.wait(30.0))
    for number in range(5):
        background.run(lambda number=number: done.append(number))
    assert len(threads()) == 1
    assert done == []
    go_on.set()
    until(lambda: done == [4] and not threads())
    background.run(lambda: done.append("again"))
    until(lambda: done == [4, "again"] and not threads())
