import pytest

from stormkeeper.pipeline.decoded_rows import decode
from stormkeeper.simulation.cluster import SYSTEM
from stormkeeper.thrift.serialization import (
    Compression,
    Release,
    heartbeat_release,
    serialize,
)
from support.simulations import BEGIN, PERIOD_SECS, as_told, details, read, simulation, unzipped


def beats(**options):
    made, _ = simulation(**options)
    return list(made.due(BEGIN + PERIOD_SECS - 0.001))


@pytest.mark.parametrize("release", Release)
@pytest.mark.parametrize("compression", Compression)
def test_a_heartbeat_is_what_our_own_writer_writes(compression, release):
    for beat in beats(compression=compression, release=release):
        record = read(details(beat))
        assert record.storm_id == beat.worker.topology.storm_id
        assert heartbeat_release(details(beat)) is release
        plain = serialize(record, Compression.PLAIN, release=release)
        assert serialize(read(plain), Compression.PLAIN, release=release) == plain
        if compression is Compression.PLAIN:
            assert plain == details(beat)
        if compression is Compression.GZIP:
            assert plain == unzipped(details(beat))


@pytest.mark.parametrize("release", Release)
def test_the_pipeline_decodes_every_heartbeat(release):
    values = [details(b) for c in Compression for b in beats(compression=c, release=release)]
    ((count, columns),) = decode(values)
    assert count == len(values) == 3 * 6
    assert columns["error"].null_count == count
    assert columns["time_secs"].null_count == 0


def test_it_says_what_the_worker_has_counted():
    for beat in beats():
        counters = beat.worker.counters(beat.counted_at)
        assert [*as_told(read(details(beat))).values()] == [
            {key: value for key, value in told.items() if key != "component"} for told in counters
        ]


def test_components_are_named_only_where_that_is_wanted():
    for names_components in (False, True):
        for beat in beats(names_components=names_components):
            named = {
                info.task_start: stats.component
                for info, stats in read(details(beat)).executor_stats.items()
            }
            assert len(named) == len(beat.worker.executors)
            for executor in beat.worker.executors:
                expected = executor.component.id if names_components else None
                assert named[executor.task] == expected


def test_tasks_are_numbered_as_storm_does():
    made, _ = simulation(nodes=4)
    for topology in made.cluster.topologies:
        ids = [component.id for component in topology.components]
        assert ids == sorted(ids)
        tasks = [task for component in topology.components for task in component.tasks]
        assert tasks == [*range(1, len(tasks) + 1)]
        run = [e.task for _, worker in topology.workers() for e in worker]
        assert sorted(task for task in run if task > 0) == tasks
        assert run.count(-1) == len(topology.slots)
        assert SYSTEM not in ids


@pytest.mark.parametrize(
    ("profile", "least", "most"), [("small", 1_000, 5_000), ("large", 2_000, 8_000)]
)
def test_a_profile_has_heartbeats_of_its_size(profile, least, most):
    sizes = [len(details(b)) for b in beats(profile=profile, nodes=10, topologies=4)]
    assert least < sum(sizes) / len(sizes) < most


def test_the_huge_one_has_heartbeats_of_29_kilobytes():
    (size,) = [
        len(details(b)) for b in beats(profile="huge", nodes=1, workers_per_node=1, topologies=1)
    ]
    assert 22_000 < size < 36_000
