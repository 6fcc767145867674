"""A seed's world: two to four Nimbuses that would lead, and what befalls them when."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Final

from simulation.clock import Clock
from simulation.decisions import TOPOLOGIES
from simulation.history import History
from simulation.nimbuses import SESSION_SECS, MakeElection, SimulatedNimbus
from stormkeeper import paths
from stormkeeper.nimbus.election import Election, Stand
from stormkeeper.state import leader_lock
from stormkeeper.state.storage import Create, NodeData, Operation
from support.memory_state import MemoryEnsemble

#: Virtual seconds with new faults, and without: at least, until the old ones have had their effect,
#: and at most, until one leads.
FAULTY_SECS: Final = 60.0
CALM_SECS: Final = 30.0
LONGEST_CALM_SECS: Final = 300.0

#: How far apart faults are, in seconds.
APART_SECS: Final = (0.2, 5.0)

#: What keeps a session for as long as its server promised.
HARM: Final = ("stop", "stop briefly", "cut", "cut briefly", "lose", "late lock", "leave", "code")

#: What befalls a disk, and the share of it among all faults.
DISK: Final = ("lose disk", "fill disk", "take disk away")
DISK_SHARE: Final = 0.2

#: What a server, or somebody by hand, does without a warning.
FORCE: Final = ("expire", "delete lock", "revoke lock")


class Elections:
    """All that happens follows from the seed; `force` says whether somebody uses some."""

    def __init__(self, seed: int, *, force: bool, make_election: MakeElection = Election) -> None:
        self.history = History()
        #: What happened how often.
        self.seen: Counter[str] = Counter()
        #: When two said that they lead, and when one queued behind himself.
        self.rivals: list[str] = []
        self.doubles: list[str] = []
        self._random = Random(seed)
        self._kinds = HARM + FORCE * force
        self._clock = Clock()
        self._ensemble = MemoryEnsemble(inline=True, on_commit=self._committed)
        self.history.tree = self._ensemble.tree
        self._hand = self._ensemble.session()
        self._nimbuses = [
            SimulatedNimbus(
                number,
                self._ensemble,
                self._clock,
                self.history,
                self._random,
                self.seen,
                make_election,
            )
            for number in range(self._random.randint(2, 4))
        ]
        shelves = [nimbus.shelf for nimbus in self._nimbuses]
        for shelf in shelves:
            shelf.others = [other for other in shelves if other is not shelf]

    def run(self) -> None:
        """Let all of it happen, and then nothing more."""
        for nimbus in self._nimbuses:
            self._clock.after(self._random.random(), nimbus.begin)
        self._clock.after(self._random.uniform(*APART_SECS), self._do_harm)
        self._clock.after(0.0, self._watch)
        self._clock.run(FAULTY_SECS)
        for nimbus in self._nimbuses:
            nimbus.tell(Stand())
        self._clock.run(CALM_SECS)
        while not self.has_one_leader() and self._clock.now < FAULTY_SECS + LONGEST_CALM_SECS:
            self._clock.run(1.0)

    def leaders(self) -> list[SimulatedNimbus]:
        """Return those who say that they lead."""
        return [nimbus for nimbus in self._nimbuses if nimbus.is_leader]

    def has_one_leader(self) -> bool:
        """Whether one leads, knows it and has written last, and all others wait in the queue.

        Those whose disks take nothing do so only if nobody can write.
        """
        leaders = self.leaders()
        told = [nimbus for nimbus in self._nimbuses if nimbus.decisions is not None]
        line = leader_lock.queue(self._hand)
        writable = [each for each in self._nimbuses if each.shelf.fault is None]
        return (
            len(leaders) == 1
            and leaders == told
            and bool(self.history.applied)
            and self.history.applied[-1].epoch == line[0].created
            and sorted(lock.nimbus for lock in line)
            == [each.address for each in writable or self._nimbuses]
        )

    def lacking(self) -> set[str]:
        """Return the topologies whose code another one than the leader has alone."""
        held = set().union(*(nimbus.shelf.storm_ids for nimbus in self._nimbuses))
        [leader] = self.leaders()
        return (held & set(leader.shelf.topologies())) - leader.shelf.storm_ids

    def _watch(self) -> None:
        leaders = [nimbus.address.host for nimbus in self.leaders()]
        if len(leaders) > 1:
            self.rivals.append(f"at {self._clock.now}: {leaders}")
        self._clock.after(0.1, self._watch)

    def _committed(self, change: int, session_id: int, operations: Sequence[Operation]) -> None:
        # A Nimbus may register again, in a new session, in the midst of a leader's write.
        if not all(each.path.startswith(paths.NIMBUSES) for each in operations):
            self.history.committed(change, session_id, operations)
        for operation in operations:
            if isinstance(operation, Create) and operation.sequential:
                holders = Counter(lock.holder for lock in self._line())
                if holders[operation.data] > 1:
                    self.doubles.append(f"at {self._clock.now}: {operation.data!r}")

    def _line(self) -> list[leader_lock.Lock]:
        """Return the queue as the server has it."""
        tree = self._ensemble.tree
        nodes = {}
        for name in tree.get(paths.LEADER_LOCK).children:
            node = tree.get(f"{paths.LEADER_LOCK}/{name}")
            nodes[name] = NodeData(node.data, node.stat)
        return leader_lock.in_line(nodes)

    def _do_harm(self) -> None:
        if self._clock.now > FAULTY_SECS:
            return
        random = self._random
        leaders = self.leaders()
        whom = random.choice(leaders if leaders and random.random() < 0.6 else self._nimbuses)
        short, long = random.uniform(0.5, 6.0), SESSION_SECS * random.uniform(1.05, 2.0)
        kind = random.choice(DISK if random.random() < DISK_SHARE else self._kinds)
        self.seen[kind] += 1
        if kind == "stop":
            whom.stop(long)
        elif kind == "stop briefly":
            whom.stop(short)
        elif kind == "cut":
            whom.cut_off(long)
        elif kind == "cut briefly":
            whom.cut_off(short)
        elif kind == "lose":
            whom.lose_next_answer(applied=random.random() < 0.5)
        elif kind == "late lock":
            whom.delay_next_lock()
        elif kind == "leave":
            whom.leave(random.choice((0.0, short, long)))
        elif kind == "code":
            # Others have to copy it; or nobody has it any more.
            storm_id = random.choice(TOPOLOGIES)
            for nimbus in self._nimbuses:
                nimbus.shelf.storm_ids.discard(storm_id)
            if random.random() < 0.7:
                whom.shelf.storm_ids.add(storm_id)
        elif kind == "lose disk":
            whom.lose_disk(None, None)
        elif kind in ("fill disk", "take disk away"):
            fault = "full" if kind == "fill disk" else "gone"
            whom.lose_disk(fault, random.choice((short, long, None)))
        elif kind == "expire":
            self._ensemble.expire(whom.session)
        else:
            self._meddle(kind)
        self._clock.after(random.uniform(*APART_SECS), self._do_harm)

    def _meddle(self, kind: str) -> None:
        line = leader_lock.queue(self._hand)
        if line and kind == "delete lock":
            leader_lock.give_up(self._hand, line[0])
        elif line:
            self._hand.set_data(line[0].path, b"revoked")
