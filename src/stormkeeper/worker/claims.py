"""Keeps two launches of a query from running it at once: the newest claim in its checkpoint counts.

A worker that is cut off from the cluster runs on while its replacement starts. Both would write to
one checkpoint and one sink. So each launch of a query has a claim, and a later launch has a greater
one. A worker writes its claim into the query's checkpoint before it starts the query, and ends the
query when it sees a greater one there: it looks before each batch of a ``foreachBatch`` function,
and every second.

A batch that is already running cannot be stopped from outside. Spark refuses its commit, as the
newer launch has written the log of offsets in the meantime. What the batch has written to its sink
by then stays: sinks are made for a batch that is done twice.

A claim is an empty file whose name says all. So nothing can be half written, and no two launches
write the same file.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stormkeeper.errors import ClaimedError, WorkerError
from stormkeeper.topology.claims import Claim
from stormkeeper.worker.failure import readable

log = logging.getLogger(__name__)

#: The folder of claims in a checkpoint, beside Spark's own.
_FOLDER = "claims"

#: How often a worker looks for newer claims.
LOOK_SECS = 1.0

#: What is raised where a checkpoint cannot be read or written, or the JVM has ended.
_UNREADABLE = (Py4JError, PySparkException, OSError)


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

    def take(self, claim: Claim) -> Claim | None:
        """Write `claim`, unless there is a greater one: return that.

        The claims below it are removed: whoever made them sees this one.
        """
        newer = self.newer(claim)
        if newer is None:
            self._files.create(self._file(claim), True).close()
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

    A plain script, which is one query to the cluster, may have several, and says itself where their
    checkpoints are: these are claimed by their places, all with the claim of the script.

    Parameters
    ----------
    claims
        By the query's id. A query without one runs without, as under `storm local`.
    checkpoint
        Gives a query's checkpoint, by the query's id.
    begin
        Called before a checkpoint is claimed that no launch has claimed before. It raises
        `ClaimedError` if this launch must not claim it any more.
    """

    def __init__(
        self,
        claims: Mapping[str, Claim],
        checkpoint: Callable[[str], Checkpoint],
        begin: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._claims = claims
        self._checkpoint = checkpoint
        self._begin = begin
        self._taken: dict[str, tuple[Checkpoint, Claim]] = {}
        #: The greater claim of each query that was lost to one.
        self.lost: dict[str, Claim] = {}
        self._lock = threading.Lock()

    def take(self, query: str, claim: Claim | None = None) -> None:
        """Claim a query before it is started, with the claim that it has, or else with `claim`.

        Raises
        ------
        ClaimedError
            A later launch has claimed it.
        WorkerError
            The checkpoint could not be read or written.
        """
        claim = self._claims.get(query, claim)
        if claim is None:
            return
        try:
            checkpoint = self._checkpoint(query)
            if not checkpoint.claims():
                self._begin_first(query, claim)
            newer = checkpoint.take(claim)
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
            newer = checkpoint.newer(claim)
        except _UNREADABLE as error:
            # Spark cannot go on without the checkpoint either, and says why.
            log.debug("the claims of %s could not be read: %s", query, error)
            return True
        if newer is not None:
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
