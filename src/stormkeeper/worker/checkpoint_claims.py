"""Keeps two launches of a query from running it at once: the newest claim in its checkpoint counts.

A worker that is cut off from the cluster runs on while its replacement starts. Both would write to
one checkpoint and one sink. So each launch of a query has a claim, and a later launch has a greater
one. A worker writes its claim into the query's checkpoint before it starts the query, and ends the
query when it sees a greater one there: it looks before each batch of a ``foreachBatch`` function,
and every second.

A batch that is already running cannot be stopped from outside. Spark refuses its commit, as the
newer launch has written the log of offsets in the meantime. What the batch has written to its sink
by then stays: sinks are made for a batch that is done twice.

A claim is a file whose name says all that decides. So nothing of that can be half written, and no
two launches write the same file. In the file is the owner: the topology and the worker that have
made the claim. A plain script names its checkpoints itself, so two topologies may have the same
one: of these the older one waits until the other one is gone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stormkeeper.daemon import spark_callbacks
from stormkeeper.errors import ClaimedError, OccupiedError, WorkerError
from stormkeeper.topology.claims import Claim
from stormkeeper.worker.failure import readable
from stormkeeper.worker.job import Job
from stormkeeper.worker.running_queries import QueryEvents
from stormkeeper.worker.shutdown import CLAIMED, INACTIVE, LiveQueries, StopRequest

log = logging.getLogger(__name__)

#: The folder of claims in a checkpoint, beside Spark's own.
_FOLDER = "claims"

#: How often a worker looks for newer claims.
LOOK_SECS = 1.0

#: How long a worker whose claim was removed may take to see that.
SETTLE_SECS = 3 * LOOK_SECS

#: What is raised where a checkpoint cannot be read or written, or the JVM has ended.
_UNREADABLE = (Py4JError, PySparkException, OSError)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who has made a claim.

    Parameters
    ----------
    topology, query
        The topology's id, and the id that the query has in the cluster.
    host, port, pid
        The worker: its machine, the port of its slot, and its process there.
    cluster
        Where the state of its cluster is.
    since
        When it made the claim, in seconds since 1970.
    """

    topology: str
    query: str
    host: str
    port: int
    pid: int
    cluster: str
    since: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"the topology {self.topology} at {self.host}:{self.port} since {since}"


