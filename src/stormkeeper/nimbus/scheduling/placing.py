"""Who gets a slot first.

1. A topology whose workers were stopped for a rebalance gets as many slots as it had, before anyone
   else: it was running, and its own slots are free for that.
2. Then the slots go round. Everyone who has queries without a place gets one slot before anyone
   gets a second one. Of those who have got the same number, first comes who can be on one machine
   alone, then who has fewer slots, then who was submitted earlier.

With one slot all queries of a topology have a place, and with each further one they are spread over
one worker more, up to what it may have. So what is left out when no slot has room for it would fit
only if something moved. Where workers want different amounts of memory, a few small ones may take
what a large one needs; then it is tried again with the largest first and without regard to
evenness, and done so if fewer are left out. (The best of all ways takes too long to find.)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stormkeeper.nimbus.scheduling.cluster import Launch, Supervisor
from stormkeeper.nimbus.scheduling.room import Room
from stormkeeper.nimbus.scheduling.standing import Standing
from stormkeeper.paths import Slot

#: More workers than any topology has on a machine.
_LAST = 1_000_000


@dataclass(slots=True)
class Placed:
    """What a topology got: slots by the machine that its queries need, None for any."""

    standing: Standing
    slots: dict[str | None, list[Slot]] = field(default_factory=dict)
    workers: Counter[str] = field(default_factory=Counter)

    @property
    def given(self) -> int:
        """How many slots it got."""
        return sum(map(len, self.slots.values()))

    @property
    def left_out(self) -> list[str | None]:
        """The machines, None for any, on which queries should be and are not."""
        return [node for node in self.standing.needs if node not in self.slots]

    @property
    def retained(self) -> list[Launch]:
        """The lost and the vacated workers whose queries got no other place: they stay."""
        standing = self.standing
        gone = [*standing.lost, *standing.vacated]
        return [launch for launch in gone if standing.place_of(launch) not in self.slots]

    def take_one(self, room: Room) -> bool:
        """Take one more slot, and return whether there was one that it may have."""
        left = self.standing.most - self.given
        if left <= 0:
            return False
        needs = self.standing.needs
        is_spare = left > len(self.left_out)  # or each is for some machine that has none as yet
        for node in sorted(needs, key=self._urgency):
            slots = self.slots.get(node, [])
            if len(slots) == len(needs[node]) or (slots and not is_spare):
                continue
            slot = room.take(
                self.standing.topology.memory_mb,
                self.workers,
                not_on=self.standing.not_on,
                only_on=node,
            )
            if slot is not None:
                self.slots[node] = [*slots, slot]
                self.workers[slot.node] += 1
                return True
        return False

    def _urgency(self, node: str | None) -> tuple[bool, float, bool, str]:
        """Return what to sort by: first who has no slot, then whose queries share one the most."""
        slots = len(self.slots.get(node, ()))
        crowd = len(self.standing.needs[node]) / slots if slots else 0.0
        return slots > 0, -crowd, node is None, node or ""


def place(
    needy: Sequence[Standing],
    supervisors: Mapping[str, Supervisor],
    held: Sequence[Launch],
) -> tuple[list[Placed], Room]:
    """Give slots to those who need some, and return what each got, and the room that is left.

    Parameters
    ----------
    needy
        All topologies of which something is to be placed, by their ids.
    held
        All workers whose slots are not free, the vacated ones among them.
    """
    found, room = _attempt(needy, supervisors, held, is_tight=False)
    if _may_be_packed_better(found):
        others, other_room = _attempt(needy, supervisors, held, is_tight=True)
        if _missing(others) < _missing(found):
            return others, other_room
    return found, room


def _attempt(
    needy: Sequence[Standing],
    supervisors: Mapping[str, Supervisor],
    held: Sequence[Launch],
    *,
    is_tight: bool,
) -> tuple[list[Placed], Room]:
    room = Room(supervisors, held, is_tight=is_tight)
    found = [
        Placed(each, workers=Counter(launch.slot.node for launch in each.kept) + _avoided(each))
        for each in needy
    ]
    for placed in found:
        if placed.standing.vacated:
            room.free(placed.standing.vacated)
            while placed.given < len(placed.standing.vacated) and placed.take_one(room):
                pass
            for launch in placed.retained:
                if launch.is_released:  # a lost one was never free
                    room.hold(launch)
    at_first = [placed.given for placed in found]

    def turn(n: int) -> tuple[int, bool, float, int, float, str]:
        placed, topology = found[n], found[n].standing.topology
        return (
            placed.given - at_first[n],
            None in placed.standing.needs,
            -topology.memory_mb if is_tight else 0.0,
            len(placed.standing.kept) + placed.given,
            topology.launched_at,
            topology.id,
        )

    queue = [(turn(n), n) for n in range(len(found))]
    heapq.heapify(queue)
    while queue:
        n = heapq.heappop(queue)[1]
        if found[n].take_one(room):
            heapq.heappush(queue, (turn(n), n))
    return found, room


def _avoided(standing: Standing) -> Counter[str]:
    """Return machines on which workers did not start: any other one comes first."""
    failed = (one.slot.node for one in standing.vacated if standing.topology.holds_nothing(one))
    return Counter(dict.fromkeys(failed, _LAST))


def _missing(found: Iterable[Placed]) -> int:
    return sum(len(placed.left_out) for placed in found)


def _may_be_packed_better(found: Iterable[Placed]) -> bool:
    """Return whether someone got a slot who wants less memory than someone who got none."""
    left_out = [placed.standing.topology.memory_mb for placed in found if placed.left_out]
    served = [placed.standing.topology.memory_mb for placed in found if placed.given]
    return bool(left_out and served) and min(served) < max(left_out)
