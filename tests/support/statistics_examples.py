"""Topologies as Storm's own classes summed them up: ``tests/vectors/stats-examples.json.gz``.

Of each there are the bytes of its assignment and its workers' heartbeats, and the pages that Storm
makes of them: for every component, window, with and without what is Storm's own. A page has the
fields of the Thrift struct that are set; a map whose keys are structs is a list of pairs.
"""

import gzip
import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from stormkeeper.statistics.reports import Component, ExecutorReport, Slot, reports
from stormkeeper.statistics.tasks import components_of_tasks
from stormkeeper.thrift.records import Assignment, ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize

_FILE = Path(__file__).parent.parent / "vectors" / "stats-examples.json.gz"

KEYS = ("small", "edge")


@dataclass(frozen=True)
class Example:
    """One topology; `answers` has what Storm made of it, by kind of page."""

    answers: dict[str, Any]

    @property
    def _input(self) -> dict[str, Any]:
        return self.answers["input"]

    @cached_property
    def components(self) -> dict[str, Component]:
        """Its components, Storm's own among them."""
        return {
            id_: Component(
                kind=declared["type"],
                num_executors=declared["parallelism_hint"],
                num_tasks=json.loads(declared["json_conf"])["topology.tasks"],
            )
            for id_, declared in self._input["system_topology_components"].items()
        }

    @cached_property
    def tasks(self) -> dict[int, str]:
        """The component of each task, by the rule."""
        return components_of_tasks({id_: c.num_tasks for id_, c in self.components.items()})

    @cached_property
    def assignment(self) -> Assignment:
        """Its assignment, from Storm's bytes."""
        return deserialize(Assignment, bytes.fromhex(self._input["assignment_gzip_hex"]))

    @cached_property
    def heartbeats(self) -> dict[Slot, ClusterWorkerHeartbeat]:
        """Its workers' heartbeats, from Storm's bytes."""
        return {
            (beat["node"], beat["port"]): deserialize(
                ClusterWorkerHeartbeat, bytes.fromhex(beat["gzip_hex"])
            )
            for beat in self._input["heartbeats"]
        }

    @cached_property
    def executors(self) -> tuple[ExecutorReport, ...]:
        """Its executors with what they reported."""
        return reports(self.assignment, self.tasks, self.heartbeats)


@cache
def example(key: str) -> Example:
    """Return the topology "small" or "edge"."""
    topologies = json.loads(gzip.decompress(_FILE.read_bytes()))["topologies"]
    (found,) = (topology for topology in topologies if topology["key"] == key)
    return Example(found)
