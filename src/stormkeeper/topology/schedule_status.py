"""The kinds of a topology's ``sched_status``, the scheduler's text about its workers.

The scheduler begins its texts with these kinds, in Storm's words where Storm has such a text. Other
parts of the cluster tell the texts apart by the kinds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ScheduleKind(StrEnum):
    """The beginning of a status text."""

    COMPLETED = "Completed"
    FULL = "Fully Scheduled"
    FEWER_SLOTS = "Running with fewer slots than requested"
    LACKS_SLOTS = "Not enough slots"
    LACKS_MEMORY = "Not enough memory"
    #: The workers run, or may run, and their heartbeats say more.
    NO_PULSE = "No pulse comes from"
    NO_PACEMAKER = "No Pacemaker can say"


#: Kinds of a schedule in which all queries have a worker.
PLACED: Final = frozenset({ScheduleKind.FULL, ScheduleKind.FEWER_SLOTS})


def schedule_kind(text: str | None) -> ScheduleKind | None:
    """Return the kind of a status text; None for no text and for other reasons to wait.

    Examples
    --------
    >>> schedule_kind("Running with fewer slots than requested (1/2)").name
    'FEWER_SLOTS'
    """
    return next((kind for kind in ScheduleKind if (text or "").startswith(kind)), None)
