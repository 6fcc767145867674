"""Nimbuses by their hosts, as Storm's register themselves, and several on one machine."""

import pytest

from stormkeeper import paths
from stormkeeper.errors import NoNodeError, StateUnavailableError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import NimbusSummary
from stormkeeper.thrift.serialization import Codec
from support.memory_state import MemoryEnsemble
from support.waiting import until
from support.zookeeper import expire_behind_cut

HOST = "nimbus1.example"


@pytest.fixture
def ensemble():
    """Callbacks run in its `deliver`."""
    return MemoryEnsemble(inline=True)


@pytest.fixture
def other(open_storm):
    """Another process."""
    return open_storm()


def summary(host=HOST, port=6627, **changes):
    return NimbusSummary(host, port, changes.get("uptime_secs", 77), False, "2.8.0", 0)


def registered(memory):
    """What is registered where, by the ports that the records have."""
    nodes = memory.children_data(paths.NIMBUSES)
    return {name: Codec().read(NimbusSummary, node.data).port for name, node in nodes.items()}


def test_nimbuses_register_by_host_and_are_read_in_order(storm, other, memory):
    second, first = summary("nimbus2.example"), summary()
    assert storm.nimbuses() == []
    storm.add_nimbus_host(second)
    other.add_nimbus_host(first)
    assert storm.nimbuses() == [first, second]
    assert memory.get_children(paths.NIMBUSES) == [HOST, "nimbus2.example"]


def test_a_nimbus_says_something_new(storm, memory):
    storm.add_nimbus_host(summary())
    storm.add_nimbus_host(summary(uptime_secs=1))
    assert storm.nimbuses() == [summary(uptime_secs=1)]
    assert memory.get_children(paths.NIMBUSES) == [HOST]


def test_what_an_earlier_life_left_is_replaced(ensemble, storm, memory):
    former = ensemble.session()
    for left in (Codec().write(summary()), b"left over"):
        former.set_ephemeral_node(paths.nimbus(HOST), left)
        storm.add_nimbus_host(summary(uptime_secs=1))
        assert memory.get_stat(paths.nimbus(HOST)).owner == memory.session_id
    former.close()
    assert [nimbus.uptime_secs for nimbus in storm.nimbuses()] == [1]
    assert storm.unreadable == 0


class TestSeveralOnOneMachine:
    def test_the_second_has_its_port_in_its_name(self, storm, other, memory):
        storm.add_nimbus_host(summary())
        for _ in range(2):
            other.add_nimbus_host(summary(port=6628))
            assert registered(memory) == {HOST: 6627, f"{HOST}:6628": 6628}
        assert storm.nimbuses() == [summary(), summary(port=6628)]

    def test_two_of_one_process_are_two(self, storm, memory):
        storm.add_nimbus_host(summary())
        storm.add_nimbus_host(summary(port=6628))
        assert registered(memory) == {HOST: 6627, f"{HOST}:6628": 6628}

    def test_second_nimbus_takes_a_free_place_with_its_next_update(self, storm, other, memory):
        other.add_nimbus_host(summary())
        storm.add_nimbus_host(summary(port=6628))
        other.disconnect()
        storm.add_nimbus_host(summary(port=6628, uptime_secs=1))
        assert registered(memory) == {HOST: 6628}

    def test_one_of_storm_s_is_the_first(self, ensemble, storm, memory):
        theirs = ensemble.session()
        theirs.set_ephemeral_node(paths.nimbus(HOST), Codec().write(summary()))
        storm.add_nimbus_host(summary(port=6628))
        assert registered(memory) == {HOST: 6627, f"{HOST}:6628": 6628}

    def test_of_two_simultaneous_nimbuses_one_finds_another_place(
        self, ensemble, storm, other, memory, monkeypatch
    ):
        read = memory.read_many

        def late(paths, watch=False):
            found = read(paths, watch)
            monkeypatch.undo()
            other.add_nimbus_host(summary())
            return found

        monkeypatch.setattr(memory, "read_many", late)
        storm.add_nimbus_host(summary(port=6628))
        assert registered(memory) == {HOST: 6628}
        ensemble.deliver()
        assert registered(memory) == {HOST: 6628, f"{HOST}:6627": 6627}


