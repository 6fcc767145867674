"""Ends all workers of a machine's supervisor, whether that runs or not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from stormkeeper.errors import SupervisorError
from stormkeeper.supervisor import local_state
from stormkeeper.supervisor.directories import Directories
from stormkeeper.supervisor.worker_processes import WorkerProcesses

#: How often it is looked what is left, in seconds.
_LOOK_SECS: Final = 0.1

#: How long killed processes may take to be gone, in seconds.
_KILLED_SECS: Final = 30.0


@dataclass(frozen=True, slots=True)
class EndedWorker:
    """A worker that was ended.

    Parameters
    ----------
    worker_id
        Its id.
    storm_id, port
        Its topology and its slot; None where nobody has written them down.
    pid
        Of its own process; None where that had ended before.
    by_force
        Whether some process of it had to be killed.
    """

    worker_id: str
    storm_id: str | None
    port: int | None
    pid: int | None
    by_force: bool


def end_workers(directories: Directories, grace_secs: float) -> list[EndedWorker]:
    """End the workers that a supervisor has written down, and those that carry its mark.

    Parameters
    ----------
    directories
        The supervisor's.
    grace_secs
        How long they may take, to finish their batches, before they are killed.

    Returns
    -------
    list of EndedWorker
        Those of which something ran.

    Raises
    ------
    SupervisorError
        Some do not end.
    """
    slots = {
        record.worker.worker_id: (record.worker, port)
        for port, record in local_state.peek(directories.local_state).items()
        if record.worker is not None
    }
    processes = WorkerProcesses(str(directories.supervisor))
    for worker, _ in slots.values():
        processes.adopt(worker.worker_id, worker.process)
    for worker_id in processes.strays():
        processes.adopt(worker_id, None)
    found = {worker_id: look for worker_id, look in processes.look().items() if look.members}
    for worker_id in found:
        processes.terminate(worker_id)
    by_force = _wait(processes, set(found), time.monotonic() + grace_secs)
    for worker_id in by_force:
        processes.kill(worker_id)
    deadline = time.monotonic() + _KILLED_SECS
    while left := _wait(processes, by_force, time.monotonic() + 1.0):
        if time.monotonic() > deadline:
            raise SupervisorError(
                f"these workers cannot be ended, even by force: {', '.join(sorted(left))}; restart"
                " the machine, or free what they wait for"
            )
        for worker_id in left:
            processes.kill(worker_id)
    ended = []
    for worker_id, look in found.items():
        known, port = slots.get(worker_id, (None, None))
        ended.append(
            EndedWorker(
                worker_id,
                known.assignment.storm_id if known is not None else None,
                port,
                look.process.pid if look.process is not None and look.is_alive else None,
                worker_id in by_force,
            )
        )
    return ended


def _wait(processes: WorkerProcesses, worker_ids: set[str], deadline: float) -> set[str]:
    """Wait until nothing is left of workers; return those of which something is at the deadline."""
    while True:
        looks = processes.look()
        left = {worker_id for worker_id in worker_ids if looks[worker_id].members}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_LOOK_SECS)
