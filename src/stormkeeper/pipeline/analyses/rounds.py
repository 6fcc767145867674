"""A round: each analysis is asked, and what follows for the alerts and their history."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from stormkeeper.conf import Conf
from stormkeeper.history.table_reader import Tables
from stormkeeper.history.table_specs import TIME, Retention, TableSpec
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses import alerts
from stormkeeper.pipeline.analyses.questions import Question

_TYPES: Final = {"string": pa.string(), "double": pa.float64(), "timestamp": TIME}

#: `alerts.ALERTS` as Arrow has it.
ALERTS: Final = pa.schema(
    [(field.name, _TYPES[field.dataType.simpleString()]) for field in alerts.ALERTS.fields]
)

#: One row for each time that an alert began, changed its severity, or ended.
ALERT_HISTORY: Final = pa.schema([("at", TIME), ("change", pa.string()), *ALERTS])

#: One row for each topology that Nimbus has listed. `killed_at` is the time of its workers' last
#: pulse, once Nimbus lists it no longer; else it is null.
KILLED_TOPOLOGIES: Final = pa.schema(
    [("storm_id", pa.string()), ("listed_at", TIME), ("killed_at", TIME)]
)

#: One row for each supervisor that Nimbus has listed.
SUPERVISORS: Final = pa.schema([("node", pa.string()), ("host", pa.string()), ("listed_at", TIME)])

#: How long an alert that has ended stays among the present ones, in seconds.
ENDED_SECS: Final = 86_400.0

#: A table of the present is one that is not older than this many intervals and seconds.
_INTERVALS: Final = 5
_LEAST_SECS: Final = 60.0

#: Who is late together is judged at each trigger. After this many without, it is over.
_TRIGGERS: Final = 12

#: What Spark is asked with at once, about: of more its heap would grow, and not become small again.
_ROWS_AT_ONCE: Final = 25_000

#: An analysis that is asked seldom has to find nothing for longer than this many times.
_LOOKS: Final = 1.5


def specs(conf: Conf) -> list[TableSpec]:
    """Return the tables of alerts."""
    kept = Retention(hours=conf["pipeline.retention.alerts.hours"])
    return [
        TableSpec(tables.ALERTS, ALERTS, "current"),
        TableSpec(tables.ALERT_HISTORY, ALERT_HISTORY, "log", time="at", retention=kept),
        TableSpec(tables.KILLED_TOPOLOGIES, KILLED_TOPOLOGIES, "current"),
        TableSpec(tables.SUPERVISORS, SUPERVISORS, "current"),
    ]


def clear_secs(conf: Conf) -> dict[str, float]:
    """Return how long each rule has to find nothing before its alert ends, in seconds."""
    least = _LOOKS * conf["pipeline.analyses.secs"]
    together = _TRIGGERS * conf["pipeline.trigger.secs"]
    found = {**alerts.CLEAR_SECS, "node_late": together, "pacemaker_late": together}
    return {rule: max(secs, least) for rule, secs in found.items()}


@dataclass(frozen=True, slots=True)
class Asked:
    """When a question was asked, and of which newest row its table had then."""

    at: datetime
    latest: datetime | None


def due(
    question: Question, found: Tables | None, before: Asked | None, now: datetime
) -> Asked | None:
    """Return what is to be remembered of a question if it is to be asked now, else None.

    Parameters
    ----------
    question
        Which.
    found
        The tables of its query; None if there are none.
    before
        When it was asked last.
    now
        The time.
    """
    if found is None or question.table not in found.manifest.tables:
        return None
    if question.past_secs is None:
        age = (now - found.manifest.written_at).total_seconds()
        # A table of long ago says nothing of now, neither good nor bad.
        is_new = abs(age) <= max(_LEAST_SECS, _INTERVALS * found.manifest.interval_secs)
        return Asked(now, None) if is_new else None
    times = [file.latest for file in found.manifest.tables[question.table].files]
    latest = max((time for time in times if time is not None), default=None)
    if before is not None and before.latest == latest:
        waited = (now - before.at).total_seconds()
        if 0 <= waited < question.every_secs:
            return None
    return Asked(now, latest)


def ask(session: SparkSession, question: Question, found: Tables, now: datetime) -> pa.Table:
    """Return what an analysis finds, as rows of `ALERTS`."""
    rows = question.rows(found, now)
    if not rows.num_rows:
        return ALERTS.empty_table()
    moment = now
    if question.past_secs is None:
        # What it is about is the moment of its batch, and not ours.
        moment = min(now, found.manifest.written_at)

    def answered(some: pa.Table) -> pa.Table:
        # In one piece it is one partition, which needs no exchange.
        given = session.createDataFrame(some.combine_chunks())
        return _cast(question.ask(given, moment).toArrow())

    return pa.concat_tables(map(answered, _by_topologies(rows)))


def _by_topologies(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of some topologies at a time; none is judged beside others.

    Rows that are of no topology are counts, and few.
    """
    times = math.ceil(rows.num_rows / _ROWS_AT_ONCE)
    if times == 1 or "storm_id" not in rows.column_names:
        yield rows
        return
    topologies = pc.unique(rows["storm_id"])
    step = math.ceil(len(topologies) / times)
    for start in range(0, len(topologies), step):
        yield rows.filter(pc.is_in(rows["storm_id"], topologies.slice(start, step)))