class TestAfterALostSession:
    def test_each_has_its_place_again(self, ensemble, storm, other, memory):
        storm.add_nimbus_host(summary())
        other.add_nimbus_host(summary(port=6628))
        for process in (other, storm):
            ensemble.expire(process.state)
            ensemble.deliver()
        assert registered(memory) == {HOST: 6627, f"{HOST}:6628": 6628}

    def test_whose_place_was_taken_meanwhile_goes_to_another(self, ensemble, storm, other, memory):
        storm.add_nimbus_host(summary())
        ensemble.suspend(storm.state)
        ensemble.end_session(storm.state)
        other.add_nimbus_host(summary(port=6628))
        ensemble.resume(storm.state)
        ensemble.deliver()
        assert registered(other.state) == {HOST: 6628, f"{HOST}:6627": 6627}
        assert storm.state.unregistered == []
        # It is a registration like any other: it comes back, too.
        ensemble.expire(storm.state)
        ensemble.deliver()
        assert registered(memory) == {HOST: 6628, f"{HOST}:6627": 6627}

    def test_search_for_a_place_resumes_with_the_connection(self, ensemble, storm, other, memory):
        listening = list(memory._callbacks._listeners)
        storm.add_nimbus_host(summary())
        ensemble.suspend(storm.state)
        ensemble.end_session(storm.state)
        other.add_nimbus_host(summary(port=6628))
        ensemble.resume(storm.state)
        for _ in range(3):
            ensemble.suspend(storm.state)
            ensemble.deliver()
            assert registered(other.state) == {HOST: 6628}
            ensemble.resume(storm.state)
            ensemble.suspend(storm.state)
            ensemble.deliver()
        ensemble.resume(storm.state)
        ensemble.deliver()
        assert registered(memory) == {HOST: 6628, f"{HOST}:6627": 6627}
        assert memory._callbacks._listeners == listening

    def test_nimbus_that_moved_is_never_at_two_places(self, ensemble, storm, other):
        storm.add_nimbus_host(summary())
        ensemble.suspend(storm.state)
        ensemble.end_session(storm.state)
        other.add_nimbus_host(summary(port=6628))
        ensemble.resume(storm.state)
        ensemble.deliver()
        other.disconnect()
        ensemble.expire(storm.state)
        ensemble.deliver()
        assert [nimbus.port for nimbus in storm.nimbuses()] == [6627]

    def test_what_a_later_life_has_is_left_to_it(self, ensemble, storm, other, memory):
        storm.add_nimbus_host(summary())
        ensemble.suspend(storm.state)
        ensemble.end_session(storm.state)
        other.add_nimbus_host(summary(uptime_secs=1))
        ensemble.resume(storm.state)
        ensemble.deliver()
        assert storm.nimbuses() == [summary(uptime_secs=1)]
        assert memory.get_stat(paths.nimbus(HOST)).owner == other.state.session_id

    def test_after_the_end_nothing_is_registered(self, ensemble, storm, other, memory):
        other.add_nimbus_host(summary())
        other.disconnect()
        ensemble.deliver()
        assert storm.nimbuses() == []
        with pytest.raises(NoNodeError):
            memory.get_children(f"{paths.NIMBUSES}/{HOST}")


def test_an_answer_that_is_lost_leaves_no_second_registration(ensemble, storm, memory):
    ensemble.lose_answer(storm.state, applied=True)
    with pytest.raises(StateUnavailableError):
        storm.add_nimbus_host(summary())
    ensemble.resume(storm.state)
    storm.add_nimbus_host(summary())
    assert registered(memory) == {HOST: 6627}


@pytest.mark.zookeeper
def test_on_zookeeper_each_finds_a_place(connect, proxy, zookeeper_server):
    first = StormClusterState(connect(proxy.address), Codec())
    second = StormClusterState(connect(), Codec())
    first.add_nimbus_host(summary())
    second.add_nimbus_host(summary(port=6628))
    assert registered(second.state) == {HOST: 6627, f"{HOST}:6628": 6628}
    proxy.cut()
    expire_behind_cut(first.state, zookeeper_server)
    until(lambda: registered(second.state) == {f"{HOST}:6628": 6628})
    second.add_nimbus_host(summary(port=6628))
    assert registered(second.state) == {HOST: 6628}
    proxy.mend()
    until(lambda: registered(second.state) == {HOST: 6628, f"{HOST}:6627": 6627})


@pytest.mark.parametrize("name", [HOST, f"{HOST}:6627", f"{HOST}:6627:0"])
def test_all_names_are_read(ensemble, storm, name):
    """Storm's own, that of a second one, and what is in the tree of old."""
    said = NimbusSummary(HOST, 6627, 77, True, "2.8.0")
    ensemble.session().set_ephemeral_node(paths.nimbus(name), Codec().write(said))
    assert storm.nimbuses() == [said]


def test_a_nimbus_that_comes_is_told(storm, ensemble):
    told = []
    storm.nimbuses(callback=lambda: told.append(1))
    storm.add_nimbus_host(summary())
    ensemble.deliver()
    assert told == [1]
