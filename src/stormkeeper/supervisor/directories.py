"""A supervisor's folders on the disk, in Storm's layout.

- ``supervisor/stormdist/ID``: code and configuration of a topology;
- ``supervisor/packages`` (ours): unpacked packages, by checksum;
- ``supervisor/environments`` (ours): Python environments of topologies;
- ``supervisor/localstate``: the supervisor's id and its slots;
- ``supervisor/tmp``: unfinished or half removed files, emptied at each start;
- ``home`` (ours): home of workers, if the supervisor's user has none;
- ``workers/WORKER``: files of one launch (``pids``, ``heartbeats``, ``tmp``), with the links
  ``artifacts``, ``package`` and ``python``;
- ``workers-artifacts/ID/PORT`` (in the logs): ``worker.log`` and ``worker.pid``, which stay.
"""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from stormkeeper.conf.folders import folder
from stormkeeper.errors import SupervisorError

log = logging.getLogger(__name__)

#: For this user alone, as configurations may hold passwords.
_PRIVATE: Final = 0o700

PACKAGE: Final = "package"
PYTHON: Final = "python"

_OF_A_WORKER: Final = ("pids", "heartbeats", "tmp")


class Directories:
    """The folders of a supervisor: below ``storm.local.dir``, and the artifacts among the logs."""

    def __init__(self, local: Path, artifacts: Path) -> None:
        self.local = local.absolute()
        self.supervisor = self.local / "supervisor"
        self.local_state = self.supervisor / "localstate"
        self.temporary = self.supervisor / "tmp"
        self.environments = self.supervisor / "environments"
        self.packages = self.supervisor / "packages"
        self.home = self.local / "home"
        self._code = self.supervisor / "stormdist"
        self._workers = self.local / "workers"
        self.all_artifacts = artifacts.absolute()

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> "Directories":
        """Return the folders of a configuration."""
        local = folder("storm.local.dir", conf["storm.local.dir"])
        chosen = conf["storm.log.dir"]
        logs = local / "logs" if chosen is None else folder("storm.log.dir", chosen)
        # An absolute folder is used as it is, as in Storm.
        return cls(local, logs / conf["storm.workers.artifacts.dir"])

    def code(self, storm_id: str) -> Path:
        """Return the folder of a topology's code and configuration."""
        return self._code / _name(storm_id)

    def worker(self, worker_id: str) -> Path:
        """Return the folder of a launch, the worker's current folder."""
        return self._workers / _name(worker_id)

    def artifacts(self, storm_id: str, port: int) -> Path:
        """Return the folder of files that outlive a topology's workers in a slot."""
        return self.all_artifacts / _name(storm_id) / str(port)

    def log(self, storm_id: str, port: int) -> Path:
        """Return the log of a topology's workers in a slot."""
        return self.artifacts(storm_id, port) / "worker.log"

    def make(self) -> None:
        """Create the folders of a supervisor, and empty the temporary folder."""
        with _explained():
            for path in (
                *(self.supervisor, self._code, self.packages, self.local_state, self._workers),
            ):
                path.mkdir(_PRIVATE, parents=True, exist_ok=True)
            self.temporary.mkdir(_PRIVATE, exist_ok=True)
        with contextlib.suppress(OSError):  # the health checks report it
            self.all_artifacts.mkdir(parents=True, exist_ok=True)
        for left in _entries(self.temporary):
            _remove(left)

    def make_worker(self, worker_id: str, storm_id: str, port: int) -> Path:
        """Create the folders of a launch, and return `worker`."""
        path, artifacts = self.worker(worker_id), self.artifacts(storm_id, port)
        with _explained():
            artifacts.mkdir(parents=True, exist_ok=True)
            path.mkdir(_PRIVATE, parents=True, exist_ok=True)
            for name in _OF_A_WORKER:
                (path / name).mkdir(exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (path / "artifacts").symlink_to(artifacts)
        return path

    def note_process(self, worker_id: str, storm_id: str, port: int, pid: int) -> None:
        """Write a launch's pid to ``pids/PID`` and ``worker.pid``, for operators alone."""
        with _explained():
            (self.worker(worker_id) / "pids" / str(pid)).touch()
            (self.artifacts(storm_id, port) / "worker.pid").write_text(f"{pid}\n")

    def remove_worker(self, worker_id: str) -> None:
        """Remove the files of a launch, except artifacts."""
        self._put_aside(self.worker(worker_id))

    def remove_package(self, path: Path) -> None:
        """Remove a package, if present."""
        if path.exists():
            self._put_aside(path)

    def remove_unneeded(self, storm_ids: Container[str], worker_ids: Container[str]) -> list[str]:
        """Remove code and launches except for these topologies and launches; return the ids.

        The folders are listed before the needs are checked, and a topology's unfinished code counts
        as its code.
        """
        removed = []
        for path in _entries(self._code):
            if _fetched(path.name) not in storm_ids:
                self._put_aside(path)
                removed.append(path.name)
        for path in _entries(self._workers):
            if path.name not in worker_ids:
                self._put_aside(path)
                removed.append(path.name)
        return removed

    def remove_unused_packages(self, used: Container[str]) -> None:
        """Remove all packages except with these names, or with a link of a launch."""
        there = _entries(self.packages)
        linked = {link.readlink().name for link in self._workers.glob(f"*/{PACKAGE}")}
        for path in there:
            if path.name not in used and path.name not in linked:
                self._put_aside(path)

    def environments_in_use(self) -> set[str]:
        """Return the names of the environments with a link of a launch."""
        pythons = (link.readlink() for link in self._workers.glob(f"*/{PYTHON}"))
        below = [each for each in pythons if each.is_relative_to(self.environments)]
        return {each.relative_to(self.environments).parts[0] for each in below}

    def _put_aside(self, path: Path) -> None:
        """Rename a folder, so that readers see all or nothing, and remove the new name."""
        try:
            aside = Path(tempfile.mkdtemp(prefix="removed-", dir=self.temporary))
            with contextlib.suppress(FileNotFoundError):
                path.rename(aside / path.name)
        except OSError as error:
            log.warning("%s cannot be removed: %s", path, error)
            return
        _remove(aside)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SupervisorError(
            f"a supervisor's folder cannot be made ({error}): set storm.local.dir and storm.log.dir"
            " to folders that can be written and have space"
        ) from error


def _name(text: str) -> str:
    """Return a foreign id; raises `SupervisorError` if that cannot be a folder's name."""
    if text in ("", ".", "..") or "/" in text or "\0" in text or len(os.fsencode(text)) > 255:
        raise SupervisorError(f"{text!r} cannot be the name of a folder, as an id must")
    return text


def _fetched(name: str) -> str:
    if name.startswith("."):
        return name[1:].removesuffix(".part").removesuffix(".old")
    return name


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error)
        return []


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s is not wholly removed; the next start tries again: %s", path, error)
