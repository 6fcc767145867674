"""The free slots and memory of the supervisors, and which slot is taken next.

Slots are taken evenly: of the supervisors that have room, from one on which the topology has the
fewest workers, and of those from one of which the least is in use. That is the share of its slots,
or of its memory, whichever is greater. The rest is by name, so that the same room is always filled
in the same way.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from math import inf

from stormkeeper.nimbus.scheduling.cluster import Launch, Supervisor
from stormkeeper.paths import Slot


class Room:
    """What is free, less what is taken from it.

    Parameters
    ----------
    supervisors
        All that are there.
    held
        The workers whose slots and memory are not free, those of lost supervisors included.
    is_tight
        Whether to fill what is in use most first, instead of evenly: more may fit then.
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
        #: The free ports, from the greatest to the least.
        self._ports: dict[str, list[int]] = {}
        #: By how much of it is in use; an entry that is out of date is left in it, and skipped.
        self._queue: list[tuple[float, str]] = []
        for id_, one in supervisors.items():
            busy = one.running | taken.get(id_, set())
            free = [] if one.refuses else sorted(one.ports - busy, reverse=True)
            self._ports[id_] = free
            if free:
                self._queue.append((self._rank(id_), id_))
        heapq.heapify(self._queue)
        #: No supervisor has room for a worker that may use so much.
        self._too_much_mb = inf

    @property
    def slots(self) -> int:
        """How many slots are free."""
        return sum(map(len, self._ports.values()))

    @property
    def most_memory_mb(self) -> float:
        """The most memory that is free beside a free slot; 0 where there is none."""
        free = (self._memory_mb[id_] for id_, ports in self._ports.items() if ports)
        return max(0.0, max(free, default=0.0))

    def slots_of(self, node: str) -> int:
        """Return how many slots of a supervisor are free."""
        return len(self._ports.get(node, ()))

    def memory_of(self, node: str) -> float:
        """Return how much memory of a supervisor is free, in MB."""
        return max(0.0, self._memory_mb.get(node, 0.0))

    def free(self, launches: Iterable[Launch]) -> None:
        """Have what these workers held as free room."""
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
        """Have what this worker holds, which was free, as free no longer."""
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
        """Take a slot for a worker that may use so much memory, None where none has room.

        Parameters
        ----------
        memory_mb
            What the worker may use.
        workers
            How many workers its topology has on each supervisor.
        not_on
            Supervisors from which none is taken.
        only_on
            The only one from which it is taken.
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
        while self._queue and (best is None or best[0] > 0):
            entry = heapq.heappop(self._queue)
            rank, node = entry
            if not self._ports[node] or rank != self._rank(node):
                continue  # out of date
            looked_at.append(entry)
            if self._memory_mb[node] >= memory_mb and node not in not_on:
                own = 0 if self._is_tight else workers.get(node, 0)
                candidate = (own, rank, node)
                best = candidate if best is None else min(best, candidate)
        for entry in looked_at:
            heapq.heappush(self._queue, entry)
        if best is None:
            if not not_on:
                self._too_much_mb = memory_mb
            return None
        return best[2]

    def _changed(self, node: str) -> None:
        if self._ports[node]:
            heapq.heappush(self._queue, (self._rank(node), node))

    def _rank(self, node: str) -> float:
        """Return how much of a supervisor is in use, 0 to 1; where it is tight, how little."""
        one = self._supervisors[node]
        in_use = 1 - len(self._ports[node]) / len(one.ports)
        if one.memory_mb not in (0, inf):
            in_use = max(in_use, 1 - self._memory_mb[node] / one.memory_mb)
        return -in_use if self._is_tight else in_use
