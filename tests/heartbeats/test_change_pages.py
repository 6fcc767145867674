import itertools
import random
import threading

import pytest

from stormkeeper.errors import RemoteProtocolError, UnsupportedExtensionError
from stormkeeper.heartbeats.change_pages import (
    WITHOUT_REVISIONS,
    Part,
    Position,
    look,
    pages,
    pages_of_part,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.wire.messages import RESERVED_PATH, Changes, Message, MessageType, Pulse
from stormkeeper.thrift.pacemaker import ServerInfo
from stormkeeper.thrift.serialization import Compression, serialize
from support.heartbeats import path
from support.messages import columns_of
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, answered


def read(client, position, page_size=0, root="/workerbeats", **options):
    return list(pages(client, root, position, page_size=page_size, **options))


def after(client, revision=0):
    return Position(client.server_info().instance, revision)


def paths(pages):
    return [change.path for page in pages for change in page.changes]


def test_all_pages_of_what_is_new_are_read_in_order(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        for number in range(10):
            client.send_pulse(path(f"t-{number}"), b"%d" % number)
        found = read(client, after(client), page_size=3)
        assert len(found) == 4
        assert paths(found) == [path(f"t-{number}") for number in range(10)]
        changes = [change for page in found for change in page.changes]
        assert [change.details for change in changes] == [b"%d" % n for n in range(10)]
        assert [change.revision for change in changes] == list(range(1, 11))
        assert all(0 <= change.age_secs < 60 for change in changes)
        assert not any(page.is_anew for page in found)
        assert paths(read(client, after(client, 7))) == [path(f"t-{n}") for n in (7, 8, 9)]


def test_a_value_is_read_once_and_a_deleted_one_as_a_tombstone(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("a"), b"1")
        client.send_pulse(path("b"), b"2")
        client.send_pulse(path("a"), b"3")
        client.delete_path("/workerbeats/b")
        client.send_pulse("/elsewhere/c", b"4")
        (page,) = read(client, after(client))
        found = [(change.path, change.details) for change in page.changes]
        assert found == [(path("a"), b"3"), (path("b"), None)]


def test_what_comes_after_the_planning_is_read_too(pacemaker):
    """Or a worker that beats in step with the triggers would never be seen."""
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("a"), b"1")
        planned = after(client)
        client.send_pulse(path("a"), b"2")
        (page,) = read(client, planned)
        assert [change.details for change in page.changes] == [b"2"]


def test_a_reading_ends_though_workers_beat_faster(pacemaker):
    names = [path(f"t-{number}") for number in range(50)]
    with PacemakerClient(pacemaker.address) as client:
        for name in names:
            client.send_pulse(name, b"1")
        found, beating = [], itertools.cycle(names)
        for page in pages(client, "/workerbeats", after(client), page_size=4):
            found.append(page)
            assert len(found) < 2 * 50 / 4
            for name in itertools.islice(beating, 6):
                client.send_pulse(name, b"2")
        assert {*paths(found)} == {*names}


def test_a_restarted_server_is_read_from_its_beginning(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        for number in range(5):
            client.send_pulse(path(f"t-{number}"), b"old")
        planned = after(client, 4)
    pacemaker.restart()
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("new"), b"1")
        found = read(client, planned)
        assert paths(found) == [path("new")]
        assert found[-1].is_anew
        assert found[-1].position.instance == client.server_info().instance
        assert found[-1].position.instance != planned.instance


def test_ages_and_sizes_come_without_values(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("a"), b"four")
        client.send_pulse(path("b"), b"")
        client.delete_path("/workerbeats/b")
        (page,) = read(client, None, values=False)
    assert [(c.path, c.size, c.details) for c in page.changes] == [
        (path("a"), 4, None),
        (path("b"), None, None),
    ]
    assert all(0 <= change.age_secs < 60 for change in page.changes)


def test_a_look_has_what_is_new_since_the_one_that_was_taken_in(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("a"), b"1")
        first = look(client)
        assert (paths(first.pages), first.is_anew, first.revisions) == ([path("a")], True, 1)
        for number in range(3):
            client.send_pulse(path("b"), b"%d" % number)
        for _ in range(2):  # the first of them may have been lost by the reader
            second = look(client, position=first.position)
            assert (paths(second.pages), second.is_anew, second.revisions) == (
                [path("b")],
                False,
                3,
            )
            assert second.info.keys == 2
        third = look(client, position=second.position)
        assert (paths(third.pages), third.is_anew, third.revisions) == ([], False, 0)


def test_a_look_at_a_server_that_was_started_again_begins_anew(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("a"), b"1")
        client.send_pulse(path("b"), b"1")
        before = look(client).position
    pacemaker.restart()
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("new"), b"1")
        found = look(client, position=before)
    assert (paths(found.pages), found.is_anew, found.revisions) == ([path("new")], True, 1)


