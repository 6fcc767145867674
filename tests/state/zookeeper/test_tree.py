"""What others do between two requests of one operation, played by a server that a test scripts."""

import struct

import pytest

from stormkeeper.errors import (
    AccessDeniedError,
    NodeExistsError,
    OutcomeUnknownError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.zookeeper.ensemble_connection import EnsembleConnection
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings
from stormkeeper.state.zookeeper.tree import ROUNDS, Tree
from support.scripted_zookeeper import CREATE, ScriptedZooKeeper

DELETE, EXISTS, GET, LIST = 2, 3, 4, 8
OK, NO_NODE, NO_AUTH, EXISTS_ALREADY, NOT_EMPTY = 0, -101, -102, -110, -111

STAT = struct.pack("!qqqqiiiqiiq", 7, 8, 0, 0, 3, 0, 0, 0, 0, 0, 9)

#: That of another session's node.
THEIRS = struct.pack("!qqqqiiiqiiq", 7, 8, 0, 0, 0, 0, 0, 0x99, 0, 0, 9)


def text(value):
    return struct.pack("!i", len(value)) + value.encode()


def names(*values):
    return struct.pack("!i", len(values)) + b"".join(map(text, values))


@pytest.fixture
def tree():
    """Makes a tree at a server that expects requests, and answers each as it is told."""
    opened = []

    def tree(*script, otherwise=None):
        expected = iter(script)

        def serve(peer):
            peer.greet()
            while True:
                asked = peer.next().alone()
                if asked.type == -11:
                    peer.send(peer.answer(asked))
                    return
                kind, path, code, body = next(expected, otherwise)
                assert asked.type == kind
                assert path in (None, asked.path)
                if kind != CREATE:
                    peer.send(peer.answer(asked, body, code))
                elif code == OK:
                    peer.send(peer.results(asked, made=path))
                else:
                    peer.send(peer.results(asked, code))

        server = ScriptedZooKeeper(serve)
        connection = EnsembleConnection(
            EnsembleSettings(servers=(server.address,), call_timeout_secs=10.0), lambda _state: None
        )
        opened.append((server, connection, expected))
        connection.start()
        return Tree(connection, lambda _node: None), connection

    yield tree
    for server, connection, expected in opened:
        connection.close()
        with server:
            pass
        assert next(expected, None) is None, "not all of the script was asked for"


def watcher(_event):
    """At the end kazoo tells every watcher that there will be none."""


def test_a_node_that_is_made_before_its_watch_is_left_is_read(tree):
    tree, connection = tree(
        (GET, "/a", NO_NODE, b""),
        (GET, "/b", NO_NODE, b""),
        (EXISTS, "/a", OK, STAT),
        (EXISTS, "/b", NO_NODE, b""),
        (GET, "/a", OK, text("x") + STAT),
    )
    first, second = tree.read_many(["/a", "/b"], connection.deadline(), watcher)
    assert first[0] == b"x"
    assert first[1].version == 3
    assert second is None


def test_nodes_that_come_and_go_for_ever_are_an_error(tree):
    script = [(GET, "/a", NO_NODE, b""), (EXISTS, "/a", OK, STAT)] * ROUNDS
    tree, connection = tree(*script)
    with pytest.raises(StateError, match=f"read /a.*{ROUNDS} times"):
        tree.read_many(["/a"], connection.deadline(), watcher)


def test_one_that_may_not_be_read_is_told(tree):
    tree, connection = tree((GET, "/a", OK, text("x") + STAT), (GET, "/b", NO_AUTH, b""))
    with pytest.raises(AccessDeniedError, match="/b"):
        tree.read_many(["/a", "/b"], connection.deadline())


@pytest.mark.parametrize(
    "theirs", [(), ((CREATE, "/s", EXISTS_ALREADY, b""),)], ids=["before it is looked at", "after"]
)
def test_what_another_session_takes_meanwhile_is_left_with_it(tree, theirs):
    absent = ((EXISTS, "/s", NO_NODE, b""),) if theirs else ()
    tree, connection = tree(*absent, *theirs, (EXISTS, "/s", OK, THEIRS))
    with pytest.raises(
        NodeExistsError, match="/s again: session 0x99 made it meanwhile, and has it"
    ):
        tree.recreate_ephemeral("/s", b"mine", connection.deadline())


class TestDirectories:
    def test_what_may_not_be_looked_at_is_there(self, tree):
        tree, connection = tree((EXISTS, "/a", NO_AUTH, b""), (EXISTS, "/a", NO_AUTH, b""))
        tree.make_directory("/a", connection.deadline())
        assert tree.exists("/a", connection.deadline())

    def test_one_that_others_make_meanwhile(self, tree):
        tree, connection = tree((EXISTS, "/a", NO_NODE, b""), (CREATE, "/a", EXISTS_ALREADY, b""))
        tree.make_directory("/a", connection.deadline())

    def test_ancestors_that_may_not_be_looked_at_are_there(self, tree):
        tree, connection = tree(
            (EXISTS, "/a/b", NO_NODE, b""),
            (CREATE, "/a/b", NO_NODE, b""),
            (EXISTS, "/a", NO_AUTH, b""),
            (EXISTS, "/a/b", NO_NODE, b""),
            (CREATE, "/a/b", OK, b""),
        )
        tree.make_directory("/a/b", connection.deadline())


def test_deletion_that_stops_half_way_is_unknown(tree, monkeypatch):
    tree, connection = tree(
        (LIST, "/a", OK, names("b")), (LIST, "/a/b", OK, names()), (DELETE, "/a/b", OK, b"")
    )
    waits = []
    wait = connection._await_connection

    def lose_it(request, deadline):
        waits.append((request.what, request.path))
        if waits[-1] == ("delete", "/a"):
            raise StateUnavailableError("it is away")
        wait(request, deadline)

    monkeypatch.setattr(connection, "_await_connection", lose_it)
    with pytest.raises(OutcomeUnknownError, match="it is away; a part may be deleted already"):
        tree.delete("/a", connection.deadline())
    assert waits == [("list", "/a"), ("list", "/a/b"), ("delete", "/a/b"), ("delete", "/a")]


def test_deletion_that_stops_between_rounds_is_unknown(tree, monkeypatch):
    tree, connection = tree(
        (LIST, "/a", OK, names("b")),
        (LIST, "/a/b", OK, names()),
        (DELETE, "/a/b", OK, b""),
        (DELETE, "/a", NOT_EMPTY, b""),
    )
    lists = []
    wait = connection._await_connection

    def lose_it(request, deadline):
        lists.extend([request.path] * (request.what == "list"))
        if len(lists) == 3:
            raise StateUnavailableError("it is away")
        wait(request, deadline)

    monkeypatch.setattr(connection, "_await_connection", lose_it)
    with pytest.raises(OutcomeUnknownError, match="it is away; a part may be deleted already"):
        tree.delete("/a", connection.deadline())
    assert lists == ["/a", "/a/b", "/a"]
