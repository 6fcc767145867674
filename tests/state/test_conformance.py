"""What `ClusterState` promises, asked of every store."""

import itertools
import threading

import pytest

from stormkeeper.errors import InvalidPathError, NoNodeError, NotEmptyError, StateError
from stormkeeper.state.storage import DIRECTORY, VersionedData
from support.waiting import until


class TestValues:
    def test_what_was_set_is_read(self, state):
        state.set_data("/storms/wc-1", b"base")
        assert state.get_data("/storms/wc-1") == b"base"
        assert state.node_exists("/storms/wc-1")

    def test_absent_nodes(self, state):
        assert state.get_data("/absent") is None
        assert state.get_data_with_version("/absent") is None
        assert state.get_version("/absent") is None
        assert not state.node_exists("/absent")
        assert not state.node_exists("/absent/deeper")

    def test_an_empty_value_is_not_an_absent_node(self, state):
        state.set_data("/empty", b"")
        assert state.get_data("/empty") == b""

    def test_versions_count_the_changes_of_a_value(self, state):
        state.set_data("/a", b"0")
        assert state.get_version("/a") == 0
        state.set_data("/a", b"1")
        state.set_data("/a/child", b"")
        assert state.get_data_with_version("/a") == VersionedData(b"1", 1)

    def test_a_value_made_again_starts_at_version_0(self, state):
        state.set_data("/a", b"0")
        state.set_data("/a", b"1")
        state.delete_node("/a")
        state.set_data("/a", b"2")
        assert state.get_version("/a") == 0

    def test_sessions_share_what_is_stored(self, store, state):
        other = store.open()
        state.set_data("/shared", b"x")
        other.sync_path("/shared")
        assert other.get_data("/shared") == b"x"

    def test_values_outlive_the_session(self, store, state):
        state.set_data("/persistent", b"x")
        state.close()
        assert store.open().get_data("/persistent") == b"x"

    def test_large_values(self, state):
        data = bytes(range(256)) * 3_600
        state.set_data("/large", data)
        assert state.get_data("/large") == data


