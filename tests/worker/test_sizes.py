import pytest

from stormkeeper.conf import defaults
from stormkeeper.worker.worker_conf import slot_share


@pytest.mark.parametrize(
    ("cores", "slots", "master"),
    [(16, 4, "local[4]"), (7, 2, "local[3]"), (2, 4, "local[1]"), (5, 0, "local[5]")],
)
def test_a_slot_has_its_share_of_the_cores(cores, slots, master):
    conf = defaults().with_values({"supervisor.slots.ports": [*range(6700, 6700 + slots)]})
    assert slot_share(conf, cores)["spark.master"] == master


@pytest.mark.parametrize(
    ("memory", "master"), [(1024, "local[1]"), (2048, "local[6]"), (4096, "local[16]")]
)
def test_slots_memory_limits_its_cores(memory, master):
    conf = defaults().with_values({"topology.worker.memory.mb": memory})
    assert slot_share(conf, 128)["spark.master"] == master


@pytest.mark.parametrize(("memory", "heap"), [(8192, "4096m"), (2049, "1024m"), (600, "512m")])
def test_the_heap_is_half_of_the_memory_and_enough_for_spark(memory, heap):
    conf = defaults().with_values({"topology.worker.memory.mb": memory})
    assert slot_share(conf, 2)["spark.driver.memory"] == heap


def test_by_default_the_heap_is_that_of_spark():
    assert slot_share(defaults(), 2)["spark.driver.memory"] == "1024m"
