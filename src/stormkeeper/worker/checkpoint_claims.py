"""Claims in checkpoints, which keep two workers from running a query at once.

A worker that is cut off from the cluster runs on while its replacement starts. So each worker
writes a claim, greater than all earlier claims, into the query's checkpoint, and ends the query
when a greater claim appears. Spark refuses the commit of a batch that already runs, but its rows
stay in the sink, which has to accept a repeated batch. A claim is the name of a file, so no claim
is half written; the content names the owner.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stormkeeper.daemon import spark_callbacks
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import ClaimedError, OccupiedError, WorkerError
from stormkeeper.topology.plan import Claim
from stormkeeper.worker.cluster_link import WorkerReports
from stormkeeper.worker.failure import readable
from stormkeeper.worker.job import Job, Owner
from stormkeeper.worker.query_events import QueryEvents
from stormkeeper.worker.shutdown import CLAIMED, INACTIVE, LiveQueries, StopRequest

log = logging.getLogger(__name__)

_FOLDER = "claims"

LOOK_SECS = 1.0

#: Longest time until a worker notices that its claim was removed.
SETTLE_SECS = 3 * LOOK_SECS

_UNREADABLE = (Py4JError, PySparkException, OSError)


class Checkpoint:
    """The claims in a checkpoint, a folder on any of Spark's file systems."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path
        self._files_to_bytes = context._jvm.org.apache.commons.io.IOUtils.toByteArray
        self._folder = self._path(f"{location.rstrip('/')}/{_FOLDER}")
        self._files = self._folder.getFileSystem(context._jsc.hadoopConfiguration())

    def claims(self) -> list[Claim]:
        """Return the claims in ascending order."""
        if not self._files.exists(self._folder):
            return []
        found = []
        for status in self._files.listStatus(self._folder):
            try:
                found.append(Claim.parse(str(status.getPath().getName())))
            except ValueError:  # a foreign file
                continue
        return sorted(found)

    def newer(self, claim: Claim) -> Claim | None:
        """Return the highest claim, if greater than `claim`."""
        found = self.claims()
        return found[-1] if found and found[-1] > claim else None

    def lost_to(self, claim: Claim) -> Claim | None:
        """Return the highest claim, if greater than `claim` or if `claim` is missing."""
        found = self.claims()
        return found[-1] if found and (found[-1] > claim or claim not in found) else None

    def owner(self, claim: Claim) -> Owner | None:
        """Return the owner; None if the file names no owner or cannot be read."""
        try:
            stream = self._files.open(self._file(claim))
            try:
                data = bytes(self._files_to_bytes(stream))
            finally:
                stream.close()
            return msgspec.json.decode(data, type=Owner)
        except (*_UNREADABLE, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def remove(self, claim: Claim) -> None:
        self._files.delete(self._file(claim), False)

    def take(self, claim: Claim, owner: Owner | None = None) -> Claim | None:
        """Write `claim` and remove lower claims, or return a greater claim."""
        newer = self.newer(claim)
        if newer is None:
            stream = self._files.create(self._file(claim), True)
            try:
                if owner is not None:
                    stream.write(bytearray(msgspec.json.encode(owner)))
            finally:
                stream.close()
            # Another worker may have written meanwhile: the greater claim wins.
            newer = self.newer(claim)
        if newer is None:
            for older in self.claims():
                if older < claim:
                    self._files.delete(self._file(older), False)
        return newer

    def _file(self, claim: Claim) -> Any:
        return self._path(self._folder, str(claim))


@dataclass(eq=False, repr=False)
class Claims:
    """The claims of a worker's queries, by query id, or of a script, by checkpoint location.

    A query may have no claim. `begin` is called before the first claim in a checkpoint, and raises
    `ClaimedError` if the query was given to another worker.
    """

    claims: Mapping[str, Claim]
    checkpoint: Callable[[str], Checkpoint]
    begin: Callable[[str], None] = lambda _: None
    owner: Callable[[], Owner | None] = lambda: None
    is_gone: Callable[[Owner], bool] = lambda _: False
    _taken: dict[str, tuple[Checkpoint, Claim]] = field(default_factory=dict, init=False)
    lost: dict[str, Claim] = field(default_factory=dict, init=False)
    #: Owners of greater claims in other topologies, by query.
    occupied: dict[str, Owner] = field(default_factory=dict, init=False)

    def take(self, query: str, claim: Claim | None = None) -> None:
        """Claim a query before the start, with the job's claim or else with `claim`.

        Raises `OccupiedError` if another topology has a greater claim, `ClaimedError` if another
        worker of this topology has, `WorkerError` if the checkpoint cannot be read or written.
        """
        claim = self.claims.get(query, claim)
        if claim is None:
            return
        owner = self.owner()
        try:
            checkpoint = self.checkpoint(query)
            if not checkpoint.claims():
                self._begin_first(query, claim)
            self._free(query, checkpoint, claim, owner)
            newer = checkpoint.take(claim, owner)
        except _UNREADABLE as error:
            raise WorkerError(
                f"the query {query!r} could not be claimed in its checkpoint:\n{readable(error)}"
            ) from error
        if newer is not None:
            self._lose(query, newer)
            raise ClaimedError(
                f"the query {query!r} runs elsewhere: the worker's start {newer} has claimed it,"
                f" and this is {claim}"
            )
        self._taken[query] = checkpoint, claim

    def _free(self, query: str, checkpoint: Checkpoint, claim: Claim, owner: Owner | None) -> None:
        if owner is None:
            return
        for each in checkpoint.claims():
            other = checkpoint.owner(each)
            if other is None or other.topology == owner.topology:
                continue
            if self.is_gone(other):
                checkpoint.remove(each)
                # Meanwhile a running worker of that topology notices the missing claim.
                time.sleep(SETTLE_SECS)
            elif each > claim:
                raise OccupiedError(
                    f"the checkpoint {query} belongs to {other}, which has claimed it later. Of two"
                    " topologies on one checkpoint the older one waits until the other one is"
                    " killed: give each a checkpoint of its own"
                )
            else:
                log.warning("the checkpoint %s is taken from %s, which waits now", query, other)

    def _begin_first(self, query: str, claim: Claim) -> None:
        try:
            self.begin(query)
        except ClaimedError as error:
            self.lost.setdefault(query, claim)
            log.warning("%s", error)
            raise

    def is_kept(self, query: str) -> bool:
        """Return whether this worker still has a query's claim; True if unreadable."""
        taken = self._taken.get(query)
        if taken is None or query in self.lost:
            return query not in self.lost
        checkpoint, claim = taken
        try:
            newer = checkpoint.lost_to(claim)
        except _UNREADABLE as error:
            # Spark fails, too, and reports why.
            log.debug("the claims of %s could not be read: %s", query, error)
            return True
        if newer is not None:
            owner, other = self.owner(), checkpoint.owner(newer)
            if owner is not None and other is not None and other.topology != owner.topology:
                self.occupied[query] = other
            self._lose(query, newer)
        return newer is None

    def are_all_kept(self) -> bool:
        return all(self.is_kept(query) for query in [*self._taken])

    def _lose(self, query: str, newer: Claim) -> None:
        if self.lost.setdefault(query, newer) is newer:
            log.warning(
                "the query %s is left to the worker's start %s, which has claimed it", query, newer
            )

    @contextlib.contextmanager
    def watched(self, on_lost: Callable[[str], None]) -> Iterator[None]:
        """Look for newer claims every second; `on_lost` gets each lost query once."""
        if not self.claims:
            yield
            return
        reported: set[str] = set()

        def look() -> None:
            for query in [*self._taken]:
                if query not in reported and not self.is_kept(query):
                    reported.add(query)
                    on_lost(query)

        watch = PeriodicThread(
            "worker-claims",
            look,
            period_secs=LOOK_SECS,
            first_secs=LOOK_SECS,
            failure="newer claims cannot be looked for",
        )
        watch.start()
        try:
            yield
        finally:
            watch.close(0.0)


class JobClaims:
    """The claims of a topology's queries, or of a plain script as a whole.

    A script claims a checkpoint when a query starts, and ends when a claim is lost.
    """

    def __init__(
        self,
        job: Job,
        checkpoint: Callable[[str], Checkpoint],
        events: QueryEvents,
        stop_request: StopRequest,
        reports: WorkerReports,
        *,
        begin: Callable[[str], None],
    ) -> None:
        self._reports = reports
        #: Why a script waits for a checkpoint.
        self.waiting: str | None = None
        self._job = job
        self._events = events
        self._stop_request = stop_request
        self._is_script = job.script_claim is not None
        if self._is_script:
            self.claims = Claims(
                job.claims,
                lambda location: Checkpoint(SparkSession.active(), location),
                lambda query: begin(job.script_id or query),
                lambda: reports.owner,
                reports.is_gone,
            )
        else:
            self.claims = Claims(job.claims, checkpoint, begin)

    def take_for_script(self, location: str | None) -> None:
        """Claim the checkpoint, if any, of a query that a script is about to start.

        Of two topologies with one checkpoint, the older waits until the other is gone.
        """
        if location is None:
            return
        while True:
            try:
                self.claims.take(location, self._job.script_claim)
            except OccupiedError as error:
                if self.waiting is None:
                    log.warning("%s", error)
                    self._reports.report_problem(str(error))
                self.waiting = str(error)
                if self._stop_request.is_asked:
                    raise
                time.sleep(LOOK_SECS)
            except ClaimedError:
                self._stop_request.ask(CLAIMED)
                raise
            else:
                self.waiting = None
                return

    def admits(self, batch: Any) -> bool:
        """Return whether no other worker has claimed the batch's query."""
        if not self._job.claims:
            return True
        if self._is_script:
            if not self.claims.are_all_kept():
                self._stop_request.ask(self._lost_code)
            return not self.claims.lost
        run = self._events.running_as(spark_callbacks.query_id(batch))
        return run is None or run.name is None or self.claims.is_kept(run.name)

    @property
    def _lost_code(self) -> int:
        # The supervisor restarts the script, which then waits.
        return INACTIVE if self.claims.occupied else CLAIMED

    def watched(self, live: LiveQueries) -> AbstractContextManager[None]:
        def leave(query: str) -> None:
            if self._is_script:
                self._stop_request.ask(self._lost_code)
            live.interrupt(None if self._is_script else query)

        return self.claims.watched(leave)

    def check(self) -> None:
        """Raise `ClaimedError` if a claim was lost."""
        if self.claims.lost:
            lost = ", ".join(f"{query} ({claim})" for query, claim in self.claims.lost.items())
            raise ClaimedError(f"later starts of workers have claimed what this worker ran: {lost}")
