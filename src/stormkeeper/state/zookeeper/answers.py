"""The answers to many requests at once, which one thread reads and another waits for."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kazoo.exceptions import AuthFailedError

from stormkeeper.state.zookeeper.errors import NotSentError, is_outcome_unknown


class Answers:
    """The answers to many requests, as they come. Safe for threads.

    Parameters
    ----------
    requests
        kazoo's request objects (`kazoo.protocol.serialization.GetData` and the like).
    """

    _NONE: Final = object()

    def __init__(self, requests: Sequence[Any]) -> None:
        self._requests = requests
        self._changed = threading.Condition()
        self._answers: list[Any] = [self._NONE] * len(requests)
        self._answered = 0
        self._wanted = 0
        #: What the first request that a broken connection took with it was answered.
        self.failure: Exception | None = None

    @property
    def count(self) -> int:
        """How many requests there are."""
        return len(self._requests)

    def requests(self, first: int, behind: int) -> Iterator[tuple[Any, "Answer"]]:
        """Yield requests, from one and up to another, each with where kazoo puts its answer."""
        for index in range(first, min(behind, len(self._requests))):
            yield self._requests[index], Answer(self, index)

    def wait(self, answered: int, deadline: float) -> bool:
        """Wait until so many have an answer, or a connection broke; False at the deadline."""
        with self._changed:
            self._wanted = answered
            return self._changed.wait_for(
                lambda: self._answered >= answered or self.failure is not None,
                max(0.0, deadline - time.monotonic()),
            )

    @property
    def none_sent(self) -> bool:
        """Whether a request has failed because it was not sent, and no other one was sent either.

        The first failure tells: where a connection breaks, those fail first that were sent in it.
        """
        with self._changed:
            return isinstance(self.failure, NotSentError) and all(
                answer is self._NONE or isinstance(answer, NotSentError) for answer in self._answers
            )

    def all(self) -> list[Any]:
        """Return what each request was answered: a value, or an exception of kazoo's."""
        return self._answers

    def put(self, index: int, answer: Any, failure: Exception | None = None) -> None:
        """Take an answer; a second one for the same request is dropped."""
        with self._changed:
            if self._answers[index] is not self._NONE:
                return
            self._answers[index] = answer
            self._answered += 1
            if failure is not None and self.failure is None:
                self.failure = failure
            if self._answered >= self._wanted or failure is not None:
                self._changed.notify_all()


class Answer:
    """Where kazoo puts the answer to one request of many."""

    __slots__ = ("_answers", "_index")

    def __init__(self, answers: Answers, index: int) -> None:
        self._answers = answers
        self._index = index

    def belongs_to(self, answers: Answers) -> bool:
        """Return whether it is one of these."""
        return self._answers is answers

    def set(self, value: Any = None) -> None:
        """Take what kazoo read."""
        self._answers.put(self._index, value)

    def set_exception(self, error: Exception) -> None:
        """Take what kazoo raises."""
        broken = is_outcome_unknown(error) or isinstance(error, AuthFailedError)
        self._answers.put(self._index, error, error if broken else None)
