"""What simulated leaders decide: the writes of a Nimbus, typed, some of many steps."""

from random import Random
from typing import Final

from simulation.history import Attempt
from stormkeeper import paths
from stormkeeper.state.fenced_writer import FencedWriter
from stormkeeper.state.storm.cluster import LeaderClusterState
from stormkeeper.thrift.records import Assignment, StormBase, TaskInfo, TopologyStatus
from stormkeeper.thrift.serialization import Codec, Compression
from support.memory_tree import MemoryTree

TOPOLOGIES: Final = tuple(f"topology-{number}-1" for number in range(4))
COMPONENT: Final = "split"

#: Small enough for several batches of what there is to delete.
BATCH: Final = 4

CODEC: Final = Codec(Compression.PLAIN)


class Decisions:
    """What one leader decides in its reign."""

    def __init__(self, writer: FencedWriter, random: Random) -> None:
        self._leader = LeaderClusterState(writer, CODEC)
        self.fence = writer.fence
        self._random = random
        self._count = 0

    def next(self) -> Attempt:
        """Decide something, and write nothing yet."""
        self._count += 1
        decide = self._random.choice(
            (self.assign, self.activate, self.update, self.task, self.remove, self.tear_down)
        )
        return decide(self._random.choice(TOPOLOGIES), self._count)

    def assign(self, storm_id: str, number: int) -> Attempt:
        record = Assignment(master_code_dir=f"/decision/{number}")
        path = paths.assignment(storm_id)

        def holds(tree: MemoryTree) -> bool:
            node = tree.find(path)
            if node is None:
                return False
            found = CODEC.read(Assignment, node.data)
            return (found.leader_epoch, found.master_code_dir) == (
                self.fence.epoch,
                record.master_code_dir,
            )

        return self._attempt(
            f"assign {storm_id}",
            lambda: self._leader.set_assignment(storm_id, record),
            holds,
        )

    def activate(self, storm_id: str, number: int) -> Attempt:
        record = StormBase(storm_id, TopologyStatus.ACTIVE, number)
        return self._attempt(
            f"activate {storm_id}",
            lambda: self._leader.activate_storm(storm_id, record),
            lambda tree: self._base_says(tree, storm_id, number),
        )

    def update(self, storm_id: str, number: int) -> Attempt:
        changes = StormBase("", TopologyStatus.INACTIVE, number)
        return self._attempt(
            f"update {storm_id}",
            lambda: self._leader.update_storm(storm_id, changes),
            lambda tree: self._base_says(tree, storm_id, number),
        )

    def task(self, storm_id: str, number: int) -> Attempt:
        task_id = number % (3 * BATCH)
        return self._attempt(
            f"set task {task_id} of {storm_id}",
            lambda: self._leader.set_task(storm_id, task_id, TaskInfo(COMPONENT)),
            lambda tree: tree.find(paths.task(storm_id, task_id)) is not None,
            is_one_step=False,
            always_changes=True,
        )

    def remove(self, storm_id: str, _number: int) -> Attempt:
        return self._attempt(
            f"remove {storm_id}",
            lambda: self._leader.remove_storm(storm_id),
            lambda tree: (
                not any(
                    tree.find(path)
                    for path in (
                        paths.storm(storm_id),
                        paths.assignment(storm_id),
                        paths.tasks(storm_id),
                    )
                )
            ),
            is_one_step=False,
            always_changes=False,
        )

    def tear_down(self, storm_id: str, _number: int) -> Attempt:
        return self._attempt(
            f"delete the errors of {storm_id}",
            lambda: self._leader.teardown_errors(storm_id),
            lambda tree: tree.find(paths.errors(storm_id)) is None,
            is_one_step=False,
            always_changes=False,
        )

    def _attempt(self, what, write, holds, *, is_one_step=True, always_changes=True) -> Attempt:
        return Attempt(self.fence, what, write, holds, is_one_step, always_changes)

    def _base_says(self, tree: MemoryTree, storm_id: str, number: int) -> bool:
        node = tree.find(paths.storm(storm_id))
        if node is None:
            return False
        found = CODEC.read(StormBase, node.data)
        return (found.leader_epoch, found.num_workers) == (self.fence.epoch, number)
