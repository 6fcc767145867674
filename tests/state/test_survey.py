"""A survey has all nodes, in few requests, and says what it could not look at."""

import pytest

from stormkeeper.errors import (
    AccessDeniedError,
    NotAuthorizedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
)
from stormkeeper.state import survey
from support.memory_state import MemoryEnsemble

NODES = {
    "/storms/wc-1": b"base",
    "/storms/wc-2": b"base",
    "/errors/wc-1/split/e0000000001": b"error",
    "/supervisors": b"\x07",
}


@pytest.fixture
def state():
    state = MemoryEnsemble().session()
    for path, data in NODES.items():
        state.set_data(path, data)
    yield state
    state.close()


class Counting:
    """Passes calls on, counts them, and denies what `denied` has in it."""

    def __init__(self, state, denied=()):
        self._state = state
        self._denied = set(denied)
        self.calls = []

    def __getattr__(self, name):
        return getattr(self._state, name)

    def read_many(self, paths):
        return self._asked("read_many", paths)

    def children_many(self, paths):
        return self._asked("children_many", paths)

    def _asked(self, name, paths):
        self.calls.append((name, list(paths)))
        for path in paths:
            if path in self._denied:
                raise AccessDeniedError(f"{path} is denied to digest:storm:abc=")
        return getattr(self._state, name)(paths)


class Pacemaker:
    def __init__(self, answers):
        self._answers = answers

    def children(self, path):
        if isinstance(self._answers, Exception):
            raise self._answers
        return list(self._answers.get(path, ()))


def test_every_node_is_found_parents_first(state):
    found = survey.read(state)
    assert {path: node.data for path, node in found.nodes.items() if path in NODES} == NODES
    assert list(found.nodes) == [
        "/",
        "/errors",
        "/errors/wc-1",
        "/errors/wc-1/split",
        "/errors/wc-1/split/e0000000001",
        "/storms",
        "/storms/wc-1",
        "/storms/wc-2",
        "/supervisors",
    ]
    assert (found.in_pacemakers, found.notes, found.denied) == ([], [], [])


def test_from_a_node_downwards(state):
    assert list(survey.read(state, "/storms").nodes) == ["/storms", "/storms/wc-1", "/storms/wc-2"]
    assert survey.read(state, "/nowhere").nodes == {}


def test_each_level_is_two_requests(state):
    for number in range(3, 40):
        state.set_data(f"/storms/wc-{number}", b"base")
    counting = Counting(state)
    found = survey.read(counting)
    assert "/storms/wc-39" in found.nodes
    # Root, first level, storms and topologies with errors, components, errors.
    assert [name for name, _ in counting.calls] == ["read_many", "children_many"] * 4 + [
        "read_many"
    ]


def test_what_is_denied_is_noted_and_all_else_is_there(state):
    denied = ["/storms/wc-2", "/errors/wc-1"]
    found = survey.read(Counting(state, denied))
    assert set(found.nodes) == {"/", "/errors", "/storms", "/storms/wc-1", "/supervisors"}
    assert sorted(found.denied) == sorted(denied)
    for path, note in zip(sorted(denied), sorted(found.notes), strict=True):
        assert note.startswith(f"{path} was not looked at: ")
        assert "digest:storm:abc=" in note


def test_the_topologies_that_beat_to_pacemakers(state):
    found = survey.read(
        state,
        pacemakers={
            "a:1": Pacemaker({"/workerbeats": ["wc-9", "wc-1"], "/taskbeats": ["wc-8"]}),
            "b:1": Pacemaker({"/workerbeats": ["wc-9", "wc-2"]}),
        },
    )
    assert found.in_pacemakers == [
        "/taskbeats/wc-8",
        "/workerbeats/wc-1",
        "/workerbeats/wc-2",
        "/workerbeats/wc-9",
    ]
    assert found.notes == []
    assert survey.read(state).in_pacemakers == []


def test_each_silent_pacemaker_is_noted(state):
    errors = {
        "a:1": PacemakerUnavailableError("away"),
        "b:1": NotAuthorizedError("not you"),
        "c:1": RemoteProtocolError("no Pacemaker at all"),
    }
    well = {"d:1": Pacemaker({"/workerbeats": ["wc-1"]})}
    silent = {address: Pacemaker(error) for address, error in errors.items()}
    for pacemakers in (silent | well, silent):
        found = survey.read(state, pacemakers=pacemakers)
        assert "/storms/wc-1" in found.nodes
        assert found.in_pacemakers == (["/workerbeats/wc-1"] if "d:1" in pacemakers else [])
        assert found.notes == [
            f"the Pacemaker {address} was not looked at: {error}"
            for address, error in errors.items()
        ]