def following(
    session: SparkSession,
    previous: pa.Table,
    found: pa.Table,
    *,
    known: Collection[str],
    asked: Collection[str],
    now: datetime,
    clear_secs: Mapping[str, float],
) -> pa.Table:
    """Return the alerts that follow: open ones, and those that ended lately.

    Parameters
    ----------
    session
        Where Spark is asked to merge them, if there are any.
    previous
        The result of the round before.
    found
        What the analyses found.
    known
        The rules that there are. Alerts of others end.
    asked
        Those that were asked. Alerts of the others stay as they are.
    now
        The time.
    clear_secs
        As of `alerts.merge`.
    """
    is_open = pc.is_null(previous["until"])
    unasked = pa.array([rule for rule in known if rule not in asked], pa.string())
    stays = pc.is_in(previous["rule"], unasked)
    since = pa.scalar(now - timedelta(seconds=ENDED_SECS), TIME)
    ended = pc.and_(pc.invert(is_open), pc.greater(pc.coalesce(previous["until"], since), since))
    left = previous.filter(pc.or_(pc.and_(is_open, stays), ended))
    given = previous.filter(pc.and_(is_open, pc.invert(stays)))
    if not given.num_rows and not found.num_rows:
        return left
    old = {rule: 0.0 for rule in given["rule"].to_pylist() if rule not in known}
    merged = alerts.merge(
        session.createDataFrame(given.combine_chunks(), alerts.ALERTS),
        session.createDataFrame(found.combine_chunks(), alerts.ALERTS),
        now,
        clear_secs={**clear_secs, **old},
    )
    return pa.concat_tables([left, _cast(merged.toArrow())])


class Listed(NamedTuple):
    """What Nimbus lists: the ids of topologies, and the host of each supervisor, by its id."""

    topologies: Collection[str]
    hosts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Silence:
    """The topologies whose workers have pulses, and which of them are silent.

    Parameters
    ----------
    last_seen
        When a worker's last pulse came, by the topology's id.
    beating
        The topologies of which a worker is alive.
    nodes
        The supervisors of the workers.
    """

    last_seen: Mapping[str, datetime]
    beating: Collection[str]
    nodes: Collection[str] = ()

    @classmethod
    def of(cls, liveness: pa.Table) -> Silence:
        """Return that of a liveness table."""
        latest = liveness.group_by("storm_id").aggregate([("last_seen", "max")])
        beating = liveness.filter(pc.equal(liveness["status"], "alive"))["storm_id"]
        last_seen = zip(
            latest["storm_id"].to_pylist(), latest["last_seen_max"].to_pylist(), strict=True
        )
        nodes = frozenset(liveness["node"].unique().to_pylist())
        return cls(dict(last_seen), frozenset(beating.unique().to_pylist()), nodes)


def has_to_ask(known: pa.Table, supervisors: pa.Table, silence: Silence) -> bool:
    """Return whether Nimbus has to be asked which topologies and supervisors there are.

    That is so if one of them is new, or if a topology was not killed and no worker of it beats.
    """
    if set(silence.nodes) - set(supervisors["node"].to_pylist()):
        return True
    rows = known.to_pylist()
    ids = {row["storm_id"] for row in rows}
    left = {row["storm_id"] for row in rows if row["killed_at"] is None}
    return bool(silence.last_seen.keys() - ids) or bool(left - set(silence.beating))


def next_killed(
    known: pa.Table, silence: Silence, listed: Collection[str], now: datetime, kept_secs: float
) -> pa.Table:
    """Return the next table of killed topologies, when Nimbus has listed those that there are.

    A Nimbus that has listed none of them may be another cluster's, and proves nothing.

    Parameters
    ----------
    known
        The table before.
    silence
        What is known of their workers.
    listed
        The ids that Nimbus lists.
    now
        The time.
    kept_secs
        How long a topology that was killed is known.
    """
    before = {row["storm_id"]: row for row in known.to_pylist()}
    ids = {*before, *silence.last_seen}
    is_ours = bool(before) or not ids.isdisjoint(listed)
    rows = []
    for storm_id in sorted(ids if is_ours else ()):
        row = before.get(storm_id, {"storm_id": storm_id, "listed_at": None, "killed_at": None})
        if storm_id in listed:
            row = {**row, "listed_at": now, "killed_at": None}
        elif row["killed_at"] is None and storm_id not in silence.beating:
            row = {**row, "killed_at": silence.last_seen.get(storm_id) or row["listed_at"] or now}
        killed_at = row["killed_at"]
        if killed_at is None or (now - killed_at).total_seconds() < kept_secs:
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=KILLED_TOPOLOGIES)


