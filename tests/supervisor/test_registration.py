"""What a supervisor says of itself."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import stormkeeper
from stormkeeper import conf
from stormkeeper.nimbus.scheduling import cluster
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor import registration
from stormkeeper.supervisor.registration import Machine, MachineStatus, Registration, info
from stormkeeper.supervisor.slot_model import SlotAssignment
from stormkeeper.supervisor.slots import SlotState, SlotStatus
from stormkeeper.thrift import records as thrift
from stormkeeper.thrift.records import LaunchClaim
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.plan import Claim
from support.memory_state import MemoryEnsemble
from support.waiting import until

MACHINE = Machine(
    supervisor_id="sup-a-10.0.0.1",
    hostname="a.example",
    ports=(6700, 6701),
    memory_mb=4096.0,
    cpu_percent=400.0,
    http_port=9700,
)


def test_a_nimbus_reads_what_was_meant():
    facts = MachineStatus(
        used_ports=frozenset({6701}), stopped={6700: LaunchClaim(7, 3)}, refuses="the disk is full"
    )
    said = info(MACHINE, facts, now=1_700_000_000.9, uptime_secs=60.5)
    assert (said.time_secs, said.version) == (1_700_000_000, stormkeeper.__version__)
    assert (said.assignment_id, said.http_port) == (MACHINE.supervisor_id, 9700)
    read = cluster.supervisor_from_record(MACHINE.supervisor_id, said)
    assert (read.host, read.ports, read.running) == ("a.example", {6700, 6701}, {6701})
    assert (read.memory_mb, read.uptime_secs) == (4096, 60)
    assert read.stopped == {6700: Claim(7, 3)}
    assert read.refuses == "the disk is full"


def test_what_is_configured_counts():
    chosen = conf.defaults().with_values(
        {
            "storm.local.hostname": "a.example",
            "supervisor.slots.ports": [6700, 6701],
            "supervisor.memory.capacity.mb": 4096,
            "supervisor.cpu.capacity": 400,
        }
    )
    assert Machine.from_conf(chosen, MACHINE.supervisor_id, 9700) == MACHINE


def test_by_default_it_is_what_the_machine_has():
    machine = Machine.from_conf(conf.defaults(), "sup", None)
    lines = Path("/proc/meminfo").read_text()
    [kib] = map(int, re.findall(r"MemTotal: +(\d+) kB", lines))
    assert machine.memory_mb == pytest.approx(kib / 1024, rel=0.01)
    assert machine.cpu_percent == 100 * os.cpu_count()
    assert machine.hostname


def test_a_host_without_an_address_is_at_home():
    assert registration.address("localhost") == "127.0.0.1"
    assert registration.address("::1") == "::1"
    assert registration.address("no-such-host.invalid") == "127.0.0.1"


WORK = SlotAssignment("wc-1-1", {"out": "1-2-0"})
CRASHING = SlotStatus(SlotState.BACKING_OFF, WORK, None, 3, "it ended by SIGKILL\nin short", 1_000)
RUNNING = SlotStatus(SlotState.RUNNING, WORK, "w1", 0, "")


def test_a_slot_says_since_when_it_does_what_it_does():
    first = registration.slot_reports({6700: CRASHING, 6701: RUNNING}, {}, 50.5)
    again = registration.slot_reports({6700: CRASHING}, first, 60)
    assert (again, again[6700].since_secs) == (first, 50)
    starting = replace(CRASHING, state=SlotState.WAITING_FOR_WORKER_START)
    assert registration.slot_reports({6700: starting}, again, 70)[6700].since_secs == 70


@pytest.fixture
def storm():
    storm = StormClusterState(MemoryEnsemble().session(), Codec())
    yield storm
    storm.disconnect()


def test_it_is_written_at_first_and_at_each_change(storm):
    registered = Registration(storm, MACHINE, period_secs=600)
    registered.refuse("it is too hot")
    registered.start()
    try:
        assert registered.done.wait(60)

        def said():
            return storm.supervisor_info(MACHINE.supervisor_id)

        assert (said().used_ports, said().refuses) == ([], "it is too hot")
        registered.update(frozenset({6701, 6700}), {6700: LaunchClaim(7, 3)})
        until(lambda: said().used_ports == [6700, 6701])
        assert said().stopped_workers == {6700: LaunchClaim(7, 3)}
        registered.update(frozenset(), {}, {6700: CRASHING, 6701: RUNNING})
        until(lambda: said().slots)
        [(port, slot)] = said().slots.items()
        assert (port, slot.claim, slot.state) == (6700, LaunchClaim(1, 2), "backing_off")
        assert slot.crashes == thrift.CrashSeries(3, 1_000, "it ended by SIGKILL")
        registered.refuse(None)
        until(lambda: said().refuses is None)
        assert registered.refuses is None
    finally:
        registered.close()