class Checkpoint:
    """The claims in one checkpoint, on any of Spark's file systems.

    Parameters
    ----------
    spark
        The session whose file systems are used.
    location
        The checkpoint: a folder or a URL.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path
        self._files_to_bytes = context._jvm.org.apache.commons.io.IOUtils.toByteArray
        self._folder = self._path(f"{location.rstrip('/')}/{_FOLDER}")
        self._files = self._folder.getFileSystem(context._jsc.hadoopConfiguration())

    def claims(self) -> list[Claim]:
        """Return all that are there, in order."""
        if not self._files.exists(self._folder):
            return []
        found = []
        for status in self._files.listStatus(self._folder):
            try:
                found.append(Claim.parse(str(status.getPath().getName())))
            except ValueError:  # somebody else's file
                continue
        return sorted(found)

    def newer(self, claim: Claim) -> Claim | None:
        """Return the highest claim, if it is above `claim`."""
        found = self.claims()
        return found[-1] if found and found[-1] > claim else None

    def lost_to(self, claim: Claim) -> Claim | None:
        """Return the claim that has taken the place of `claim`, if one has."""
        found = self.claims()
        return found[-1] if found and (found[-1] > claim or claim not in found) else None

    def owner(self, claim: Claim) -> Owner | None:
        """Return the owner of a claim; None if the file does not name it."""
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
        """Remove a claim."""
        self._files.delete(self._file(claim), False)

    def take(self, claim: Claim, owner: Owner | None = None) -> Claim | None:
        """Write `claim`, unless there is a greater one: return that.

        The claims below it are removed: whoever made them sees this one.
        """
        newer = self.newer(claim)
        if newer is None:
            stream = self._files.create(self._file(claim), True)
            try:
                if owner is not None:
                    stream.write(bytearray(msgspec.json.encode(owner)))
            finally:
                stream.close()
            # Another launch may have claimed it between the two; of both, the greater one goes on.
            newer = self.newer(claim)
        if newer is None:
            for older in self.claims():
                if older < claim:
                    self._files.delete(self._file(older), False)
        return newer

    def _file(self, claim: Claim) -> Any:
        return self._path(self._folder, str(claim))


class Claims:
    """The claims of a worker's queries.

    A plain script is one query to the cluster, and may have several checkpoints. These are claimed
    by their places, all with the claim of the script.

    Parameters
    ----------
    claims
        By the query's id. A query without one runs without, as under `storm local`.
    checkpoint
        Gives a query's checkpoint, by the query's id.
    begin
        Called before a checkpoint is claimed that no launch has claimed before. It raises
        `ClaimedError` if this launch must not claim it any more.
    owner
        Returns the owner that is written with a claim; None: none is.
    is_gone
        Returns whether the topology of an owner is known to be gone.
    """

    def __init__(
        self,
        claims: Mapping[str, Claim],
        checkpoint: Callable[[str], Checkpoint],
        begin: Callable[[str], None] = lambda _: None,
        owner: Callable[[], Owner | None] = lambda: None,
        is_gone: Callable[[Owner], bool] = lambda _: False,
    ) -> None:
        self._owner = owner
        self._is_gone = is_gone
        self._claims = claims
        self._checkpoint = checkpoint
        self._begin = begin
        self._taken: dict[str, tuple[Checkpoint, Claim]] = {}
        #: The greater claim of each query that was lost to one.
        self.lost: dict[str, Claim] = {}
        #: Of these the owner, where it is another topology.
        self.occupied: dict[str, Owner] = {}
        self._lock = threading.Lock()

    def take(self, query: str, claim: Claim | None = None) -> None:
        """Claim a query before it is started, with the claim that it has, or else with `claim`.

        Raises
        ------
        OccupiedError
            Another topology has claimed it later, and is not known to be gone.
        ClaimedError
            A later launch of this topology has claimed it.
        WorkerError
            The checkpoint could not be read or written.
        """
        claim = self._claims.get(query, claim)
        if claim is None:
            return
        owner = self._owner()
        try:
            checkpoint = self._checkpoint(query)
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
                f"the query {query!r} runs elsewhere: the launch {newer} has claimed it, and this"
                f" is {claim}"
            )
        self._taken[query] = checkpoint, claim

    def _free(self, query: str, checkpoint: Checkpoint, claim: Claim, owner: Owner | None) -> None:
        """Remove the claims of topologies that are gone; raise for one that is not."""
        if owner is None:
            return
        for each in checkpoint.claims():
            other = checkpoint.owner(each)
            if other is None or other.topology == owner.topology:
                continue
            if self._is_gone(other):
                checkpoint.remove(each)
                # A worker of that topology that still runs sees that its claim is gone.
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
            self._begin(query)
        except ClaimedError as error:
            self.lost.setdefault(query, claim)
            log.warning("%s", error)
            raise

    def look(self, query: str) -> bool:
        """Return whether a query that was started is still this launch's."""
        taken = self._taken.get(query)
        if taken is None or query in self.lost:
            return query not in self.lost
        checkpoint, claim = taken
        try:
            newer = checkpoint.lost_to(claim)
        except _UNREADABLE as error:
            # Spark cannot go on without the checkpoint either, and says why.
            log.debug("the claims of %s could not be read: %s", query, error)
            return True
        if newer is not None:
            owner, other = self._owner(), checkpoint.owner(newer)
            if owner is not None and other is not None and other.topology != owner.topology:
                self.occupied[query] = other
            self._lose(query, newer)
        return newer is None

    def look_at_all(self) -> bool:
        """Return whether all queries that were started are still this launch's."""
        lost = [query for query in [*self._taken] if not self.look(query)]
        return not lost

    def _lose(self, query: str, newer: Claim) -> None:
        with self._lock:
            if query in self.lost:
                return
            self.lost[query] = newer
        log.warning("the query %s is left to the launch %s, which has claimed it", query, newer)

    @contextlib.contextmanager
    def watched(self, lost: Callable[[str], None]) -> Iterator[None]:
        """Look for newer claims every second meanwhile; `lost` is told of each query once."""
        if not self._claims:
            yield
            return
        over = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(over, lost), name="worker-claims", daemon=True
        )
        watch.start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event, lost: Callable[[str], None]) -> None:
        told: set[str] = set()
        while not over.wait(LOOK_SECS):
            for query in [*self._taken]:
                if query not in told and not self.look(query):
                    told.add(query)
                    lost(query)


