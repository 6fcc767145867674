"""A list of names that is followed: all of them at first, then what comes and what goes."""

import json
import sys
import time
from collections.abc import Callable, Collection

from stormkeeper.names import printable


class Listing:
    """Prints names, and what changes of them.

    Parameters
    ----------
    as_json
        Print the whole list as JSON, each time that it has changed; else the names, one a line,
        and then a line with a time for each that comes (+) or goes (-).
    shown
        Makes a name fit for a terminal.
    """

    def __init__(self, *, as_json: bool, shown: Callable[[str], str] = str) -> None:
        self._as_json = as_json
        self._shown = shown
        self._names: frozenset[str] | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names that were printed and have not gone."""
        return self._names or frozenset()

    def show(self, names: Collection[str]) -> None:
        """Print what is new since the last time."""
        before, now = self._names, frozenset(names)
        if now == before:
            return
        self._names = now
        if self._as_json:
            lines = [json.dumps(sorted(now))]
        elif before is None:
            lines = [self._shown(name) for name in sorted(now)]
        else:
            moment = time.strftime("%H:%M:%S")
            changes = [("+", name) for name in sorted(now - before)]
            changes += [("-", name) for name in sorted(before - now)]
            lines = [f"{moment} {sign}{self._shown(name)}" for sign, name in changes]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()

    def show_more(self, names: Collection[str]) -> None:
        """Do as `show`, when not all servers answered: no name is reported as gone."""
        self.show(self.names.union(names))


def remark(text: str) -> None:
    """Print a remark with the time on stderr."""
    sys.stderr.write(f"storm: {time.strftime('%H:%M:%S')} {printable(text)}\n")
    sys.stderr.flush()
