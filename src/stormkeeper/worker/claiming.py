"""How a worker keeps to the claims of its job: a topology's queries have one each, a script one.

To the cluster a plain script is one query. It may have several queries of Spark's, whose
checkpoints it names itself. So each checkpoint is claimed when its query starts, and the script
ends when one of them is lost. A query without a checkpoint of its own has nothing to share.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pyspark.sql import SparkSession

from stormkeeper.errors import ClaimedError
from stormkeeper.worker import callbacks
from stormkeeper.worker.claims import Checkpoint, Claims
from stormkeeper.worker.ending import CLAIMED, Ending
from stormkeeper.worker.job import Job
from stormkeeper.worker.live_queries import LiveQueries
from stormkeeper.worker.query_events import QueryEvents


class Claiming:
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
    """

    def __init__(
        self,
        job: Job,
        checkpoint: Callable[[str], Checkpoint],
        events: QueryEvents,
        ending: Ending,
        begin: Callable[[str], None],
    ) -> None:
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
        )

    def take_for_script(self, checkpoint: str | None) -> None:
        """Claim the checkpoint of a query that a script is about to start.

        Raises
        ------
        ClaimedError
            A later launch has claimed it.
        WorkerError
            The checkpoint could not be read or written.
        """
        if checkpoint is None:
            return
        try:
            self.claims.take(checkpoint, self._job.script_claim)
        except ClaimedError:
            self._ending.ask(CLAIMED)
            raise

    def admits(self, batch: Any) -> bool:
        """Return whether a batch may run: its query has not been claimed by another launch."""
        if not self._job.claims:
            return True
        if self._is_script:
            if not self.claims.look_at_all():
                self._ending.ask(CLAIMED)
            return not self.claims.lost
        run = self._events.running_as(callbacks.query_id(batch))
        return run is None or run.name is None or self.claims.look(run.name)

    def watched(self, live: LiveQueries) -> AbstractContextManager[None]:
        """End what another launch has claimed meanwhile, and a batch that runs with it."""

        def leave(query: str) -> None:
            if self._is_script:
                self._ending.ask(CLAIMED)
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
