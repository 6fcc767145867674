import threading

import pytest

from stormkeeper.state.storage import ConnectionState, EventType
from stormkeeper.state.watches import Callbacks
from support.memory_state import InlineCallbacks
from support.waiting import DEADLINE_SECS, until

CREATED = EventType.NODE_CREATED


@pytest.fixture
def callbacks():
    callbacks = Callbacks("callbacks of a test")
    yield callbacks
    callbacks.close()


def test_events_and_states_keep_their_order(callbacks):
    told = []
    callbacks.register(lambda _event, path: told.append(path))
    callbacks.add_listener(told.append)
    for number in range(100):
        callbacks.queue_event(CREATED, str(number))
        callbacks.queue_connection(ConnectionState.SUSPENDED)
    until(lambda: len(told) == 200)
    assert told[::2] == [str(number) for number in range(100)]
    assert set(told[1::2]) == {ConnectionState.SUSPENDED}


def test_the_thread_has_its_name(callbacks):
    names = []
    callbacks.register(lambda *_: names.append(threading.current_thread().name))
    callbacks.queue_event(CREATED, "/")
    until(lambda: names == ["callbacks of a test"])


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_one_that_raises_does_not_keep_the_next_from_being_told(callbacks, caplog, kind):
    told = []

    def fail(*_):
        raise kind("on purpose")

    callbacks.register(fail)
    callbacks.add_listener(fail)
    callbacks.register(lambda *event: told.append(event))
    callbacks.add_listener(told.append)
    callbacks.queue_event(CREATED, "/a")
    callbacks.queue_connection(ConnectionState.LOST)
    until(lambda: told == [(CREATED, "/a"), ConnectionState.LOST])
    # The errors themselves: how caplog writes them is up to who has logged in this process.
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert logged == ["on purpose"] * 2


def test_one_may_unregister_another_that_was_still_to_be_told(callbacks):
    told = []

    def first(*_):
        callbacks.unregister(second)

    callbacks.register(first)
    second = callbacks.register(lambda *event: told.append(event))
    last = threading.Event()
    callbacks.register(lambda *_: last.set())
    callbacks.queue_event(CREATED, "/a")
    assert last.wait(DEADLINE_SECS)
    assert told == []


def test_one_registered_meanwhile_is_told_from_the_next_event_on(callbacks):
    told = []
    once = []

    def register_another(_event, path):
        if not once:
            once.append(path)
            callbacks.register(lambda _event, path: told.append(path))

    callbacks.register(register_another)
    callbacks.queue_event(CREATED, "/a")
    callbacks.queue_event(CREATED, "/b")
    until(lambda: told == ["/b"])


def test_nothing_is_told_after_close():
    callbacks = Callbacks("callbacks of a test")
    told = []
    entered, leave = threading.Event(), threading.Event()

    def block(*event):
        told.append(event)
        entered.set()
        leave.wait(DEADLINE_SECS)

    callbacks.register(block)
    callbacks.queue_event(CREATED, "/a")
    callbacks.queue_event(CREATED, "/b")
    assert entered.wait(DEADLINE_SECS)
    closing = threading.Thread(target=callbacks.close)
    closing.start()
    until(lambda: callbacks._closed)
    leave.set()
    closing.join(DEADLINE_SECS)
    assert told == [(CREATED, "/a")]
    assert not callbacks._thread.is_alive()


def test_callback_that_hangs_delays_close_for_a_while_only(monkeypatch, caplog):
    monkeypatch.setattr("stormkeeper.state.watches.CLOSE_SECS", 0.1)
    callbacks = Callbacks("callbacks of a test")
    entered, leave = threading.Event(), threading.Event()

    def block(*_):
        entered.set()
        leave.wait(DEADLINE_SECS)

    callbacks.register(block)
    callbacks.queue_event(CREATED, "/a")
    assert entered.wait(DEADLINE_SECS)
    callbacks.close()
    assert "a callback still runs" in caplog.text
    leave.set()


class TestInline:
    @pytest.fixture
    def inline(self):
        callbacks = InlineCallbacks("callbacks of a test")
        yield callbacks
        callbacks.close()

    def test_nothing_is_told_before_it_is_asked_for(self, inline):
        told = []
        inline.register(lambda _event, path: told.append(path))
        inline.add_listener(told.append)
        inline.queue_event(CREATED, "/a")
        inline.queue_connection(ConnectionState.LOST)
        assert told == []
        assert inline.run_pending()
        assert told == ["/a", ConnectionState.LOST]
        assert not inline.run_pending()

    def test_it_runs_on_the_thread_that_asks(self, inline):
        threads = []
        inline.register(lambda *_: threads.append(threading.current_thread()))
        inline.queue_event(CREATED, "/a")
        inline.run_pending()
        assert threads == [threading.current_thread()]

    def test_what_a_callback_queues_comes_after_it(self, inline):
        told = []

        def callback(_event, path):
            if path == "/a":
                inline.queue_event(CREATED, "/b")
                assert not inline.run_pending()
            told.append(path)

        inline.register(callback)
        inline.queue_event(CREATED, "/a")
        inline.run_pending()
        assert told == ["/a", "/b"]

    def test_what_ends_a_process_ends_who_asks(self, inline):
        def leave(*_):
            raise SystemExit

        inline.register(leave)
        inline.queue_event(CREATED, "/a")
        with pytest.raises(SystemExit):
            inline.run_pending()
        assert not inline.run_pending()

    def test_nothing_is_told_after_close(self, inline):
        told = []
        inline.register(lambda _event, path: told.append(path))
        inline.queue_event(CREATED, "/a")
        inline.close()
        inline.run_pending()
        assert told == []
