"""Each change is told once, whatever becomes of the session; in memory, so that it is quick."""

import pytest

from stormkeeper.cli.watches import NodeChange, follow
from stormkeeper.errors import AccessDeniedError, StateUnavailableError
from support.memory_state import MemoryEnsemble


@pytest.fixture
def ensemble():
    return MemoryEnsemble()


@pytest.fixture
def other(ensemble):
    """Who makes the changes."""
    session = ensemble.session()
    yield session
    session.close()


@pytest.fixture
def state(ensemble):
    session = ensemble.session()
    yield session
    session.close()


@pytest.fixture
def following(state):
    """Starts to follow; what is told comes by ``next``."""
    begun = []

    def start(top, nodes, watched=state, **options):
        told = follow(watched, top, **options)
        begun.append(told)
        expected = {0: f"nothing at {top} yet", 1: f"watching {top}"}
        assert next(told) == expected.get(nodes, f"watching {top}, {nodes} nodes")
        return told

    yield start
    for told in begun:
        told.close()


def test_the_life_of_a_node(following, other):
    told = following("/storms/wc-1", 0)
    other.set_data("/storms/wc-1", b"1")
    assert next(told) == NodeChange("created", "/storms/wc-1", 0)
    other.set_data("/storms/wc-1", b"2")
    assert next(told) == NodeChange("changed", "/storms/wc-1", 1)
    other.set_data("/storms/wc-1/b", b"")
    assert next(told) == NodeChange("children", "/storms/wc-1", 1, added=("b",))
    other.delete_node("/storms/wc-1/b")
    assert next(told) == NodeChange("children", "/storms/wc-1", 1, removed=("b",))
    other.delete_node("/storms/wc-1")
    assert next(told) == NodeChange("deleted", "/storms/wc-1")
    other.set_data("/storms/wc-1", b"3")
    assert next(told) == NodeChange("created", "/storms/wc-1", 0)


def test_what_lies_below_is_watched_where_that_is_asked_for(following, other):
    other.set_data("/storms/wc-1", b"1")
    told = following("/storms", 2, recursive=True)
    other.set_data("/storms/wc-1", b"2")
    assert next(told) == NodeChange("changed", "/storms/wc-1", 1)
    other.set_data("/storms/wc-2", b"1")
    assert next(told) == NodeChange("children", "/storms", 0, added=("wc-2",))
    assert next(told) == NodeChange("created", "/storms/wc-2", 0)
    other.set_data("/storms/wc-2", b"2")
    assert next(told) == NodeChange("changed", "/storms/wc-2", 1)
    other.delete_node("/storms/wc-2")
    assert {next(told), next(told)} == {
        NodeChange("deleted", "/storms/wc-2"),
        NodeChange("children", "/storms", 0, removed=("wc-2",)),
    }


def test_everything_from_the_root(following, other):
    other.set_data("/storms/wc-1", b"1")
    told = following("/", 3, recursive=True)
    other.set_data("/storms/wc-1", b"2")
    assert next(told) == NodeChange("changed", "/storms/wc-1", 1)


def test_what_lies_below_is_not_watched_otherwise(following, other):
    other.set_data("/storms/wc-1", b"1")
    told = following("/storms", 1)
    other.set_data("/storms/wc-1", b"2")
    other.delete_node("/storms/wc-1")
    assert next(told) == NodeChange("children", "/storms", 0, removed=("wc-1",))


def test_a_node_made_anew_while_nobody_looked_is_told_as_both(following, ensemble, state, other):
    other.set_data("/storms/wc-1", b"1")
    told = following("/storms/wc-1", 1)
    ensemble.suspend(state)
    other.delete_node("/storms/wc-1")
    other.set_data("/storms/wc-1", b"2")
    ensemble.resume(state)
    assert [next(told) for _ in range(5)] == [
        "the connection to ZooKeeper is lost",
        "connected to ZooKeeper again",
        "all changes during the lost connection are printed as one",
        NodeChange("deleted", "/storms/wc-1"),
        NodeChange("created", "/storms/wc-1", 0),
    ]