def test_pages_that_go_round_in_a_circle_break_the_protocol():
    def circling(connection):
        while True:
            request = connection.request()
            if request.type == MessageType.CHANGES:
                kind, answer = MessageType.CHANGES_RESPONSE, {"changes": page}
            else:
                kind, answer = MessageType.GET_PULSE_RESPONSE, {"pulse": told}
            connection.answer(Message(kind, request.message_id, **answer))

    page = Changes("x", 9, columns_of([]), more=True, reset=False, next=0)
    info = ServerInfo("x", 0, 0, ["changes"], "1", 9, 0, 0, 0)
    told = Pulse(RESERVED_PATH, serialize(info, Compression.PLAIN))
    with (
        ScriptedPacemaker(circling) as server,
        PacemakerClient(server.address, retries=0) as client,
        pytest.raises(RemoteProtocolError, match="more changes follow revision 0"),
    ):
        read(client, None)


def test_a_java_pacemaker_has_no_changes_to_look_at():
    with (
        ScriptedPacemaker(JavaPacemaker()) as server,
        PacemakerClient(server.address) as client,
        pytest.raises(UnsupportedExtensionError),
    ):
        look(client)


def test_a_java_pacemaker_is_walked():
    java = JavaPacemaker()
    java.store = {
        path("wc-1-17", "a", 1): b"1",
        path("wc-1-17", "b", 2): b"2",
        path("wc-1-1700000000", "a", 3): b"3",
        "/elsewhere/x": b"4",
    }
    java_position = Position(WITHOUT_REVISIONS, 0)
    with ScriptedPacemaker(java) as server, PacemakerClient(server.address) as client:
        found = [change for page in read(client, java_position) for change in page.changes]
        assert {r.path: r.details for r in found} == {
            key: value for key, value in java.store.items() if key.startswith("/workerbeats")
        }
        assert all(r.revision is None and r.age_secs is None for r in found)
        everything = read(client, java_position, root="/")
        assert sorted(paths(everything)) == sorted(java.store)
        leaf = read(client, java_position, root=path("wc-1-17", "a", 1))
        assert paths(leaf) == [path("wc-1-17", "a", 1)]


def test_many_pulses_of_a_java_pacemaker_come_in_several_pages():
    java = JavaPacemaker()
    java.store = {path(f"t-{n % 3}", f"n{n}"): b"%d" % n for n in range(950)}
    with ScriptedPacemaker(java) as server, PacemakerClient(server.address) as client:
        found = read(client, Position(WITHOUT_REVISIONS, 0))
    assert len(found) == 10, "a hundred at most in each"
    assert {r.path: r.details for page in found for r in page.changes} == java.store


