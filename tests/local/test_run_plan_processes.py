"""The description of a local cluster's processes."""

from pathlib import Path

import pytest

from stormkeeper.conf import Address, load
from stormkeeper.daemon.children import RUN_MARK
from stormkeeper.local.run_plan import RunSite, ServerAddresses, plan_processes


def here(*ports):
    return tuple(Address("127.0.0.1", port) for port in ports)


_PLACES = ServerAddresses(*here(2181), here(6701, 6702), here(6627, 6628))
SITE = RunSite(Path("/run"), "a mark", _PLACES, cores=4)


def rows_of(*overrides, pipeline=True):
    planned = plan_processes(load(files=(), overrides=overrides), SITE, pipeline=pipeline)
    return {each.name: each for each in planned}


@pytest.fixture
def rows():
    return rows_of()


def options(planned):
    """Return what comes behind ``python -P -m``."""
    assert planned.command[1:3] == ("-P", "-m")
    return list(planned.command[3:])


def test_who_is_there(rows):
    assert list(rows) == [
        *("zookeeper", "nimbus 1", "nimbus 2", "supervisor 1", "supervisor 2"),
        *("pacemaker 1", "pacemaker 2", "pipeline"),
    ]


def test_the_pipeline_can_be_left_out(rows):
    assert rows.keys() - rows_of(pipeline=False) == {"pipeline"}


def test_what_the_others_rest_on_is_stopped_after_them(rows):
    order = [[n for n in rows if rows[n].stop_order == number] for number in (1, 2, 3)]
    assert order == [
        ["nimbus 1", "nimbus 2", "supervisor 1", "supervisor 2", "pipeline"],
        ["pacemaker 1", "pacemaker 2"],
        ["zookeeper"],
    ]


def test_each_server_has_its_own_port_and_folder(rows):
    common = ["--config", "/run/cluster.yaml"]
    assert options(rows["zookeeper"]) == ["stormkeeper", "dev-zookeeper", *common]
    for name, port in (("pacemaker 1", 6701), ("pacemaker 2", 6702)):
        own = ["-c", f"pacemaker.port={port}"]
        assert options(rows[name]) == ["stormkeeper", "pacemaker", *common, *own]
        assert rows[name].address == f"127.0.0.1:{port}"
    for number, port in ((1, 6627), (2, 6628)):
        own = ["-c", f"nimbus.thrift.port={port}"]
        own += ["-c", f'storm.local.dir="/run/nimbus-{number}"']
        assert options(rows[f"nimbus {number}"]) == ["stormkeeper", "nimbus", *common, *own]


def slots(rows):
    return [options(rows[name])[5] for name in SITE.machines]


def test_supervisors_share_the_cores_of_the_machine_by_default(rows):
    for name in SITE.machines:
        assert "supervisor.cpu.capacity=200" in options(rows[name])
        told = options(rows_of("supervisor.cpu.capacity=300")[name])
        assert not any("capacity" in option for option in told)


def test_each_supervisor_has_one_slot_unless_the_user_says_which(rows):
    assert slots(rows) == ["supervisor.slots.ports=[6700]", "supervisor.slots.ports=[6701]"]
    chosen = rows_of("supervisor.slots.ports=[1, 2]")
    assert slots(chosen) == ["supervisor.slots.ports=[1, 2]"] * 2


@pytest.mark.parametrize(
    ("name", "line", "note"),
    [
        ("zookeeper", "zookeeper listening on a:1", "zookeeper listens on a:1"),
        ("pacemaker 2", "pacemaker listening on a:1", "pacemaker 2 listens on a:1"),
        ("nimbus 1", "nimbus listening on a:1", "nimbus 1 listens on a:1"),
        ("supervisor 1", "supervisor ready an-id", "supervisor 1 has the slots 6700"),
        ("pipeline", "pipeline writing to /a b", "pipeline writes its tables to /a b"),
    ],
)
def test_what_says_that_it_is_ready(rows, name, line, note):
    planned = rows[name]
    assert planned.ready_note.format(planned.ready.search(line).group(1)) == note


def test_all_carry_the_mark():
    environment = SITE.environment()
    assert environment[RUN_MARK] == "a mark"
    assert environment["TMPDIR"] == "/run/tmp"