class TestDirectories:
    def test_a_directory_holds_the_byte_07_and_its_ancestors_nothing(self, state):
        state.mkdirs("/profilerconfigs/wc-1/deep")
        assert state.get_data("/profilerconfigs/wc-1/deep") == DIRECTORY == b"\x07"
        assert state.get_data("/profilerconfigs/wc-1") == b""
        assert state.get_data("/profilerconfigs") == b""

    def test_what_is_there_stays_as_it_is(self, state):
        state.set_data("/a/b", b"value")
        state.mkdirs("/a/b")
        state.mkdirs("/a/b/c")
        assert state.get_data_with_version("/a/b") == VersionedData(b"value", 0)
        state.mkdirs("/")

    def test_the_directory_of_a_value_is_made_with_it(self, state):
        state.set_data("/a/b/c", b"value")
        assert state.get_data("/a/b") == DIRECTORY
        assert state.get_data("/a") == b""

    def test_children_are_sorted_names(self, state):
        for name in ("b", "a", "ä", "B", "10", "9"):
            state.set_data(f"/top/{name}", b"")
        assert state.get_children("/top") == ["10", "9", "B", "a", "b", "ä"]
        assert state.get_children("/top/a") == []
        assert "top" in state.get_children("/")

    def test_children_of_an_absent_node_are_an_error_as_in_storm(self, state):
        with pytest.raises(NoNodeError, match="/absent"):
            state.get_children("/absent")
        with pytest.raises(NoNodeError):
            state.get_children("/absent", watch=True)

    def test_many_at_once_make_the_same_directory(self, store):
        sessions = [store.open() for _ in range(3)]
        failures = []

        def make(session, number):
            try:
                session.mkdirs("/race/to/one/directory")
                session.set_data(f"/race/to/values/{number % 3}", b"x")
            except StateError as error:
                failures.append(error)

        threads = [
            threading.Thread(target=make, args=(session, number))
            for number, session in enumerate(sessions * 4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert sessions[0].get_data("/race/to/one/directory") == DIRECTORY
        assert sessions[0].get_children("/race/to/values") == ["0", "1", "2"]


class TestDeleting:
    def test_a_node_goes_with_all_below_it_and_nothing_else(self, state):
        for path in ("/t/a/b/c", "/t/a/b/d", "/t/ab", "/t/z"):
            state.set_data(path, b"x")
        state.delete_node("/t/a")
        assert state.get_children("/t") == ["ab", "z"]
        assert not state.node_exists("/t/a/b/c")

    def test_an_absent_node_is_fine(self, state):
        state.delete_node("/absent")
        state.delete_node("/absent/deeper")

    def test_the_root_stays(self, state):
        with pytest.raises(InvalidPathError, match="root"):
            state.delete_node("/")

    def test_what_others_add_meanwhile_goes_too(self, store, state):
        other = store.open()
        state.mkdirs("/busy")
        stop = threading.Event()

        def fill():
            for number in itertools.count():
                other.set_data(f"/busy/{number % 20}/x", b"x")
                if stop.wait(0.005):
                    break

        filler = threading.Thread(target=fill)
        filler.start()
        try:
            for _ in range(5):
                until(lambda: other.node_exists("/busy/3/x"))
                state.delete_node("/busy")
        finally:
            stop.set()
            filler.join()
        state.delete_node("/busy")
        assert not state.node_exists("/busy")

    def test_many_at_once_delete_the_same_tree(self, store):
        sessions = [store.open() for _ in range(3)]
        for number in range(200):
            sessions[0].set_data(f"/tree/{number % 10}/{number}", b"")
        failures = []

        def delete(session):
            try:
                session.delete_node("/tree")
            except StateError as error:
                failures.append(error)

        threads = [threading.Thread(target=delete, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert not sessions[0].node_exists("/tree")


class TestEphemeralNodes:
    def test_they_end_with_their_session(self, store, state):
        state.set_ephemeral_node("/supervisors/s-1", b"info")
        other = store.open()
        assert other.get_data("/supervisors/s-1") == b"info"
        assert other.get_data("/supervisors") == DIRECTORY
        state.close()
        until(lambda: not other.node_exists("/supervisors/s-1"))
        assert other.get_children("/supervisors") == []

    def test_ones_own_is_set_again(self, store, state):
        state.set_ephemeral_node("/s", b"1")
        state.set_ephemeral_node("/s", b"2")
        assert state.get_data_with_version("/s") == VersionedData(b"2", 1)
        other = store.open()
        state.close()
        until(lambda: not other.node_exists("/s"))

    def test_what_an_earlier_session_left_is_replaced(self, store):
        former, state = store.open(), store.open()
        former.set_ephemeral_node("/s", b"former")
        state.set_ephemeral_node("/s", b"now")
        assert state.get_data_with_version("/s") == VersionedData(b"now", 0)
        former.close()
        assert state.get_data("/s") == b"now"

    def test_a_persistent_node_is_replaced(self, store, state):
        state.set_data("/s", b"persistent")
        state.set_ephemeral_node("/s", b"ephemeral")
        other = store.open()
        state.close()
        until(lambda: not other.node_exists("/s"))

    def test_a_node_with_children_is_not_replaced(self, state):
        state.set_data("/s/child", b"x")
        with pytest.raises(NotEmptyError):
            state.set_ephemeral_node("/s", b"ephemeral")
        assert state.get_children("/s") == ["child"]

    def test_a_set_value_keeps_it_ephemeral(self, store, state):
        state.set_ephemeral_node("/s", b"1")
        state.set_data("/s", b"2")
        other = store.open()
        assert other.get_data("/s") == b"2"
        state.close()
        until(lambda: not other.node_exists("/s"))

    @pytest.mark.parametrize(
        "operation",
        [
            lambda state: state.set_data("/s/child", b""),
            lambda state: state.set_ephemeral_node("/s/child", b""),
            lambda state: state.mkdirs("/s/child"),
            lambda state: state.set_data("/s/child/deeper", b""),
            lambda state: state.create_sequential("/s/e", b""),
        ],
    )
    def test_they_have_no_children(self, state, operation):
        state.set_ephemeral_node("/s", b"")
        with pytest.raises(StateError, match="ephemeral") as caught:
            operation(state)
        assert type(caught.value) is StateError


class TestSequentialNodes:
    def test_names_grow(self, state):
        state.mkdirs("/errors/wc-1/bolt")
        made = [state.create_sequential("/errors/wc-1/bolt/e", str(n).encode()) for n in range(3)]
        assert made == [f"/errors/wc-1/bolt/e{n:010d}" for n in range(3)]
        assert [state.get_data(path) for path in made] == [b"0", b"1", b"2"]

    def test_numbers_are_not_used_twice(self, state):
        state.delete_node(state.create_sequential("/q/e", b""))
        assert state.create_sequential("/q/e", b"") == "/q/e0000000001"

    def test_ancestors_are_made(self, state):
        assert state.create_sequential("/x/y/e", b"") == "/x/y/e0000000000"
        assert state.get_data("/x/y") == DIRECTORY

    def test_they_end_with_their_session(self, store, state):
        path = state.create_sequential("/q/e", b"")
        other = store.open()
        state.close()
        until(lambda: not other.node_exists(path))


class TestPaths:
    def test_what_is_no_path(self, state):
        wrong = ("", "a", "a/b", "/a/", "//", "/a//b", "/a/./b", "/..", "/a\x00b", "/\ud800", "/🐘")
        calls = (
            *(state.get_data, state.get_data_with_version, state.get_version, state.node_exists),
            *(state.get_children, state.mkdirs, state.delete_node, state.sync_path),
            lambda path: state.set_data(path, b""),
            lambda path: state.set_ephemeral_node(path, b""),
            lambda path: state.create_sequential(path, b""),
        )
        for path in wrong:
            for call in calls:
                with pytest.raises(InvalidPathError, match="path"):
                    call(path)

    def test_any_other_name(self, state):
        path = "/errors/wc-1/split+bolt%2F%C3%A9/ü 漢=:*"
        state.set_data(path, b"x")
        assert state.get_data(path) == b"x"
        assert state.get_children("/errors/wc-1/split+bolt%2F%C3%A9") == ["ü 漢=:*"]
