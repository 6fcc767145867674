"""A seed's world: three processes that would lead, a store, and what befalls them when."""

from collections import Counter
from random import Random
from typing import Final

from simulation.candidates import SESSION_SECS, Candidate, MakeHandle
from simulation.clock import Clock
from simulation.decisions import COMPONENT, TOPOLOGIES
from simulation.history import History
from stormkeeper import paths
from stormkeeper.state import leader_lock
from stormkeeper.state.fenced_writer import FencedWriter
from support.memory_state import MemoryEnsemble

CANDIDATES: Final = 3

#: Virtual seconds with new faults, and without: at least, until the old ones have had their effect,
#: and at most, until somebody leads.
FAULTY_SECS: Final = 45.0
CALM_SECS: Final = 20.0
LONGEST_CALM_SECS: Final = 300.0

#: How far apart faults are, in seconds.
APART_SECS: Final = (0.5, 5.0)


class World:
    """All that happens follows from the seed."""

    def __init__(self, seed: int, make_handle: MakeHandle = FencedWriter) -> None:
        self.history = History()
        #: What happened how often.
        self.seen: Counter[str] = Counter()
        self._random = Random(seed)
        self._clock = Clock()
        self._ensemble = MemoryEnsemble(inline=True, on_commit=self.history.committed)
        self.history.tree = self._ensemble.tree
        self._workers = self._ensemble.session()
        self._candidates = [
            Candidate(
                self._ensemble,
                self._clock,
                self.history,
                self._random,
                make_handle,
                self.seen,
                self._workers,
            )
            for _ in range(CANDIDATES)
        ]

    def run(self) -> None:
        """Let all of it happen, until somebody leads and writes in the end."""
        for candidate in self._candidates:
            self._clock.after(self._random.random(), candidate.live)
        self._clock.after(1.0, self._report_errors)
        self._clock.after(self._random.uniform(*APART_SECS), self._do_harm)
        self._clock.run(FAULTY_SECS + CALM_SECS)
        while not self.has_leader and self._clock.now < FAULTY_SECS + LONGEST_CALM_SECS:
            self._clock.run(CALM_SECS)

    @property
    def has_leader(self) -> bool:
        """Whether the last write was made by the holder of the lock that is the first."""
        line = leader_lock.queue(self._workers)
        return bool(
            line and self.history.applied and self.history.applied[-1].epoch == line[0].created
        )

    def _do_harm(self) -> None:
        if self._clock.now > FAULTY_SECS:
            return
        random = self._random
        leaders = [each for each in self._candidates if each.believes_to_lead]
        whom = random.choice(leaders if leaders and random.random() < 0.8 else self._candidates)
        short, long = random.uniform(0.5, 5.0), SESSION_SECS * random.uniform(1.05, 2.0)
        kind = random.choice(
            ("stop", "stop", "stop briefly", "cut", "cut briefly", "lose", "delay", "lock")
        )
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
        elif kind == "delay":
            whom.delay_next_write(random.choice((short, short, long)))
        else:
            self._meddle()
        self._clock.after(random.uniform(*APART_SECS), self._do_harm)

    def _meddle(self) -> None:
        """Delete the first lock, or revoke it, by hand."""
        line = leader_lock.queue(self._workers)
        if line and self._random.random() < 0.5:
            leader_lock.give_up(self._workers, line[0])
        elif line:
            self._workers.set_data(line[0].path, b"revoked")

    def _report_errors(self) -> None:
        """Have workers add to what leaders delete."""
        storm_id = self._random.choice(TOPOLOGIES)
        for _ in range(self._random.randint(1, 5)):
            self._workers.create_sequential(paths.error_prefix(storm_id, COMPONENT), b"")
        self._clock.after(self._random.uniform(0.2, 1.0), self._report_errors)
