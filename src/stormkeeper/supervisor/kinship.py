"""Which processes belong to a worker, whoever their parents are by now; pure.

A worker starts others: Spark's JVM, which starts Python workers. They may have sessions of their
own, and parents that are gone. A process belongs to a worker if one of these is true:

- its environment carries the worker's mark, which children inherit;
- it is in the worker's session, and was started before the worker was last seen alive. (Later the
  session's number may have gone to a stranger.)
- it belonged to the worker at an earlier look;
- its parent belongs to the worker.
"""

from collections.abc import Collection, Mapping

from stormkeeper.supervisor.process_table import Process, ProcessId


def members(
    table: Mapping[int, Process],
    *,
    marked: Collection[int],
    main: ProcessId | None,
    main_seen: int,
    before: Collection[ProcessId] = (),
) -> list[ProcessId]:
    """Return the processes of one worker that have not ended, in the order of their start.

    Parameters
    ----------
    table
        All processes, by pid.
    marked
        Pids of those that carry the worker's mark.
    main
        The worker's own process, the leader of its session; None if nobody knows which it is.
    main_seen
        When that process was last seen alive, in ticks as in `ProcessId`.
    before
        What this returned at an earlier look.
    """
    known = frozenset(before)
    found = {
        pid
        for pid, process in table.items()
        if pid in marked
        or process.id in known
        or (main is not None and _is_of_session(process, main, main_seen))
    }
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    open_ends = list(found)
    while open_ends:
        new = set(children.get(open_ends.pop(), ())) - found
        found |= new
        open_ends += new
    return sorted(
        (table[pid].id for pid in found if not table[pid].has_ended),
        key=lambda process: (process.started, process.pid),
    )


def _is_of_session(process: Process, main: ProcessId, main_seen: int) -> bool:
    return process.session == main.pid and main.started <= process.id.started <= main_seen
