"""The calls of a client that are not settled yet: in which order they came, and how they end.

Every call ends once: with an answer or an error, and with it the older writes that follow it (see
`supersession`). The exchange's own question, which nobody waits for, is not among them.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from stormkeeper.errors import PacemakerUnavailableError, RemoteProtocolError, StormkeeperError
from stormkeeper.pacemaker.client.answers import asked
from stormkeeper.pacemaker.client.calls import Call, Effect, Settle
from stormkeeper.pacemaker.wire import Message

_NEVER: Final = float("inf")


class OpenCalls:
    """The calls that somebody waits for.

    Parameters
    ----------
    peer
        Name of the server in messages.
    effects
        Where what became of a call is put.
    """

    __slots__ = ("_calls", "_effects", "_last", "_peer")

    def __init__(self, peer: str, effects: deque[Effect]) -> None:
        self._peer = peer
        self._effects = effects
        #: By their place in the order in which they were made.
        self._calls: dict[int, Call] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        """Give those that are open now; they may be settled meanwhile."""
        return iter(list(self._calls.values()))

    def add(self, call: Call) -> None:
        """Take a call, and give it its place in the order."""
        self._last += 1
        call.sequence = self._last
        self._calls[call.sequence] = call

    def deadline(self) -> float:
        """Return when the first of them is to be given up."""
        return min((call.deadline for call in self._calls.values()), default=_NEVER)

    def overdue(self, now: float) -> list[Call]:
        """Return those whose deadline has come."""
        return [call for call in self._calls.values() if now >= call.deadline]

    def settle(self, call: Call, outcome: Message | StormkeeperError) -> None:
        """End a call, and those that follow it; one that has ended already stays as it is."""
        if call.settled:
            return
        call.settled = True
        if call.sequence == 0:
            return
        del self._calls[call.sequence]
        self._effects.append(Settle(call, outcome))
        for follower in call.followers:
            # An error of its own: one that is raised in two threads mixes up their tracebacks.
            self.settle(
                follower,
                Message(follower.kind + 1)
                if isinstance(outcome, Message)
                else type(outcome)(str(outcome)),
            )

    def give_up(self, call: Call, now: float, last_failure: str) -> None:
        """End a call that was not answered.

        Parameters
        ----------
        call
            The call.
        now
            The time.
        last_failure
            Why the connection failed the last time, for a call that saw no failure itself.
        """
        reason = call.reason or last_failure or "no answer yet"
        count = call.earlier_tries + call.tries
        tries = "1 try" if count == 1 else f"{count} tries"
        message = (
            f"{self._peer} did not answer {asked(call.kind, call.path)}"
            f" ({tries} in {now - call.started:.1f} s; {reason})"
        )
        at_fault = call.peer_at_fault
        self.settle(
            call, RemoteProtocolError(message) if at_fault else PacemakerUnavailableError(message)
        )
