"""Preparations and files of a launch: code, environment, configuration, command line.

Every user of the machine can read a command line. So the configuration goes into files for this
user alone: ``worker.yaml`` with the supervisor's, and ``topology.json`` with the topology's, which
wins.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder
from stormkeeper.errors import ConfigError, StormkeeperError, SupervisorError
from stormkeeper.supervisor.assignments import start_claims
from stormkeeper.supervisor.directories import PACKAGE, PYTHON, Directories
from stormkeeper.supervisor.environments import BUILD_SECS, CHECK_SECS, Environments
from stormkeeper.supervisor.slot_model import (
    Event,
    PreparationFailed,
    Prepared,
    Restart,
    SlotAssignment,
)
from stormkeeper.supervisor.topology_code import LocalTopologyCode
from stormkeeper.supervisor.worker_processes import WorkerCommand

_CONF, _OVERRIDES, _ALIVE = "worker.yaml", "topology.json", "heartbeats/alive"

_ENDED = "ended"

_MODE: Final = 0o600


class Launcher:
    """Creates the files and commands of launches."""

    def __init__(
        self,
        conf: Conf,
        supervisor_id: str,
        directories: Directories,
        code: LocalTopologyCode,
        next_start: Callable[[], int],
    ) -> None:
        self._conf = conf.with_values(_wherever_it_runs(conf))
        self._supervisor_id = supervisor_id
        self._directories = directories
        self._code = code
        self._next_start = next_start

    def command(
        self, worker_id: str, port: int, assignment: SlotAssignment, python: Path
    ) -> WorkerCommand:
        """Create the folder of a launch, and return the worker's command.

        Raises `SupervisorError` without the code or disk space, and `ConfigError`.
        """
        storm_id = assignment.storm_id
        root, manifest = self._code.unpacked(storm_id), self._code.manifest(storm_id)
        values = self._code.conf(storm_id)
        conf = self._of_topology(storm_id, values)
        place = self._directories.make_worker(worker_id, storm_id, port)
        claims = start_claims(assignment, self._next_start())
        try:
            self._conf.write(place / _CONF)
            _write(place / _OVERRIDES, msgspec.json.encode(values))
            (place / PACKAGE).symlink_to(root)
            (place / PYTHON).symlink_to(python)
        except OSError as error:
            raise SupervisorError(
                f"the files of a worker cannot be written to {place} ({error}): make space, or the"
                " folder writable"
            ) from error
        argv = [str(python), "-m", "stormkeeper.worker", manifest.entry_point]
        argv += ["--root", str(root), "--overrides", str(place / _OVERRIDES)]
        argv += ["--alive", str(self.alive(worker_id)), "--storm-id", storm_id]
        argv += ["--node", self._supervisor_id, "--port", str(port)]
        argv += [part for each in claims.items() for part in ("--claim", "=".join(each))]
        argv += ["--config", str(place / _CONF)]
        return WorkerCommand(
            argv=argv,
            folder=place,
            log=self._directories.log(storm_id, port),
            environment=_environment(conf, python, place / "tmp"),
            nice=self._conf["supervisor.worker.nice"],
            memory_bytes=assignment.memory_bytes,
        )

    def alive(self, worker_id: str) -> Path:
        """Return the file of a worker's sign of life."""
        return self._directories.worker(worker_id) / _ALIVE

    def written_exit_code(self, worker_id: str) -> int | None:
        """Return the exit code that a worker has written, if any."""
        try:
            return int(self.alive(worker_id).with_name(_ENDED).read_text())
        except (OSError, ValueError):
            return None

    def restart(self, storm_id: str) -> Restart | None:
        """Return a topology's restart setting; None if the code is not here."""
        try:
            return Restart.from_conf(self._of_topology(storm_id, self._code.conf(storm_id)))
        except (ConfigError, SupervisorError):
            return None

    def _of_topology(self, storm_id: str, values: Mapping[str, Any]) -> Conf:
        try:
            return self._conf.with_values(values)
        except ConfigError as error:
            raise ConfigError(f"the configuration of {storm_id}: {error}") from error


def _wherever_it_runs(conf: Conf) -> dict[str, Any]:
    """Return shared folders as absolute paths, as each worker has another current folder."""
    named = {
        key: conf[key]
        for key in ("storm.local.dir", "topology.checkpoint.dir")
        if conf[key] is not None and ":" not in conf[key]
    }
    return {key: str(folder(key, value).absolute()) for key, value in named.items()}


def _environment(conf: Conf, python: Path, temporary: Path) -> dict[str, str]:
    chosen = conf["topology.environment"] or {}
    return {
        # Removed with the worker's folder.
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        **{name: _text(value) for name, value in chosen.items()},
        "PYSPARK_PYTHON": str(python),
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write(file: Path, data: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as opened:
        opened.write(data)


log = logging.getLogger(__name__)

_WAIT_SECS: Final = BUILD_SECS + 2 * CHECK_SECS


class PreparationThreads:
    """Preparations of launches, each on a thread: code and environments. Thread-safe.

    `answer` gets a slot's port and the answer to its request.
    """

    def __init__(
        self,
        code: LocalTopologyCode,
        environments: Environments,
        answer: Callable[[int, Event], None],
    ) -> None:
        self._code = code
        self._environments = environments
        self._answer = answer
        self._lock = threading.Lock()
        self._requests: set[tuple[int, int]] = set()
        self._pythons: dict[str, Path] = {}
        self._building: dict[str, str] = {}

    def fetch(self, port: int, request: int, storm_id: str) -> None:
        """Start to fetch a topology's code."""
        self._begin(
            *(port, request, f"code {storm_id}"),
            lambda: self._code.fetch(storm_id, lambda: (port, request) in self._requests),
        )

    def build(self, port: int, request: int, storm_id: str) -> None:
        """Start to build a topology's environment."""

        def build() -> None:
            manifest, unpacked = self._code.manifest(storm_id), self._code.unpacked(storm_id)
            self._building[storm_id] = self._environments.identity(manifest) or ""
            python = self._environments.python(manifest, unpacked, wait_secs=_WAIT_SECS)
            self._pythons[storm_id] = python

        self._begin(port, request, f"environment {storm_id}", build)

    def progress(self, storm_id: str) -> str:
        """Return pip's last step for a topology; empty if no environment is being built."""
        return self._environments.progress(self._building.get(storm_id, ""))

    def python(self, storm_id: str) -> Path:
        """Return the Python that `build` has prepared, or raise `SupervisorError`."""
        try:
            return self._pythons[storm_id]
        except KeyError:
            raise SupervisorError(f"there is no environment for {storm_id} yet") from None

    def abandon(self, port: int, request: int) -> None:
        """Drop the answer to a request."""
        with self._lock:
            self._requests.discard((port, request))

    def close(self) -> None:
        """Drop all answers, and cancel builds."""
        with self._lock:
            self._requests.clear()
        self._environments.close()

    def _begin(self, port: int, request: int, name: str, do: Callable[[], None]) -> None:
        with self._lock:
            self._requests.add((port, request))

        def run() -> None:
            answer: Event = Prepared(request)
            try:
                do()
            except StormkeeperError as error:
                answer = PreparationFailed(request, str(error))
            except Exception as error:
                # The slot gets an answer at once, and retries.
                log.exception("the %s cannot be prepared, by a defect of Stormkeeper", name)
                answer = PreparationFailed(request, f"an error of the supervisor: {error!r}")
            with self._lock:
                is_wanted = (port, request) in self._requests
                self._requests.discard((port, request))
            if is_wanted:
                self._answer(port, answer)

        threading.Thread(target=run, name=name, daemon=True).start()
