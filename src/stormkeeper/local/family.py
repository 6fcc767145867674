"""The processes of one local run: started with its mark, waited for, stopped."""

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stormkeeper.daemon.lifecycle import DIE_WITH_PARENT
from stormkeeper.errors import LocalClusterError
from stormkeeper.local.processes import RUN_MARK, Child

#: A process that has not said that it is ready by then is taken to hang, in seconds; Spark on a
#: busy machine with two cores needs most of a minute.
START_SECS = 120.0

#: How long a process may take to end when asked to, in seconds. A running micro-batch is finished:
#: the worker and the pipeline give it 15, and then have to end Spark.
GRACE_SECS = 40.0

#: Time between two looks at a process that starts, in seconds.
LOOK_SECS = 0.5


class StartInterruptedError(Exception):
    """The user asked to stop while the cluster was starting."""


class Family:
    """The processes by their names, in the order of their start.

    Parameters
    ----------
    directory
        Holds their logs and what Spark and the JVM put aside.
    mark
        What they carry.
    note
        Called with what is to be said of them.
    """

    def __init__(self, directory: Path, mark: str, note: Callable[[str], None]) -> None:
        self._directory = directory
        self._mark = mark
        self._note = note
        self._dead: set[str] = set()
        self.children: dict[str, Child] = {}

    def spawn(self, name: str, argv: Sequence[str], ready: re.Pattern[str]) -> None:
        """Start a process; `ready` is the line by which it says that it serves."""
        env = dict(os.environ)
        env[RUN_MARK] = self._mark
        env[DIE_WITH_PARENT] = str(os.getpid())
        # Whatever Spark and the JVM put aside goes with the run, even where they are killed.
        env["TMPDIR"] = str(self._directory / "tmp")
        env["SPARK_LOCAL_DIRS"] = str(self._directory / "tmp")
        log_file = self._directory / f"{name.replace(' ', '-')}.log"
        self.children[name] = Child(name, argv, log=log_file, env=env, ready=ready)

    def ready(self, name: str, stopped: Callable[[], bool]) -> re.Match[str]:
        """Wait until a process is ready, and return its line.

        Raises
        ------
        StartInterruptedError
            `stopped` said so.
        LocalClusterError
            The process ended, or took too long.
        """
        child = self.children[name]
        deadline = time.monotonic() + START_SECS
        while time.monotonic() < deadline:
            if stopped():
                raise StartInterruptedError
            if match := child.wait_ready(LOOK_SECS):
                return match
        raise LocalClusterError(
            f"the {name} (process {child.pid}) was not ready after {START_SECS:.0f} s:\n"
            f"{child.log_tail()}"
        )

    def memory_mib(self) -> dict[str, float]:
        """Return what each process takes, with all that it started, in MiB."""
        return {name: child.memory_mib() for name, child in self.children.items()}

    def note_deaths(self) -> None:
        """Say once of each process that it has ended."""
        for name, child in self.children.items():
            if child.returncode is not None and name not in self._dead:
                self._dead.add(name)
                self._note(f"{name} (process {child.pid}) {child.state()}")

    def stop(self, names: Sequence[str]) -> None:
        """End processes, all at once; those that were never started are passed over."""
        children = [self.children[name] for name in names if name in self.children]
        for child in children:
            child.request_stop()
        for child in children:
            if not child.wait_stopped(GRACE_SECS):
                self._note(f"{child.name} did not end in {GRACE_SECS:.0f} s: ended by force")
