"""Sessions that write to the cluster's state for as long as they are let, and log what came of it.

What is asked of a store whose servers fail: what was acknowledged is there, what was never sent is
not, what has an unknown outcome is there once or not at all, and half a transaction never is.
"""

import itertools
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from stormkeeper.errors import (
    OutcomeUnknownError,
    StateUnavailableError,
    TransactionError,
)
from stormkeeper.state.storage import ClusterState
from support.transactions import Transaction
from support.waiting import until

TOP: Final = "/load"
COUNT: Final = f"{TOP}/count"
COUNTED: Final = f"{TOP}/counted"

#: Between two writes of one session, in seconds: the machine has other things to do.
PAUSE_SECS: Final = 0.003


@dataclass
class Log:
    """What came of each write, by the name of the node that it makes."""

    done: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)

    def check(self, found: set[str]) -> None:
        """Fail if the nodes that there are are not those that the log allows."""
        lost = set(self.done) - found
        assert not lost, f"{len(lost)} acknowledged writes are lost, such as {min(lost)}"
        appeared = set(self.not_done) & found
        assert not appeared, f"what was never sent, or refused, is there: {sorted(appeared)}"
        unasked = found - set(self.done) - set(self.unknown)
        assert not unasked, f"nobody wrote {sorted(unasked)}"


class Loader(ABC):
    """A thread that writes through a session of its own; each write makes a node of a new name."""

    def __init__(self, name: str, state: ClusterState) -> None:
        self.name = name
        self.state = state
        self.log = Log()
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self.name} hangs in a call"
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop.wait(PAUSE_SECS):
                    return
                self._write_logged(f"{self.name}-{number:06}")
        except BaseException as error:
            # It is raised again where the test waits.
            self.failure = error

    def _write_logged(self, name: str) -> None:
        try:
            self.write(name)
        except OutcomeUnknownError:
            self.log.unknown.append(name)
        except (StateUnavailableError, TransactionError):
            self.log.not_done.append(name)
        else:
            self.log.done.append(name)

    @abstractmethod
    def write(self, name: str) -> None:
        """Make the node of that name."""

    @abstractmethod
    def check(self, state: ClusterState) -> None:
        """Fail unless what `state` sees is what the log says."""


class Writer(Loader):
    """Sets the values of new nodes."""

    def write(self, name: str) -> None:
        self.state.set_data(f"{TOP}/{self.name}/{name}", name.encode())

    def check(self, state: ClusterState) -> None:
        found = state.children_data(f"{TOP}/{self.name}")
        self.log.check(set(found))
        assert [name for name, node in found.items() if node.data != name.encode()] == []


class Tally(Loader):
    """Counts, with others, in one node, and makes a node for each number in the same transaction.

    The node is named by who counted, and its value is the number.
    """

    def write(self, name: str) -> None:
        found = self.state.get_data_with_version(COUNT)
        assert found is not None
        number = str(int(found.data) + 1).encode()
        (
            Transaction(self.state.commit)
            .set_data(COUNT, number, found.version)
            .create(f"{COUNTED}/{name}", number)
            .commit()
        )

    def check(self, state: ClusterState) -> None:
        names = state.get_children(COUNTED)
        self.log.check({name for name in names if name.startswith(f"{self.name}-")})


class Load:
    """Loaders, at work from entering the context to leaving it.

    Parameters
    ----------
    states
        A session for each; they are not closed. Every other one counts.
    """

    def __init__(self, states: Sequence[ClusterState]) -> None:
        self._loaders = [
            (Tally if index % 2 else Writer)(f"{'tally' if index % 2 else 'writer'}{index}", state)
            for index, state in enumerate(states)
        ]

    def __enter__(self) -> Self:
        state = self._loaders[0].state
        state.set_data(COUNT, b"0")
        state.mkdirs(COUNTED)
        for loader in self._loaders:
            loader.state.sync_path(TOP)
            loader.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        for loader in self._loaders:
            loader.stop()

    def goes_on(self) -> None:
        """Wait until every session has done some more writes."""
        before = [len(loader.log.done) for loader in self._loaders]
        until(
            lambda: all(
                loader.failure or len(loader.log.done) >= count + 5
                for loader, count in zip(self._loaders, before, strict=True)
            ),
            60,
        )

    def stands_still(self) -> None:
        """Wait until every session has failed to write once more."""
        before = [len(x.log.unknown) + len(x.log.not_done) for x in self._loaders]
        until(
            lambda: all(
                x.failure or len(x.log.unknown) + len(x.log.not_done) > count
                for x, count in zip(self._loaders, before, strict=True)
            ),
            60,
        )

    def check(self, state: ClusterState) -> None:
        """Fail unless what `state` sees is what the logs say, once the load has ended."""
        state.sync_path("/")
        for loader in self._loaders:
            loader.check(state)
        last = int(state.get_data(COUNT) or b"0")
        numbers = Counter(int(node.data) for node in state.children_data(COUNTED).values())
        assert numbers == Counter(range(1, last + 1)), "a number was counted twice, or half"
