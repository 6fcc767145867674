"""Compares the pipeline's tables with what a simulation says that it did.

What must hold is in `compare`. Where the truth does not decide (a worker came back at the moment at
which it would have been called dead, or lived for less than the time between two looks) nothing is
held against the tables.
"""

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pipeline import alarms, counts, rollups
from pipeline.looks import SLACK_SECS
from pipeline.truth import AT_END

#: A worker's uptime is in whole seconds, and counts from its own clock.
UPTIME_SECS = 1.0

_SHOWN = 5


@dataclass
class Verdict:
    """How often each rule was tried, and what broke it."""

    tried: Counter = field(default_factory=Counter)
    broken: dict = field(default_factory=lambda: defaultdict(list))
    #: By how much deaths were found after the timeout, in seconds.
    found_after: list = field(default_factory=list)
    #: What was counted for so long at the end of an incarnation is in no reading.
    tails: list = field(default_factory=list)

    def hold(self, rule, is_kept, *about):
        self.tried[rule] += 1
        if not is_kept:
            self.broken[rule].append(about)

    def lines(self):
        """Return a line for each rule that was broken."""
        return [
            f"{rule}: {len(found)} of {self.tried[rule]}, as {'; '.join(map(str, found[:_SHOWN]))}"
            for rule, found in self.broken.items()
        ]

    def as_json(self):
        return {
            "tried": dict(self.tried),
            "broken": {rule: len(found) for rule, found in self.broken.items()},
            "deaths found after the timeout, s": {
                "count": len(self.found_after),
                "max": round(max(self.found_after, default=0.0), 2),
            },
            "not read at the end of an incarnation, s": {
                "count": sum(tail > 0.0 for tail in self.tails),
                "max": round(max(self.tails, default=0.0), 2),
            },
        }


def compare(truth, liveness, statistics, alerts, looks, began):
    """Return what of the tables is true.

    Parameters
    ----------
    truth
        A `truth.Truth`.
    liveness, statistics
        The queries' `Tables`, of batches that were read after the simulation's end.
    alerts
        The `Tables` of alerts; None: there were none yet.
    looks
        A `looks.Looks`.
    began
        When the first batch of the statistics was published.
    """
    verdict = Verdict()
    present = _by_worker(liveness.arrow("worker_liveness"))
    reports = _by_worker(statistics.arrow("worker_reports"))
    events = defaultdict(list)
    for row in liveness.arrow("worker_events").sort_by("at").to_pylist():
        events[_worker(row)].append({**row, "at": row["at"].timestamp()})
    now = max(row["updated_at"].timestamp() for row in present.values()) if present else 0.0
    for worker in {*present, *reports, *events}:
        verdict.hold(
            "a worker is in the tables that there never was", worker in truth.lives, worker
        )
    for worker, lives in truth.lives.items():
        if any(life.failed for life in lives):
            continue  # a heartbeat may have been taken, or not
        known = _Known(worker, present.get(worker), reports.get(worker), events[worker])
        _of_beginnings(verdict, known, lives[0], began, looks)
        if worker[0] in truth.deleted:
            _of_deleted(truth, verdict, known, now, looks)
        else:
            _of_newest(verdict, known, lives, now, looks)
        _of_deaths(truth, verdict, known, now, looks)
        _of_restarts(truth, verdict, known, looks)
    _of_silent_nodes(truth, verdict, events, looks)
    counts.compare(truth, statistics, reports, verdict)
    rollups.compare(truth, statistics, began, verdict, looks)
    alarms.compare(truth, alerts, verdict, looks)
    return verdict


class _Known:
    """What the tables say of a worker."""

    def __init__(self, worker, present, report, events):
        self.worker, self.present, self.report, self.events = worker, present, report, events

    def of(self, *kinds):
        return [event for event in self.events if event["event"] in kinds]


def _of_beginnings(verdict, known, first, began, looks):
    """Who began after the tables had, and was seen, has started once."""
    if first.last is None or first.heard_until - first.begun < looks.two:
        return
    if first.begun > began + looks.two:
        rule = "a worker was not told once to have started"
        verdict.hold(rule, len(known.of("started")) == 1, known.worker, first.begun)


def _of_deleted(truth, verdict, known, now, looks):
    rule = "a worker of a killed topology is still there"
    if truth.deleted[known.worker[0]] + looks.two < now:
        verdict.hold(rule, known.present is None, known.worker)
        if known.of("started"):
            rule = "a worker of a killed topology was not told once to be gone"
            verdict.hold(rule, len(known.of("gone")) == 1, known.worker)


