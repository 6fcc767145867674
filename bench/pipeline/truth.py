"""What a simulation says that it did: who lived when, and was heard of when."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

#: Of so many topologies the counters are compared, and of those that have a trouble besides.
_COUNTED = 40

#: How a line on a worker's end begins.
_END = '{"event":"worker_ended"'

#: Why a worker ended that would have gone on.
AT_END = "end of the simulation"


class Life(NamedTuple):
    """One incarnation of a worker.

    `begun` is when it was started in the simulation; `last` is None if no heartbeat of it was ever
    acknowledged.
    """

    begun: float
    started_at: float
    why: str
    failed: int
    last: dict | None

    @property
    def heard_until(self):
        """When its last heartbeat was acknowledged; None: none was."""
        return None if self.last is None else self.last["acknowledged_at"]


@dataclass
class Truth:
    """A truth file, as far as it is about workers.

    A worker is ``(storm_id, node, port)``.
    """

    run: dict = field(default_factory=dict)
    lives: dict = field(default_factory=lambda: defaultdict(list))
    components: dict = field(default_factory=dict)
    deleted: dict = field(default_factory=dict)
    troubles: list = field(default_factory=list)
    #: By worker, from when to when no heartbeat of it was acknowledged, though it lived.
    pauses: dict = field(default_factory=lambda: defaultdict(list))
    #: The topologies of which the counters are kept.
    counted: set = field(default_factory=set)

    @property
    def period_secs(self):
        return self.run["period_secs"]

    @property
    def ended_at(self):
        """When the last heartbeat of all was acknowledged."""
        return max(life.heard_until or 0.0 for lives in self.lives.values() for life in lives)

    def heard(self, worker):
        """Return the spans of time in which a worker beat once a period."""
        spans = []
        of_node = [
            (trouble["since"], trouble["until"])
            for trouble in self.troubles
            if trouble["kind"] == "node_late" and trouble["node"] == worker[1]
        ]
        silences = sorted([*of_node, *self.pauses[worker]])
        for life in self.lives[worker]:
            if life.last is None:
                continue
            begin = life.begun
            for since, until in silences:
                if begin < since < life.heard_until:
                    spans.append((begin, since))
                    begin = min(until, life.heard_until)
            spans.append((begin, life.heard_until))
        return spans

    def beat_between(self, worker, begin, end):
        """Return whether a worker beat between two times, as far as a period can tell."""
        return any(
            min(until, end) - max(since, begin) > self.period_secs
            for since, until in self.heard(worker)
        )


def load(path):
    """Return the truth of a file."""
    truth = Truth()
    begun = {}
    for event in _events(path, are_ends=False):
        match event["event"]:
            case "run":
                truth.run = event
            case "topology":
                truth.components[event["storm_id"]] = event["components"]
            case "pulses_deleted":
                truth.deleted[event["storm_id"]] = event["at"]
            case "trouble":
                truth.troubles.append(event)
            case "worker_paused":
                truth.pauses[_worker(event)].append((event["since"], event["until"]))
            case "worker_started":
                begun[_worker(event), event["started_at"]] = event["at"]
    truth.counted = _counted(truth)
    for event in _events(path, are_ends=True):
        worker, started_at, last = _worker(event), event["started_at"], event["last"]
        if last and worker[0] not in truth.counted:
            last.pop("executors", None)
        begun_at = begun.pop((worker, started_at))
        life = Life(begun_at, started_at, event["why"], event["failed"], last)
        truth.lives[worker].append(life)
    for lives in truth.lives.values():
        lives.sort()
    return truth


def _events(path, *, are_ends):
    """Yield the ends of workers, which are nearly all that a file has, or all else."""
    with path.open() as lines:
        for line in lines:
            if line.startswith(_END) == are_ends:
                yield json.loads(line)


def _counted(truth):
    """Return the topologies of which the counters are kept."""
    if not truth.run["tells_counters"]:
        return set()
    ids = sorted(truth.components)
    troubled = {trouble["storm_id"] for trouble in truth.troubles if "storm_id" in trouble}
    return {*ids[:: max(1, len(ids) // _COUNTED)], *troubled}


def _worker(event):
    return event["storm_id"], event["node"], event["port"]