def next_supervisors(
    known: pa.Table, listed: Mapping[str, str], now: datetime, kept_secs: float
) -> pa.Table:
    """Return the next table of supervisors; `kept_secs` is as of `next_killed`."""
    rows = {row["node"]: row for row in known.to_pylist()}
    for node, host in listed.items():
        rows[node] = {"node": node, "host": host, "listed_at": now}
    left = [row for row in rows.values() if (now - row["listed_at"]).total_seconds() < kept_secs]
    return pa.Table.from_pylist(left, schema=SUPERVISORS)


def without_killed(alerts_: pa.Table, killed: Mapping[str, datetime]) -> tuple[pa.Table, pa.Table]:
    """Return the open alerts of topologies that run, and those of killed ones, ended."""
    is_killed = pc.is_in(alerts_["storm_id"], pa.array([*killed], pa.string()))
    is_over = pc.and_(is_killed, pc.is_null(alerts_["until"]))
    ended = [
        {**row, "until": max(row["since"], killed[row["storm_id"]])}
        for row in alerts_.filter(is_over).to_pylist()
    ]
    return alerts_.filter(pc.invert(is_over)), pa.Table.from_pylist(ended, schema=ALERTS)


def changes(before: pa.Table, after: pa.Table, now: datetime) -> pa.Table:
    """Return what a round adds to the history: alerts that begin, change their severity, or end."""
    earlier = {row["id"]: row for row in before.to_pylist() if row["until"] is None}
    ended = {(row["id"], row["since"]) for row in before.to_pylist() if row["until"] is not None}
    rows = []
    for row in after.to_pylist():
        was = earlier.get(row["id"])
        if row["until"] is not None:
            change = None if (row["id"], row["since"]) in ended else "ended"
        elif was is None:
            change = "began"
        else:
            change = "severity" if was["severity"] != row["severity"] else None
        if change is not None:
            rows.append({"at": now, "change": change, **row})
    return pa.Table.from_pylist(rows, schema=ALERT_HISTORY)


class Rounds:
    """Asks those analyses that are to be asked, round after round; one that fails is passed over.

    Parameters
    ----------
    session
        Where they are asked.
    questions
        All of them.
    clear_secs
        As of `alerts.merge`.
    look
        Returns the tables of a query; None if there are none.
    """

    def __init__(
        self,
        session: SparkSession,
        questions: Sequence[Question],
        clear_secs: Mapping[str, float],
        look: Callable[[str], Tables | None],
    ) -> None:
        self._session = session
        self._questions = questions
        self._clear_secs = clear_secs
        self._look = look
        self._asked: dict[str, Asked] = {}
        #: Why analyses failed in the last round, by rule.
        self.failures: dict[str, Exception] = {}

    def next(self, previous: pa.Table, now: datetime, killed: Mapping[str, datetime]) -> pa.Table:
        """Return the alerts that follow from the last ones and from what is found now.

        Those of topologies that were `killed`, by their ids, end at that time.
        """
        answers = dict(self._answers(now))
        found = {rule: rows for rule, rows in answers.items() if isinstance(rows, pa.Table)}
        self.failures = {
            rule: error for rule, error in answers.items() if isinstance(error, Exception)
        }
        previous, ended = without_killed(previous, killed)
        news, _ = without_killed(pa.concat_tables([ALERTS.empty_table(), *found.values()]), killed)
        followed = following(
            self._session,
            previous,
            news,
            known=[question.rule for question in self._questions],
            asked=found.keys(),
            now=now,
            clear_secs=self._clear_secs,
        )
        return pa.concat_tables([followed, ended])

    def _answers(self, now: datetime) -> Iterator[tuple[str, pa.Table | Exception]]:
        for question in self._questions:
            try:
                # Each looks anew: a file stays for some minutes only after it was replaced.
                found = self._look(question.query)
                asked = due(question, found, self._asked.get(question.rule), now)
                if found is None or asked is None:
                    continue
                answer = ask(self._session, question, found, now)
                self._asked[question.rule] = asked
            except Exception as error:
                yield question.rule, error
            else:
                yield question.rule, answer


def _cast(found: pa.Table) -> pa.Table:
    return found.select(ALERTS.names).cast(ALERTS)