def _of_newest(verdict, known, lives, now, looks):
    """The last heartbeat of each worker is in both tables."""
    worker, last = known.worker, lives[-1].last
    if last is None:
        return
    is_kept = now - last["acknowledged_at"] < looks.ttl_secs - looks.two
    if not is_kept:
        return
    verdict.hold("a worker is lost", known.present is not None, worker)
    verdict.hold("a worker's report is lost", known.report is not None, worker)
    if known.present is not None:
        seen = known.present["last_seen"].timestamp()
        is_newest = last["sent_at"] - SLACK_SECS < seen < last["acknowledged_at"] + SLACK_SECS
        verdict.hold("a newest pulse is missing", is_newest, worker, seen, last["sent_at"])
        age, status = now - last["acknowledged_at"], known.present["status"]
        expected = _statuses(age, looks)
        verdict.hold("a status is wrong", status in expected, worker, status, round(age, 2))
    if known.report is not None:
        said = known.report["time_secs"], known.report["uptime_secs"]
        told = last["time_secs"], last["uptime_secs"]
        verdict.hold("a newest report is missing", said == told, worker, said, told)


def _statuses(age, looks):
    """Return what a worker of that age may be called."""
    least, most = age - SLACK_SECS, age + SLACK_SECS
    begins = {"alive": 0.0, "late": looks.late_secs, "dead": looks.timeout_secs}
    ends = {"alive": looks.late_secs, "late": looks.timeout_secs, "dead": float("inf")}
    return {name for name in begins if begins[name] <= most and least <= ends[name]}


def _of_deaths(truth, verdict, known, now, looks):
    """Who is called dead was silent for as long, and who was is called dead in time."""
    worker = known.worker
    for event in known.of("dead"):
        begin, end = event["at"] - looks.timeout_secs, event["at"]
        beat = truth.beat_between(worker, begin + SLACK_SECS, end - SLACK_SECS)
        verdict.hold("a worker is called dead that beat", not beat, worker, begin, end)
    lives = truth.lives[worker]
    for number, life in enumerate(lives):
        if life.last is None or life.heard_until - life.begun < looks.two:
            continue
        next_begun = lives[number + 1].begun if number + 1 < len(lives) else float("inf")
        due = life.heard_until + looks.timeout_secs
        ends = min(next_begun, now, truth.deleted.get(worker[0], float("inf")))
        if ends < due + looks.two:
            continue
        found = [event for event in known.of("dead") if abs(event["at"] - due) < SLACK_SECS]
        verdict.hold("a death was not found", len(found) == 1, worker, life.why)
        for event in found:
            after = event["age_secs"] - event["timeout_secs"]
            verdict.found_after.append(after)
            rule = "a death was found later than two triggers after its timeout"
            verdict.hold(rule, after < looks.two, worker, after)


def _of_restarts(truth, verdict, known, looks):
    """Each restart that could be seen was, once; and no other."""
    lives = truth.lives[known.worker]
    times = [life.started_at for life in lives[1:]]
    near = SLACK_SECS + UPTIME_SECS
    for event in known.of("restarted"):
        is_true = any(abs(event["at"] - at) <= near for at in times)
        verdict.hold(
            "a worker is called restarted that was not", is_true, known.worker, event["at"]
        )
    for before, life in itertools.pairwise(lives):
        if before.last is None or life.last is None or before.failed or life.failed:
            continue
        was_read = before.heard_until - before.begun > looks.reading
        is_read = life.heard_until - life.begun > looks.reading
        if was_read and is_read:
            found = [e for e in known.of("restarted") if abs(e["at"] - life.started_at) <= near]
            verdict.hold("a restart was not found", len(found) == 1, known.worker, life.started_at)


def _of_silent_nodes(truth, verdict, events, looks):
    """The workers of a node that was silent were late, and came back."""
    for trouble in truth.troubles:
        if trouble["kind"] != "node_late":
            continue
        since, until = trouble["since"], trouble["until"]
        if until - since < looks.late_secs + looks.two:
            continue
        for worker, lives in truth.lives.items():
            if worker[1] != trouble["node"] or worker[0] in truth.deleted:
                continue
            if len(lives) > 1 or lives[0].why != AT_END or lives[0].heard_until < until + looks.two:
                continue
            late, back = (
                [e for e in events[worker] if e["event"] == kind] for kind in ("late", "back")
            )
            # It is late by its last pulse, which came within a period before the silence.
            at = since + looks.late_secs
            begin, end = at - truth.period_secs - SLACK_SECS, at + SLACK_SECS
            found = [event for event in late if begin <= event["at"] <= end]
            rule = "a worker of a silent node was not found late"
            verdict.hold(rule, len(found) == 1, worker, at)
            # It is back by its newest pulse at the first look that finds one. The first of all came
            # within a period after the silence, and nobody saw it if another one came before that
            # look: a Pacemaker keeps the newest.
            begin, end = until - SLACK_SECS, until + truth.period_secs + looks.two
            found = [e for e in back if begin <= e["at"] and e["at"] + e["age_secs"] <= end]
            rule = "a worker of a silent node was not found back"
            verdict.hold(rule, len(found) == 1, worker, until)


def _by_worker(table):
    return {_worker(row): row for row in table.to_pylist()}


def _worker(row):
    return row["storm_id"], row["node"], row["port"]
