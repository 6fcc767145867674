"""Whether a worker is to end before its queries do, and what its exit code says then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: A query was left to a later launch.
CLAIMED: Final = 3

#: A plain script was ended as its topology is not active: to be started again at once, and to wait.
INACTIVE: Final = 4

#: A worker of a supervisor was ended by a signal, by whomever: its queries have not ended. It is
#: what a shell says of a program that SIGTERM has ended.
STOPPED: Final = 143


class Ending:
    """Why a worker ends, if it is to. Safe for many threads.

    Parameters
    ----------
    signalled
        Whether a signal asks it to.
    stopped_code
        Its exit code then.
    say
        Called with `INACTIVE` when the worker is asked to end with that code, which counts for the
        supervisor only if the worker says so.
    """

    def __init__(
        self,
        signalled: Callable[[], bool],
        stopped_code: int,
        say: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._say = say
        self._signalled = signalled
        self._stopped_code = stopped_code
        self._code: int | None = None

    @property
    def is_asked(self) -> bool:
        """Whether it is to end."""
        return self._code is not None or self._signalled()

    @property
    def code(self) -> int:
        """The exit code of one that is to end; 0 where it is not to."""
        if self._signalled():
            return self._stopped_code
        return self._code or 0

    def ask(self, code: int) -> None:
        """Have it end with an exit code; the first one counts."""
        if self._code is None:
            if code == INACTIVE:
                self._say(code)
            self._code = code
