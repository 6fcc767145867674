"""Placement: free slots and memory of the supervisors, and the order of topologies.

A slot comes from the supervisor with the fewest workers of the topology, then the least used by its
share of slots or memory (the greater counts), then by name.

1. A topology whose workers were stopped for a rebalance first gets as many slots as it had.
2. Then every topology with unplaced queries gets one slot before any gets a second: first
   topologies with only bound queries, then those with fewer slots, then the earlier submission.

One slot is enough for all queries that may run anywhere; queries with their checkpoints on certain
machines need a slot on each of these.
If small workers take the memory that a large worker needs, a second attempt packs tightly, the
largest first, and wins if it leaves fewer queries unplaced.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from stormkeeper.nimbus.scheduling.cluster import Launch, Supervisor
from stormkeeper.nimbus.scheduling.workers import WorkerFates
from stormkeeper.paths import Slot

#: Worker count for a machine to avoid: it sorts last.
_LAST = 1_000_000


class Capacity:
    """Free slots and memory of all supervisors.

    `held` are workers whose slots and memory are in use, also on lost supervisors. With `is_tight`
    the most used supervisor is filled first, so that more may fit.
    """

    def __init__(
        self,
        supervisors: Mapping[str, Supervisor],
        held: Iterable[Launch],
        *,
        is_tight: bool = False,
    ) -> None:
        self._supervisors = supervisors
        self._is_tight = is_tight
        taken: dict[str, set[int]] = {}
        self._memory_mb = {id_: one.memory_mb for id_, one in supervisors.items()}
        for launch in held:
            node, port = launch.slot
            taken.setdefault(node, set()).add(port)
            if node in self._memory_mb:
                self._memory_mb[node] -= launch.memory_mb
        self._ports: dict[str, list[int]] = {}
        self._ranks: dict[str, float] = {}
        #: Heap by rank; outdated entries are skipped.
        self._queue: list[tuple[float, str]] = []
        for id_, one in supervisors.items():
            busy = one.running | taken.get(id_, set())
            free = [] if one.refuses else sorted(one.ports - busy, reverse=True)
            self._ports[id_] = free
            if free:
                rank = self._ranks[id_] = self._rank(id_)
                self._queue.append((rank, id_))
        heapq.heapify(self._queue)
        self._most: tuple[int, float] | None = None
        #: No supervisor has room for a worker of this memory.
        self._too_much_mb = inf

    @property
    def slots(self) -> int:
        return self._totals()[0]

    @property
    def most_memory_mb(self) -> float:
        """The most free memory beside a free slot; 0 without a slot."""
        return self._totals()[1]

    def _totals(self) -> tuple[int, float]:
        if self._most is None:
            free = (self._memory_mb[id_] for id_, ports in self._ports.items() if ports)
            slots = sum(map(len, self._ports.values()))
            self._most = slots, max(0.0, max(free, default=0.0))
        return self._most

    def has_room_for_any(self, workers: int, memory_mb: float) -> bool:
        """Return whether so many workers of up to `memory_mb` fit, wherever each one goes."""
        return self.slots >= workers and all(
            self._memory_mb[id_] >= len(ports) * memory_mb
            for id_, ports in self._ports.items()
            if ports
        )

    def slots_of(self, node: str) -> int:
        return len(self._ports.get(node, ()))

    def memory_of(self, node: str) -> float:
        return max(0.0, self._memory_mb.get(node, 0.0))

    def free(self, launches: Iterable[Launch]) -> None:
        for launch in launches:
            node, port = launch.slot
            one = self._supervisors.get(node)
            if one is None:
                continue
            self._memory_mb[node] += launch.memory_mb
            if port in one.ports - one.running and not one.refuses:
                self._ports[node] = sorted({*self._ports[node], port}, reverse=True)
            self._changed(node)
        self._too_much_mb = inf

    def hold(self, launch: Launch) -> None:
        """Take back the slot and memory of a freed worker."""
        node, port = launch.slot
        if node not in self._supervisors:
            return
        self._memory_mb[node] -= launch.memory_mb
        self._ports[node] = [each for each in self._ports[node] if each != port]
        self._changed(node)

    def take(
        self,
        memory_mb: float,
        workers: Mapping[str, int],
        *,
        not_on: Collection[str] = (),
        only_on: str | None = None,
    ) -> Slot | None:
        """Take a slot for a worker; None if no supervisor has room.

        `workers`: how many workers the topology has on each supervisor. With `only_on`, `not_on` is
        ignored.
        """
        node = self._on(only_on, memory_mb) if only_on else self._next(memory_mb, workers, not_on)
        if node is None:
            return None
        port = self._ports[node].pop()
        self._memory_mb[node] -= memory_mb
        self._changed(node)
        return Slot(node, port)

    def _on(self, node: str, memory_mb: float) -> str | None:
        return node if self._ports.get(node) and self._memory_mb[node] >= memory_mb else None

    def _next(
        self, memory_mb: float, workers: Mapping[str, int], not_on: Collection[str]
    ) -> str | None:
        if memory_mb >= self._too_much_mb:
            return None
        best: tuple[int, float, str] | None = None
        looked_at: list[tuple[float, str]] = []
        is_avoided = False
        while self._queue and (best is None or best[0] > 0):
            entry = heapq.heappop(self._queue)
            rank, node = entry
            if not self._ports[node] or rank != self._ranks[node]:
                continue  # out of date
            if self._memory_mb[node] < memory_mb:
                looked_at.append(entry)
            elif node in not_on:
                looked_at.append(entry)
                is_avoided = True
            else:
                own = 0 if self._is_tight else workers.get(node, 0)
                candidate = (own, rank, node)
                if best is not None:
                    looked_at.append(max(best, candidate)[1:])
                # Its entry is out of date once the slot is taken.
                best = candidate if best is None else min(best, candidate)
        for entry in looked_at:
            heapq.heappush(self._queue, entry)
        if best is None:
            if not is_avoided:
                self._too_much_mb = memory_mb
            return None
        return best[2]

    def _changed(self, node: str) -> None:
        self._most = None
        if self._ports[node]:
            rank = self._ranks[node] = self._rank(node)
            heapq.heappush(self._queue, (rank, node))

    def _rank(self, node: str) -> float:
        one = self._supervisors[node]
        in_use = 1 - len(self._ports[node]) / len(one.ports)
        if one.memory_mb not in (0, inf):
            in_use = max(in_use, 1 - self._memory_mb[node] / one.memory_mb)
        return -in_use if self._is_tight else in_use


@dataclass(slots=True)
class Placement:
    """The slots that a topology got, by the machine that the queries need (None: any)."""

    fates: WorkerFates
    slots: dict[str | None, list[Slot]] = field(default_factory=dict)
    workers: dict[str, int] = field(default_factory=dict)
    slot_count: int = 0

    @property
    def unplaced(self) -> list[str | None]:
        """Machines (None: any) for which queries got no slot."""
        return [node for node in self.fates.needs if node not in self.slots]

    @property
    def retained(self) -> list[Launch]:
        """Lost and vacated workers that stay, as the queries got no other slot."""
        fates = self.fates
        gone = [*fates.lost, *fates.vacated]
        return [launch for launch in gone if fates.place_of(launch) not in self.slots]

    def new_workers(self) -> list[tuple[Slot, tuple[str, ...]]]:
        """Return the slots of the new workers with their queries, divided evenly."""
        found: list[tuple[Slot, tuple[str, ...]]] = []
        for node, slots in self.slots.items():
            queries = self.fates.needs[node]
            shares = (tuple(queries[n :: len(slots)]) for n in range(len(slots)))
            found += zip(sorted(slots), shares, strict=True)
        return sorted(found)

    def take_one(self, capacity: Capacity) -> bool:
        """Take another slot; returns whether an allowed slot was free."""
        fates, needs = self.fates, self.fates.needs
        topology = fates.topology
        left = topology.workers - len(fates.kept) - self.slot_count
        if left <= 0:
            return False
        # Else keep the slots left for machines that have none.
        is_spare = left > len(needs) - len(self.slots)
        for node in sorted(needs, key=self._urgency) if len(needs) > 1 else needs:
            slots = self.slots.get(node, ())
            if len(slots) == len(needs[node]) or (slots and not is_spare):
                continue
            slot = capacity.take(
                topology.memory_mb, self.workers, not_on=fates.not_on, only_on=node
            )
            if slot is not None:
                self.slots.setdefault(node, []).append(slot)
                self.slot_count += 1
                self.workers[slot.node] = self.workers.get(slot.node, 0) + 1
                return True
        return False

    def _urgency(self, node: str | None) -> tuple[bool, float, bool, str]:
        """Sort key: first machines without a slot, then the most queries per slot."""
        slots = len(self.slots.get(node, ()))
        crowd = len(self.fates.needs[node]) / slots if slots else 0.0
        return slots > 0, -crowd, node is None, node or ""


def place(
    needy: Sequence[WorkerFates],
    supervisors: Mapping[str, Supervisor],
    held: Sequence[Launch],
) -> tuple[list[Placement], Capacity]:
    """Give slots to topologies; returns the placements and the capacity left.

    `held`: workers that occupy slots, vacated ones included.
    """
    found, capacity = _attempt(needy, supervisors, held, is_tight=False)
    if _may_be_packed_better(found):
        others, other_capacity = _attempt(needy, supervisors, held, is_tight=True)
        if _missing(others) < _missing(found):
            return others, other_capacity
    return found, capacity


def _attempt(
    needy: Sequence[WorkerFates],
    supervisors: Mapping[str, Supervisor],
    held: Sequence[Launch],
    *,
    is_tight: bool,
) -> tuple[list[Placement], Capacity]:
    capacity = Capacity(supervisors, held, is_tight=is_tight)
    found = [
        Placement(each, workers=Counter(launch.slot.node for launch in each.kept) + _avoided(each))
        for each in needy
    ]
    for placed in found:
        if placed.fates.vacated:
            capacity.free(placed.fates.vacated)
            while placed.slot_count < len(placed.fates.vacated) and placed.take_one(capacity):
                pass
            for launch in placed.retained:
                if launch.is_released:  # a lost one was never free
                    capacity.hold(launch)

    def turn(placed: Placement) -> tuple[bool, float, int, float, str]:
        topology = placed.fates.topology
        return (
            None in placed.fates.needs,
            -topology.memory_mb if is_tight else 0.0,
            len(placed.fates.kept) + placed.slot_count,
            topology.launched_at,
            topology.id,
        )

    # The order is the same for each further slot.
    waiting = sorted(found, key=turn)
    while waiting:
        waiting = [placed for placed in waiting if placed.take_one(capacity)]
    return found, capacity


def _avoided(fates: WorkerFates) -> Counter[str]:
    # Machines on which workers did not start: any other machine comes first.
    failed = (one.slot.node for one in fates.vacated if fates.topology.holds_nothing(one))
    return Counter(dict.fromkeys(failed, _LAST))


def _missing(found: Iterable[Placement]) -> int:
    return sum(len(placed.unplaced) for placed in found)


def _may_be_packed_better(found: Iterable[Placement]) -> bool:
    left_out = [placed.fates.topology.memory_mb for placed in found if placed.unplaced]
    served = [placed.fates.topology.memory_mb for placed in found if placed.slot_count]
    return bool(left_out and served) and min(served) < max(left_out)