def test_names_listed_by_a_java_pacemaker_by_mistake_are_skipped():
    """It matches paths as texts: /wc-1-17 seems to have the child 00000000 of /wc-1-1700000000."""

    class Java(JavaPacemaker):
        def __call__(self, connection):
            while True:
                request = connection.request()
                answer = answered(self.store, request)
                if request.path == "/workerbeats/wc-1-17" and answer.nodes is not None:
                    answer.nodes = sorted([*answer.nodes, "00000000", ""])
                connection.answer(answer)

    java = Java()
    java.store = {path("wc-1-17", "a", 1): b"1", path("wc-1-1700000000", "b", 2): b"2"}
    with ScriptedPacemaker(java) as server, PacemakerClient(server.address) as client:
        found = read(client, Position(WITHOUT_REVISIONS, 0))
    assert sorted(paths(found)) == sorted(java.store)


def parts_of(client, position, count, root="/workerbeats", **options):
    """The changes of each part."""
    return [
        [
            change
            for page in pages_of_part(client, root, position, Part(number, count), **options)
            for change in page.changes
        ]
        for number in range(count)
    ]


def test_parts_divide_topologies_and_have_together_what_there_is(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        for number in range(20):
            for node in "ab":
                client.send_pulse(f"/workerbeats/t-{number}/{node}-1", b"x")
        client.send_pulse("/workerbeats", b"of the path itself")
        client.delete_path("/workerbeats/t-3")
        client.send_pulse("/elsewhere/t-1", b"x")
        found = parts_of(client, after(client), 4, page_size=3)
        all_found = [change for part in found for change in part]
        assert values_of(all_found) == values_of(
            change for page in read(client, after(client)) for change in page.changes
        )
        topologies = [{c.path.split("/")[2] for c in part if "/t-" in c.path} for part in found]
        assert sum(map(len, topologies)) == len(set.union(*topologies)) == 20
        assert min(map(len, topologies)) > 0
        # What is new, and nothing else.
        now = after(client, client.server_info().revision)
        client.send_pulse("/workerbeats/t-5/a-1", b"y")
        client.send_pulse("/workerbeats/new/a-1", b"z")
        client.delete_path("/workerbeats/t-6")
        news = values_of(change for part in parts_of(client, now, 4) for change in part)
        assert sorted(value or b"" for _, value, _ in news) == [b"", b"", b"y", b"z"]


def values_of(changes):
    """What does not depend on when it was asked for."""
    return sorted((change.path, change.details, change.revision) for change in changes)


def test_parts_of_a_server_that_was_started_again_begin_anew(start_pacemaker):
    server = start_pacemaker()
    with PacemakerClient(server.address) as client:
        client.send_pulse(path("a"), b"1")
        (page,) = pages_of_part(client, "/workerbeats", Position("before", 7), Part(0, 1))
        assert (page.is_anew, [change.path for change in page.changes]) == (True, [path("a")])
        client.send_pulse("/workerbeats", b"2")
        pages = pages_of_part(client, "/workerbeats", Position("before", 7), Part(0, 1))
        assert [page.is_anew for page in pages] == [True, True]


def test_parts_miss_nothing_while_everything_changes(pacemaker):
    """Each reading goes on where the server stood when the one before was planned."""
    stop, chance = threading.Event(), random.Random(12)

    def change():
        with PacemakerClient(pacemaker.address) as client:
            while not stop.is_set():
                topology, worker = chance.randrange(12), chance.randrange(3)
                if chance.random() < 0.1:
                    client.delete_path(f"/workerbeats/t-{topology}")
                else:
                    client.send_pulse(f"/workerbeats/t-{topology}/n-{worker}", b"x")

    def take(position):
        planned = after(client, client.server_info().revision)
        for part in parts_of(client, position, 3):
            for found in part:
                newer = (known.get(found.path) or found).revision <= found.revision
                known[found.path] = found if newer else known[found.path]
        return planned

    known = {}
    writer = threading.Thread(target=change)
    with PacemakerClient(pacemaker.address) as client:
        writer.start()
        position = after(client)
        for _ in range(40):
            position = take(position)
        stop.set()
        writer.join()
        take(position)
        held = [change for page in read(client, after(client)) for change in page.changes]
        assert {p: c.revision for p, c in known.items()} == {c.path: c.revision for c in held}
