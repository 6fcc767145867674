"""Ends the workers of a local cluster, in order: by Nimbus if it can be, else without it."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from stormkeeper.errors import StormkeeperError
from stormkeeper.local.submission import Submission
from stormkeeper.supervisor.directories import Directories
from stormkeeper.supervisor.worker_processes import WorkerProcesses, end_workers

#: How often it is looked what is left, in seconds.
_LOOK_SECS: Final = 0.1


def end_topology(
    submission: Submission,
    machines: Sequence[Directories],
    grace_secs: float,
    stop_supervisors: Callable[[], None],
    note: Callable[[str], None],
) -> None:
    """End a topology, so that its running batches are finished.

    Parameters
    ----------
    submission
        Closed by then.
    machines
        The folders of the supervisors.
    grace_secs
        How long the workers may take, before they are ended by force.
    stop_supervisors
        Ends what would start workers again.
    note
        Called with what is to be said.
    """
    if submission.storm_id:
        try:
            submission.kill()
            _wait_gone(machines, grace_secs)
        except StormkeeperError as error:
            note(f"the topology is ended without Nimbus: {error}")
    if _any_left(machines):
        stop_supervisors()
        for machine in machines:
            try:
                end_workers(machine, grace_secs)
            except StormkeeperError as error:
                note(f"storm: {error}")


def _wait_gone(machines: Sequence[Directories], secs: float) -> None:
    deadline = time.monotonic() + secs
    while _any_left(machines) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECS)


def _any_left(machines: Sequence[Directories]) -> bool:
    return any(WorkerProcesses(str(machine.supervisor)).strays() for machine in machines)
