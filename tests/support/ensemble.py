"""A real ensemble of three ZooKeeper servers for tests: one per test run, or one to be killed."""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import LocalClusterError
from stormkeeper.local import reservations
from stormkeeper.local.dev_zookeeper import DevZooKeeper, four_letter_word
from support.waiting import until

MEMBERS: Final = 3

#: How long members may take to find a leader and to follow it, in ticks of 250 ms: long, because
#: a machine that runs tests beside them is slow, and nothing here waits for it to pass.
SETTINGS: Final = {"initLimit": "80", "syncLimit": "20"}

JVM_OPTIONS: Final = ("-Xmx96m",)

#: How often ports are chosen anew because another process took one meanwhile.
ATTEMPTS: Final = 3


class Ensemble:
    """Three servers of which each knows the others.

    Parameters
    ----------
    folder
        Holds a folder for each of them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.members: list[DevZooKeeper] = []
        #: A server dies with the thread that started it.
        self._threads = ThreadPoolExecutor(MEMBERS)

    def __enter__(self) -> Self:
        for attempt in range(1, ATTEMPTS + 1):
            self.members = _members(self._folder / str(attempt))
            try:
                self.start(self.members)
            except LocalClusterError:
                self.stop()
                if attempt == ATTEMPTS:
                    raise
            else:
                break
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._threads.shutdown()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where clients connect to the members."""
        return tuple(member.address for member in self.members)

    def leader(self) -> DevZooKeeper:
        """Return the member that leads, once one does."""
        return until(lambda: next((m for m in self.members if _mode(m) == "leader"), None))

    def followers(self) -> list[DevZooKeeper]:
        """Return the members that do not lead, once one does."""
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def start(self, members: Sequence[DevZooKeeper]) -> None:
        """Start members, at once, as none serves before a majority is there."""
        list(self._threads.map(DevZooKeeper.start, members))

    def kill(self, *members: DevZooKeeper) -> None:
        """End members as a power cut would."""
        for member in members:
            assert member.pid is not None
            os.kill(member.pid, signal.SIGKILL)
        for member in members:
            member.stop()

    def stop(self) -> None:
        """End all members."""
        list(self._threads.map(DevZooKeeper.stop, self.members))


@pytest.fixture(scope="session")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """An ensemble that all tests share; whoever kills members should start one of its own."""
    with Ensemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        yield ensemble


def _members(folder: Path) -> list[DevZooKeeper]:
    servers = {
        f"server.{number}": f"127.0.0.1:{reservations.reserve()}:{reservations.reserve()}"
        for number in range(1, MEMBERS + 1)
    }
    members = []
    for number in range(1, MEMBERS + 1):
        place = folder / str(number)
        (place / "data").mkdir(parents=True)
        (place / "data" / "myid").write_text(str(number))
        members.append(
            DevZooKeeper(place, settings={**SETTINGS, **servers}, jvm_options=JVM_OPTIONS)
        )
    return members


def _mode(member: DevZooKeeper) -> str | None:
    with contextlib.suppress(OSError):
        for line in four_letter_word(member.host, member.port, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
    return None