def test_a_lost_session_is_told_and_misses_nothing(following, ensemble, state, other):
    other.set_data("/storms/wc-1", b"1")
    told = following("/storms", 2, recursive=True)
    ensemble.expire(state)
    other.set_data("/storms/wc-1", b"2")
    heard = [next(told) for _ in range(4)]
    assert heard == [
        "the session with ZooKeeper has expired",
        "connected to ZooKeeper again",
        "all changes during the lost connection are printed as one",
        NodeChange("changed", "/storms/wc-1", 1),
    ]
    other.set_data("/storms/wc-1", b"3")
    assert next(told) == NodeChange("changed", "/storms/wc-1", 2)


class Meddling:
    """Passes calls on, and does once, before a call, what `before` has for it."""

    def __init__(self, state):
        self._state = state
        self.before = {}

    def __getattr__(self, name):
        return getattr(self._state, name)

    def get_stat(self, path, watch=False):
        self._meddle("get_stat", path)
        return self._state.get_stat(path, watch)

    def get_children(self, path, watch=False):
        self._meddle("get_children", path)
        return self._state.get_children(path, watch)

    def fail(self, call, path, error):
        def fail():
            raise error

        self.before[call, path] = fail

    def _meddle(self, call, path):
        self.before.pop((call, path), lambda: None)()


@pytest.mark.parametrize("call", ["get_stat", "get_children"])
def test_a_look_that_fails_is_repeated(following, state, other, call, monkeypatch):
    monkeypatch.setattr("stormkeeper.cli.watches._RETRY_SECS", 0.05)
    other.set_data("/storms", b"1")
    meddling = Meddling(state)
    told = following("/storms", 1, watched=meddling)
    meddling.fail(call, "/storms", StateUnavailableError("away"))
    other.set_data("/storms", b"2")
    assert next(told) == NodeChange("changed", "/storms", 1)
    assert not meddling.before


def test_the_first_look_fails_for_good(state):
    meddling = Meddling(state)
    meddling.fail("get_stat", "/storms", StateUnavailableError("away"))
    with pytest.raises(StateUnavailableError):
        next(follow(meddling, "/storms"))


def test_a_node_that_goes_while_it_is_looked_at_was_never_there(following, state, other):
    meddling = Meddling(state)
    told = following("/storms", 0, watched=meddling)
    meddling.before["get_children", "/storms"] = lambda: other.delete_node("/storms")
    other.set_data("/storms", b"1")
    # Before it looks the third time it is there again.
    meddling.before["get_stat", "/storms"] = lambda: meddling.before.update(
        {("get_stat", "/storms"): lambda: other.set_data("/storms", b"2")}
    )
    assert next(told) == NodeChange("created", "/storms", 0)
    assert not meddling.before


def test_known_node_deleted_during_a_read_is_deleted(following, state, other):
    other.set_data("/storms", b"1")
    meddling = Meddling(state)
    told = following("/storms", 1, watched=meddling)
    meddling.before["get_children", "/storms"] = lambda: other.delete_node("/storms")
    other.set_data("/storms", b"2")
    assert next(told) == NodeChange("deleted", "/storms")


def test_a_node_below_that_is_denied_is_told_and_others_go_on(following, state, other):
    other.set_data("/storms/wc-1", b"1")
    meddling = Meddling(state)
    told = following("/storms", 2, watched=meddling, recursive=True)
    meddling.fail("get_stat", "/storms/wc-2", AccessDeniedError("not you"))
    other.set_data("/storms/wc-2", b"1")
    assert next(told) == NodeChange("children", "/storms", 0, added=("wc-2",))
    assert next(told) == "/storms/wc-2 is not watched: not you"
    other.set_data("/storms/wc-1", b"2")
    assert next(told) == NodeChange("changed", "/storms/wc-1", 1)


def test_a_node_below_that_is_denied_from_the_beginning_is_told(following, state, other):
    other.set_data("/storms/wc-1", b"1")
    meddling = Meddling(state)
    meddling.fail("get_stat", "/storms/wc-1", AccessDeniedError("not you"))
    told = following("/storms", 1, watched=meddling, recursive=True)
    assert next(told) == "/storms/wc-1 is not watched: not you"
    other.set_data("/storms", b"2")
    assert next(told) == NodeChange("changed", "/storms", 1)


def test_nothing_is_left_registered_at_the_end(state):
    told = follow(state, "/storms")
    next(told)
    told.close()
    callbacks = state._callbacks
    assert (callbacks._registrations, callbacks._listeners) == ({}, [])
