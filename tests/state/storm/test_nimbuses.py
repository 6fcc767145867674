import pytest

from stormkeeper.state import paths
from stormkeeper.state.memory_ensemble import MemoryEnsemble
from stormkeeper.state.paths import NimbusId
from stormkeeper.thrift.records import NimbusSummary


@pytest.fixture
def ensemble():
    """Callbacks run in its `deliver`."""
    return MemoryEnsemble(inline=True)


def summary(host="nimbus1.example", **changes):
    return NimbusSummary(host, 6627, changes.get("uptime_secs", 77), False, "2.8.0", 0)


def test_nimbuses_register_under_their_ids_and_are_read_in_their_order(storm, memory):
    second, first = summary("nimbus2.example"), summary()
    assert storm.nimbuses() == []
    storm.add_nimbus_host(NimbusId("nimbus2.example", 6627, 0), second)
    storm.add_nimbus_host("nimbus1.example:6627:0", first)
    assert storm.nimbuses() == [first, second]
    assert memory.get_children(paths.NIMBUSES) == [
        "nimbus1.example:6627:0",
        "nimbus2.example:6627:0",
    ]


def test_what_an_earlier_life_left_is_replaced(ensemble, storm):
    former = ensemble.session()
    former.set_ephemeral_node(paths.nimbus("nimbus1.example:6627:0"), b"left over")
    storm.add_nimbus_host("nimbus1.example:6627:0", summary(uptime_secs=1))
    former.close()
    assert [nimbus.uptime_secs for nimbus in storm.nimbuses()] == [1]
    assert storm.unreadable == 0


def test_those_of_storm_2_without_a_tls_port_are_read(storm):
    said = NimbusSummary("nimbus1.example", 6627, 77, True, "2.8.0")
    storm.add_nimbus_host("nimbus1.example:6627", said)
    assert storm.nimbuses() == [said]


def test_a_nimbus_that_comes_is_told(storm, ensemble):
    told = []
    storm.nimbuses(callback=lambda: told.append(1))
    storm.add_nimbus_host("nimbus1.example:6627:0", summary())
    ensemble.deliver()
    assert told == [1]
