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

import pytest

from stormkeeper.statistics.executor_reports import (
    DeclaredComponent,
    ExecutorReport,
    Slot,
    components_of_tasks,
    reports,
)
from stormkeeper.thrift.records import Assignment, ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize

_FILE = Path(__file__).parent.parent / "vectors" / "stats-examples.json.gz"

KEYS = ("small", "edge")

#: What the pages have beside statistics: names, errors, resources.
BESIDE = {
    "id",
    "name",
    "topology_id",
    "topology_name",
    "owner",
    "last_error",
    "resources_map",
    "assigned_memonheap",
    "assigned_memoffheap",
    "assigned_cpu",
    "requested_memonheap",
    "requested_memoffheap",
    "requested_cpu",
}


@dataclass(frozen=True)
class Example:
    """One topology; `answers` has what Storm made of it, by kind of page."""

    answers: dict[str, Any]

    @property
    def _input(self) -> dict[str, Any]:
        return self.answers["input"]

    @cached_property
    def components(self) -> dict[str, DeclaredComponent]:
        """Its components, Storm's own among them."""
        return {
            id_: DeclaredComponent(
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


def assert_same(found, expected):
    """Counts are equal, and so are latencies and capacities as far as order of summing allows."""
    found, expected = dict(leaves(found)), dict(leaves(expected))
    averages = {name for name, value in expected.items() if isinstance(value, float)}
    assert without(found, averages) == without(expected, averages)
    assert {name: found[name] for name in averages} == pytest.approx(
        {name: expected[name] for name in averages}, rel=1e-9, abs=0
    )


def without(values, names):
    return {name: value for name, value in values.items() if name not in names}


def leaves(value, name=()):
    """Yield what a page says, each with where it stands; lists by what they are lists of."""
    if isinstance(value, dict):
        yield (*name, "keys"), sorted(value.keys() - BESIDE)
        for key in value.keys() - BESIDE:
            yield from leaves(value[key], (*name, key))
    elif isinstance(value, list) and name == ("gsid_to_input_stats",):
        yield from leaves({tuple(sorted(key.items())): found for key, found in value}, (*name, ""))
    elif isinstance(value, list) and name == ("exec_stats",):
        by_task = {one["exec_summary"]["executor_info"]["task_start"]: one for one in value}
        assert len(by_task) == len(value)
        yield from leaves(by_task, (*name, ""))
    elif isinstance(value, list | tuple):
        by_slot = {(one["supervisor_id"], one["port"]): one for one in value}
        assert len(by_slot) == len(value)
        yield from leaves(by_slot, (*name, ""))
    else:
        yield name, value
