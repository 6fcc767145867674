"""Talks with several servers at once and waits no longer than it has to.

- A read costs as long as the slowest server that is well. One that fails has cost the patience of
  one try; from then on it is a suspect, and nobody waits for a suspect longer than `GRACE` beyond
  the others, until it has answered again. It is asked all the same: that is how it comes back.
- A server that fails at once (its connection was cut, it is being restarted) is asked a second
  time while the others are waited for.
- Where every server is a suspect, all are waited for.
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
from stormkeeper.pacemaker.client.conversations import Conversation
from stormkeeper.pacemaker.wire import Message

T = TypeVar("T")

#: Seconds that a suspect is waited for when all others are done: what a connection and an answer
#: take in a data centre, many times over.
GRACE: Final = 0.1

#: Share of a try's patience within which a failure was so quick that trying again costs nobody.
_QUICK: Final = 0.5


@dataclass(frozen=True, slots=True)
class Outcomes(Generic[T]):
    """What came of talking with several servers; every server is in one of the two."""

    answered: dict[Address, T] = field(default_factory=dict)
    failed: dict[Address, StormkeeperError] = field(default_factory=dict)


class _Talk(Generic[T]):
    """A conversation with one server, and where it stands."""

    def __init__(self, client: PacemakerClient) -> None:
        self.client = client
        self.conversation: Conversation[T]
        self.answers: list[Message | None] = []
        self.missing = 0
        #: Tells answers of this round from those of rounds before.
        self.round = 0
        self.is_patient = not client.suspect
        self.has_second_chance = self.is_patient


class _Fanout(Generic[T]):
    def __init__(
        self,
        converse: Callable[[PacemakerClient], Conversation[T]],
        *,
        quick: float,
        end: float,
        tries: Counter[Address],
        started: float,
    ) -> None:
        self._converse = converse
        self._tries = tries
        self._started = started
        self._quick_until = time.monotonic() + quick
        self._end = end
        #: A talk, its round, which request of the round, and the future of the answer.
        self._events: queue.SimpleQueue[tuple[_Talk[T], int, int, Future[Message]]]
        self._events = queue.SimpleQueue()
        self._open: list[_Talk[T]] = []
        self.outcomes: Outcomes[T] = Outcomes()

    def run(self, clients: Iterable[PacemakerClient]) -> None:
        talks: list[_Talk[T]] = [_Talk(client) for client in clients]
        nobody_is_well = not any(talk.is_patient for talk in talks)
        for talk in talks:
            talk.is_patient = talk.is_patient or nobody_is_well
            if talk.client.retry_in() and not talk.is_patient:
                self._end_talk(talk, f"failed just now ({talk.client.last_failure})")
            else:
                self._open.append(talk)
        for talk in list(self._open):
            self._start(talk)
        grace_end: float | None = None
        while self._open:
            now = time.monotonic()
            if any(talk.is_patient for talk in self._open):
                grace_end = None
            elif grace_end is None:
                grace_end = now + GRACE
            until = self._end if grace_end is None else min(grace_end, self._end)
            try:
                event = self._events.get(timeout=max(0.0, until - now))
            except queue.Empty:
                break
            self._take(*event)
        for talk in self._open:
            self._end_talk(
                talk,
                "did not answer before the deadline"
                if talk.is_patient
                else f"failed before ({talk.client.last_failure}) and did not answer within"
                f" {GRACE:g} s after the others",
            )

    def _start(self, talk: _Talk[T]) -> None:
        conversation = self._converse(talk.client)
        talk.conversation = conversation
        self._tries[talk.client.address] += 1
        self._step(talk, lambda: next(conversation))

    def _step(self, talk: _Talk[T], go_on: Callable[[], list[Message]]) -> None:
        """Let a conversation go on until it waits for answers or is over."""
        try:
            messages = go_on()
            talk.round += 1
            talk.answers = [None] * len(messages)
            talk.missing = len(messages)
            left = self._end - time.monotonic()
            tries = self._tries[talk.client.address]
            for place, message in enumerate(messages):
                future = talk.client.submit(
                    message, deadline=left, started=self._started, tries=tries
                )
                future.add_done_callback(partial(self._arrived, talk, talk.round, place))
        except StopIteration as end:
            self._open.remove(talk)
            self.outcomes.answered[talk.client.address] = end.value
        except StormkeeperError as error:
            self._failed(talk, error)

    def _arrived(self, talk: _Talk[T], round_: int, place: int, future: Future[Message]) -> None:
        # In the client's thread.
        self._events.put((talk, round_, place, future))

    def _take(self, talk: _Talk[T], round_: int, place: int, future: Future[Message]) -> None:
        if talk.round != round_:
            return  # of a round that has failed already
        error = future.exception()
        if isinstance(error, UnsupportedExtensionError):
            unsupported = error
            self._step(talk, lambda: talk.conversation.throw(unsupported))
        elif isinstance(error, StormkeeperError):
            self._failed(talk, error)
        else:
            talk.is_patient = True  # it answers, so it is waited for
            talk.answers[place] = future.result()
            talk.missing -= 1
            if talk.missing == 0:
                answers = [answer for answer in talk.answers if answer is not None]
                self._step(talk, lambda: talk.conversation.send(answers))

    def _failed(self, talk: _Talk[T], error: StormkeeperError) -> None:
        talk.conversation.close()
        talk.round += 1
        if (
            talk.has_second_chance
            and time.monotonic() < self._quick_until
            and isinstance(error, PacemakerUnavailableError | RemoteProtocolError)
            and not isinstance(error, PacemakerClosedError)
        ):
            talk.has_second_chance = False
            self._start(talk)
        else:
            self._open.remove(talk)
            self.outcomes.failed[talk.client.address] = error

    def _end_talk(self, talk: _Talk[T], reason: str) -> None:
        address = talk.client.address
        self.outcomes.failed[address] = PacemakerUnavailableError(f"{address} {reason}")


def ask_all(
    clients: Iterable[PacemakerClient],
    converse: Callable[[PacemakerClient], Conversation[T]],
    *,
    try_timeout: float,
    deadline: float,
    tries: Counter[Address],
    started: float,
) -> Outcomes[T]:
    """Hold a conversation with each server, all at once.

    Parameters
    ----------
    clients
        The servers.
    converse
        Makes the conversation with one of them.
    try_timeout
        The clients' patience, in seconds.
    deadline
        Seconds after which whatever came is returned.
    tries
        How often each server was tried for the same; counts on.
    started
        When it was tried first, in monotonic seconds.
    """
    end, quick = time.monotonic() + deadline, _QUICK * try_timeout
    fanout: _Fanout[T] = _Fanout(converse, quick=quick, end=end, tries=tries, started=started)
    fanout.run(clients)
    return fanout.outcomes
