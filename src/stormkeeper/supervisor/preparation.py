"""What precedes a launch, pure: the topology's code, then its environment, each as often as needed.

What has failed, or was not answered in time, is asked for again, less and less often.
"""

from enum import Enum, auto
from itertools import count
from math import inf

from stormkeeper.supervisor.events import (
    Abandon,
    FetchCode,
    Instruction,
    PrepareEnvironment,
    ReportProblem,
)
from stormkeeper.supervisor.records import SlotAssignment
from stormkeeper.supervisor.times import Times


class Step(Enum):
    """How far a preparation is."""

    CODE = auto()
    ENVIRONMENT = auto()
    READY = auto()


class Preparation:
    """The preparation of one assignment.

    Parameters
    ----------
    assignment
        What is to be launched.
    times
        How long each step may take.
    requests
        Gives each request its number, another one each time.
    """

    def __init__(self, assignment: SlotAssignment, times: Times, requests: "count[int]") -> None:
        self.assignment = assignment
        self.step = Step.CODE
        #: When the request must be answered, or when the next one is made.
        self.deadline = -inf
        #: Why the step failed last; empty if it did not.
        self.reason = ""
        self._times = times
        self._requests = requests
        self._failures = 0
        #: The request that is on its way, if one is.
        self._request: int | None = None

    def proceed(self, now: float) -> list[Instruction]:
        """Return what is to be done by now."""
        if self.step is Step.READY or now < self.deadline:
            return []
        if self._request is not None:
            what = "the code" if self.step is Step.CODE else "the environment"
            given_up = self.abandon()
            return given_up + self._failed(f"{what} was not there in time", now)
        self._request = next(self._requests)
        if self.step is Step.CODE:
            self.deadline = now + self._times.code
            return [FetchCode(self._request, self.assignment)]
        self.deadline = now + self._times.environment
        return [PrepareEnvironment(self._request, self.assignment)]

    def prepared(self, request: int) -> None:
        """Take in that a request was done."""
        if request == self._request:
            self.step = Step.ENVIRONMENT if self.step is Step.CODE else Step.READY
            self._request, self.deadline = None, -inf
            self._failures, self.reason = 0, ""

    def not_prepared(self, request: int, reason: str, now: float) -> list[Instruction]:
        """Take in that a request could not be done; return what is to be done about it."""
        return self._failed(reason, now) if request == self._request else []

    def abandon(self) -> list[Instruction]:
        """Wait no more for the answer to a request."""
        return [] if self._request is None else [Abandon(self._request)]

    def _failed(self, reason: str, now: float) -> list[Instruction]:
        self._request, self.reason = None, reason
        self._failures += 1
        self.deadline = now + self._times.retry(self._failures)
        return [ReportProblem(self.assignment, reason)]
