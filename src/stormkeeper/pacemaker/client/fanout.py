"""Asks several servers at once and waits no longer than it has to.

- A read takes as long as the slowest healthy server. A server that fails costs one try. From then
  on it is a suspect, until it answers again: it is still asked, but nobody waits for it longer than
  `GRACE` beyond the others.
- A server that fails at once (its connection was cut, it is being restarted) is asked a second
  time, which costs one more try at most.
- If every server is a suspect, the read waits for all of them. A caller in a hurry does not wait
  for those that have failed just now, and are left alone for a moment.
"""

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

from stormkeeper.conf import Address
from stormkeeper.errors import (
    PacemakerClosedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.questions import Question, Round
from stormkeeper.pacemaker.wire import Message

T = TypeVar("T")

#: Seconds to wait for a suspect when all others are done: many times what a connection and an
#: answer take in a data centre.
GRACE: Final = 0.1

#: Share of a try's timeout within which a failure is quick enough for a second try.
_QUICK: Final = 0.5


@dataclass(frozen=True, slots=True)
class Outcomes(Generic[T]):
    """What came of asking several servers; every server is in one of the two."""

    answered: dict[Address, T] = field(default_factory=dict)
    failed: dict[Address, StormkeeperError] = field(default_factory=dict)


class _Asked(Generic[T]):
    """A question to one server, and where it stands."""

    def __init__(self, client: PacemakerClient) -> None:
        self.client = client
        self.question: Question[T]
        self.answers: list[Message | None] = []
        self.missing = 0
        #: Tells answers of this round from those of rounds before.
        self.round = 0
        self.is_patient = not client.suspect
        self.has_second_chance = self.is_patient


class _Fanout(Generic[T]):
    def __init__(
        self,
        question_for: Callable[[PacemakerClient], Question[T]],
        *,
        quick: float,
        end: float,
        tries: Counter[Address],
        started: float,
        hurried: bool,
    ) -> None:
        self._hurried = hurried
        self._question_for = question_for
        self._tries = tries
        self._started = started
        self._quick_until = time.monotonic() + quick
        self._end = end
        #: Whom, its round, which request of the round, and the future of the answer.
        self._events: queue.SimpleQueue[tuple[_Asked[T], int, int, Future[Message]]]
        self._events = queue.SimpleQueue()
        self._open: list[_Asked[T]] = []
        self.outcomes: Outcomes[T] = Outcomes()

    def run(self, clients: Iterable[PacemakerClient]) -> None:
        everyone: list[_Asked[T]] = [_Asked(client) for client in clients]
        all_are_suspects = not any(asked.is_patient for asked in everyone)
        for asked in everyone:
            asked.is_patient = asked.is_patient or all_are_suspects
            is_waited_for = asked.is_patient and not (all_are_suspects and self._hurried)
            if asked.client.retry_in() and not is_waited_for:
                self._give_up_on(asked, f"failed just now ({asked.client.last_failure})")
            else:
                self._open.append(asked)
        for asked in list(self._open):
            self._start(asked)
        grace_end: float | None = None
        while self._open:
            now = time.monotonic()
            if any(asked.is_patient for asked in self._open):
                grace_end = None
            elif grace_end is None:
                grace_end = now + GRACE
            until = self._end if grace_end is None else min(grace_end, self._end)
            try:
                event = self._events.get(timeout=max(0.0, until - now))
            except queue.Empty:
                break
            self._take(*event)
        for asked in self._open:
            self._give_up_on(
                asked,
                "did not answer before the deadline"
                if asked.is_patient
                else f"failed before ({asked.client.last_failure}) and did not answer within"
                f" {GRACE:g} s after the others",
            )

    def _start(self, asked: _Asked[T]) -> None:
        question = self._question_for(asked.client)
        asked.question = question
        self._tries[asked.client.address] += 1
        self._step(asked, lambda: next(question))

    def _step(self, asked: _Asked[T], go_on: Callable[[], Round]) -> None:
        """Let a question go on until it waits for answers or is over."""
        try:
            requests, meanwhile = go_on()
            asked.round += 1
            asked.answers = [None] * len(requests)
            asked.missing = len(requests)
            left = self._end - time.monotonic()
            tries = self._tries[asked.client.address]
            for place, message in enumerate(requests):
                future = asked.client.submit(
                    message, deadline=left, started=self._started, tries=tries
                )
                future.add_done_callback(partial(self._arrived, asked, asked.round, place))
            if meanwhile is not None:
                meanwhile()
        except StopIteration as end:
            self._open.remove(asked)
            self.outcomes.answered[asked.client.address] = end.value
        except StormkeeperError as error:
            self._failed(asked, error)

    def _arrived(self, asked: _Asked[T], round_: int, place: int, future: Future[Message]) -> None:
        # In the client's thread.
        self._events.put((asked, round_, place, future))

    def _take(self, asked: _Asked[T], round_: int, place: int, future: Future[Message]) -> None:
        if asked.round != round_:
            return  # of a round that has failed already
        error = future.exception()
        if isinstance(error, UnsupportedExtensionError):
            unsupported = error
            self._step(asked, lambda: asked.question.throw(unsupported))
        elif isinstance(error, StormkeeperError):
            self._failed(asked, error)
        else:
            asked.is_patient = True  # it answers, so it is waited for
            asked.answers[place] = future.result()
            asked.missing -= 1
            if asked.missing == 0:
                answers = [answer for answer in asked.answers if answer is not None]
                self._step(asked, lambda: asked.question.send(answers))

    def _failed(self, asked: _Asked[T], error: StormkeeperError) -> None:
        asked.question.close()
        asked.round += 1
        if (
            asked.has_second_chance
            and time.monotonic() < self._quick_until
            and isinstance(error, PacemakerUnavailableError | RemoteProtocolError)
            and not isinstance(error, PacemakerClosedError)
        ):
            asked.has_second_chance = False
            self._start(asked)
        else:
            self._open.remove(asked)
            self.outcomes.failed[asked.client.address] = error

    def _give_up_on(self, asked: _Asked[T], reason: str) -> None:
        address = asked.client.address
        self.outcomes.failed[address] = PacemakerUnavailableError(f"{address} {reason}")


def ask_all(
    clients: Iterable[PacemakerClient],
    question_for: Callable[[PacemakerClient], Question[T]],
    *,
    try_timeout: float,
    deadline: float,
    tries: Counter[Address],
    started: float,
    hurried: bool = False,
) -> Outcomes[T]:
    """Put a question to each server, all at once.

    Parameters
    ----------
    clients
        The servers.
    question_for
        Makes the question to one of them.
    try_timeout
        The clients' patience, in seconds.
    deadline
        Seconds after which whatever came is returned.
    tries
        How often each server was tried for the same; counts on.
    started
        When it was tried first, in monotonic seconds.
    hurried
        Whether a server that has failed just now is not tried again, also where all have.
    """
    end, quick = time.monotonic() + deadline, _QUICK * try_timeout
    fanout: _Fanout[T] = _Fanout(
        question_for, quick=quick, end=end, tries=tries, started=started, hurried=hurried
    )
    fanout.run(clients)
    return fanout.outcomes
