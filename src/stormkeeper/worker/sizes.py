"""How much of its machine a worker's Spark uses where nobody says so: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: With less, Spark refuses to start (its reserve of 300 MB, one and a half times).
LEAST_HEAP_MB: Final = 512

#: What a worker takes beside the heap, as it was measured with 1.3 million rows through a Python
#: function: the JVM 250 MB and the driver's Python 165 MB, and 100 MB for each of Spark's Python
#: workers, of which a core has one.
BESIDE_MB: Final = 415
CORE_MB: Final = 100


def slot_share(conf: Mapping[str, Any], cores: int) -> dict[str, str]:
    """Return the settings of Spark that make the most of one slot, and no more.

    - The JVM's heap is half of ``topology.worker.memory.mb``. The other half is for what the JVM
      needs besides, for the driver's Python, and for Spark's Python workers.
    - The driver runs on as many cores as the machine has for each of its slots
      (``supervisor.slots.ports``), and as that other half has room for; one at least.

    Parameters
    ----------
    conf
        The configuration.
    cores
        What the machine has.
    """
    memory_mb = int(conf["topology.worker.memory.mb"])
    heap_mb = max(LEAST_HEAP_MB, memory_mb // 2)
    with_room = (memory_mb - heap_mb - BESIDE_MB) // CORE_MB
    return {
        "spark.master": f"local[{max(1, min(slot_cores(conf, cores), with_room))}]",
        "spark.driver.memory": f"{heap_mb}m",
    }


def slot_cores(conf: Mapping[str, Any], cores: int) -> int:
    """Return how many of a machine's `cores` each of its slots has: one at least."""
    return max(1, cores // max(1, len(conf["supervisor.slots.ports"])))