class JobClaims:
    """The claims of a job, where they count.

    Parameters
    ----------
    job
        Has the claims.
    checkpoint
        Returns the checkpoint of a topology's query, by the query's id.
    events
        What Spark tells of the queries.
    ending
        Asked to end a script that is left to another launch.
    begin
        Tells the cluster that a launch claims a query's checkpoint for the first time.
    owner
        Returns the owner of this worker's claims.
    is_gone
        Returns whether the topology of an owner is known to be gone.
    note
        Called with what is wrong while the worker runs on.
    """

    def __init__(
        self,
        job: Job,
        checkpoint: Callable[[str], Checkpoint],
        events: QueryEvents,
        ending: StopRequest,
        *,
        begin: Callable[[str], None],
        owner: Callable[[], Owner] | None = None,
        is_gone: Callable[[Owner], bool] = lambda _: False,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._note = note
        #: What the script waits for; None while it waits for no checkpoint.
        self.waiting: str | None = None
        self._job = job
        self._events = events
        self._ending = ending
        self._is_script = job.script_claim is not None
        #: Of a script by the places of the checkpoints.
        self.claims = Claims(
            job.claims,
            (lambda place: Checkpoint(SparkSession.active(), place))
            if self._is_script
            else checkpoint,
            # To the cluster a script is one query, wherever its checkpoints are.
            lambda query: begin(job.script_id if self._is_script and job.script_id else query),
            owner if self._is_script and owner is not None else lambda: None,
            is_gone,
        )

    def take_for_script(self, checkpoint: str | None) -> None:
        """Claim the checkpoint of a query that a script is about to start.

        It waits as long as the checkpoint belongs to another topology that has claimed it later.

        Raises
        ------
        ClaimedError
            A later launch has claimed it.
        WorkerError
            The checkpoint could not be read or written.
        """
        if checkpoint is None:
            return
        while True:
            try:
                self.claims.take(checkpoint, self._job.script_claim)
            except OccupiedError as error:
                if self.waiting is None:
                    log.warning("%s", error)
                    self._note(str(error))
                self.waiting = str(error)
                if self._ending.is_asked:
                    raise
                time.sleep(LOOK_SECS)
            except ClaimedError:
                self._ending.ask(CLAIMED)
                raise
            else:
                self.waiting = None
                return

    def admits(self, batch: Any) -> bool:
        """Return whether a batch may run: its query has not been claimed by another launch."""
        if not self._job.claims:
            return True
        if self._is_script:
            if not self.claims.look_at_all():
                self._ending.ask(self._lost_code)
            return not self.claims.lost
        run = self._events.running_as(spark_callbacks.query_id(batch))
        return run is None or run.name is None or self.claims.look(run.name)

    @property
    def _lost_code(self) -> int:
        """The exit code of a script that has lost a checkpoint.

        One that has lost it to another topology is started again, and waits.
        """
        return INACTIVE if self.claims.occupied else CLAIMED

    def watched(self, live: LiveQueries) -> AbstractContextManager[None]:
        """End what another launch has claimed meanwhile, and a batch that runs with it."""

        def leave(query: str) -> None:
            if self._is_script:
                self._ending.ask(self._lost_code)
            live.interrupt(None if self._is_script else query)

        return self.claims.watched(leave)

    def check(self) -> None:
        """Look what was lost.

        Raises
        ------
        ClaimedError
            Something was.
        """
        if self.claims.lost:
            lost = ", ".join(f"{query} ({claim})" for query, claim in self.claims.lost.items())
            raise ClaimedError(f"later launches have claimed what this worker ran: {lost}")
