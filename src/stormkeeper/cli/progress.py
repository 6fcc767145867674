"""What a command does or waits for, on stderr: on a terminal in one line that changes in place."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self, TextIO

from stormkeeper.client.wait import says_more
from stormkeeper.names import printable

#: Goes to the line's beginning and wipes it.
_WIPE = "\r\x1b[K"


class Progress:
    """Tells a person how a command gets on; elsewhere each text stands in a line of its own, once.

    Parameters
    ----------
    stream
        Where it is told; None: stderr.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_live = self._stream.isatty()
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wipe()

    def step(self, text: str, moment: str = "") -> None:
        """Do as `say` on a terminal alone: it is over soon, and of no interest afterwards."""
        if self._is_live:
            self.say(text, moment)

    def say(self, text: str, moment: str = "") -> None:
        """Tell what is done or waited for.

        Parameters
        ----------
        text
            It; what is not printable is escaped, as others may have written it.
        moment
            What changes all the time, such as seconds: for a terminal alone.
        """
        text = printable(text)
        if self._is_live:
            line = f"{text} ({moment})" if moment else text
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(_WIPE + (line if len(line) <= width else f"{line[: width - 1]}…"))
            self._stream.flush()
        elif says_more(text, self._text):
            self._stream.write(f"storm: {text}\n")
            self._stream.flush()
        self._text = text

    def remark(self, text: str) -> None:
        """Tell what stays there."""
        self.wipe()
        self._stream.write(f"storm: {printable(text)}\n")
        self._stream.flush()

    def wipe(self) -> None:
        """Take the line away, if there is one."""
        if self._is_live and self._text:
            self._stream.write(_WIPE)
            self._stream.flush()
        self._text = ""


def left(wait_secs: float, passed: float) -> str:
    """Return how long a wait of known length lasts, or else how long it has lasted."""
    secs = wait_secs - passed
    return f"{secs:.0f} s left" if secs > 0 else f"{passed:.0f} s"
