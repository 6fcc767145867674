"""How a worker keeps to the claims of its job: a topology's queries have one each, a script one.

To the cluster a plain script is one query. It may have several queries of Spark's, whose
checkpoints it names itself. So each checkpoint is claimed when its query starts, and the script
ends when one of them is lost. A query without a checkpoint of its own has nothing to share.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pyspark.sql import SparkSession

from stormkeeper.daemon import spark_callbacks
from stormkeeper.errors import ClaimedError, OccupiedError
from stormkeeper.worker.claims import LOOK_SECS, Checkpoint, Claims, Owner
from stormkeeper.worker.ending import CLAIMED, INACTIVE, Ending
from stormkeeper.worker.job import Job
from stormkeeper.worker.live_queries import LiveQueries
from stormkeeper.worker.query_events import QueryEvents

log = logging.getLogger(__name__)


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
        ending: Ending,
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
