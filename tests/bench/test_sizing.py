import dataclasses

import pytest
from pacemaker.sizing import Assumptions, size

ASSUMED = Assumptions(
    cpu_secs_per_pulse=20e-6,
    memory_per_payload=1.25,
    memory_empty_mib=30.0,
    changes_per_sec=100_000.0,
)


def with_(**changes):
    return dataclasses.replace(ASSUMED, **changes)


def test_a_cluster_of_3000_nodes_beats_24000_times_a_second():
    found = size(3_000, ASSUMED)
    assert found.workers == 72_000
    assert found.pulses_per_sec == 24_000
    assert found.cores == pytest.approx(0.48)


def test_memory_is_of_values_and_of_each_empty_pacemaker():
    values = 72_000 * 3_072 * 1.25 / 2**20
    assert size(3_000, ASSUMED).pacemakers == 2
    assert size(3_000, ASSUMED).memory_mib == pytest.approx(values + 2 * 30)
    more = size(3_000, with_(connections_each=10_000))
    assert more.pacemakers == 9
    assert more.memory_mib == pytest.approx(values + 9 * 30)


def test_a_pulse_is_three_segments_and_its_answer_one():
    quiet = with_(nimbus_read_secs=1e9, trigger_secs=1e9)
    found = size(3_000, quiet)
    assert found.bits_in_per_sec == pytest.approx(24_000 * 8 * (3_072 + 130 + 3 * 78))
    assert found.bits_out_per_sec == pytest.approx(24_000 * 8 * (19 + 78), rel=1e-3)


def test_there_is_always_one_more_than_needed():
    assert size(1, ASSUMED).pacemakers == 2
    assert size(1, ASSUMED).limited_by == "being two"
    assert size(3_000, with_(connections_each=10**9)).pacemakers == 2
    assert size(6_000, with_(connections_each=10**9)).pacemakers == 3


def test_what_is_scarcest_decides():
    assert size(30_000, with_(connections_each=10_000)).limited_by == "connections"
    assert size(30_000, with_(cpu_secs_per_pulse=100e-6)).limited_by == "CPU"
    slow_card = with_(card_bits_per_sec=1e9, connections_each=10**9)
    assert size(30_000, slow_card).limited_by == "network"


def test_readers_take_the_newest_pulse_of_every_worker():
    found = size(3_000, ASSUMED)
    assert found.nimbus_secs == pytest.approx(0.72)
    assert found.nimbus_share == pytest.approx(0.072)
    assert found.spark_read_cores == pytest.approx(72_000 / 5 / 30_000)
    assert found.spark_decode_cores == pytest.approx(72_000 / 5 / 43_593)
