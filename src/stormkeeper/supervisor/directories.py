"""Where a supervisor has everything on the disk, and the removal of what nobody needs.

The layout is Storm's, so what looks at a Storm's folders finds its way here:

- ``supervisor/stormdist/ID``: the code and the configuration of a topology;
- ``supervisor/packages``, which is ours: the packages of topologies, laid out, by their checksums;
- ``supervisor/environments``, which is ours: what topologies require;
- ``supervisor/localstate``: what outlives a supervisor;
- ``home``, which is ours: the home of workers, where the supervisor's user has none;
- ``supervisor/tmp``: what is not finished yet, or half removed. Empty after each start;
- ``workers/WORKER``: the files of one launch (``pids``, ``heartbeats``, ``tmp``), with the links
  ``artifacts``, and ``package`` and ``python``, which it runs from;
- ``workers-artifacts/ID/PORT`` in the folder of logs: what stays of a worker, with ``worker.log``
  and ``worker.pid``.
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

#: For this user alone: configurations may have passwords in them.
_PRIVATE: Final = 0o700

#: Links in the folder of a launch: what it runs from.
PACKAGE: Final = "package"
PYTHON: Final = "python"

_OF_A_WORKER: Final = ("pids", "heartbeats", "tmp")


class Directories:
    """The folders of one supervisor.

    Parameters
    ----------
    local
        ``storm.local.dir``.
    artifacts
        The folder of what stays of workers.
    """

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
        """Return those of a configuration.

        Raises
        ------
        ConfigError
            A folder begins with the home of a user who has none.
        """
        local = folder("storm.local.dir", conf["storm.local.dir"])
        chosen = conf["storm.log.dir"]
        logs = local / "logs" if chosen is None else folder("storm.log.dir", chosen)
        # An absolute one stands for itself, as in Storm.
        return cls(local, logs / conf["storm.workers.artifacts.dir"])

    def code(self, storm_id: str) -> Path:
        """Return where a topology's code and configuration are."""
        return self._code / _name(storm_id)

    def worker(self, worker_id: str) -> Path:
        """Return where the files of one launch are; it is the worker's current folder."""
        return self._workers / _name(worker_id)

    def artifacts(self, storm_id: str, port: int) -> Path:
        """Return where all workers of a topology in a slot leave what stays."""
        return self.all_artifacts / _name(storm_id) / str(port)

    def log(self, storm_id: str, port: int) -> Path:
        """Return the file that those workers write their log to."""
        return self.artifacts(storm_id, port) / "worker.log"

    def make(self) -> None:
        """Make the folders of a supervisor that starts, and remove what was not finished.

        Raises
        ------
        SupervisorError
            They cannot be made.
        """
        with _explained():
            for path in (
                *(self.supervisor, self._code, self.packages, self.local_state, self._workers),
            ):
                path.mkdir(_PRIVATE, parents=True, exist_ok=True)
            self.temporary.mkdir(_PRIVATE, exist_ok=True)
        with contextlib.suppress(OSError):  # the health checks say what is wrong with it
            self.all_artifacts.mkdir(parents=True, exist_ok=True)
        for left in _entries(self.temporary):
            _remove(left)

    def make_worker(self, worker_id: str, storm_id: str, port: int) -> Path:
        """Make the folders for a launch, and return `worker`.

        Raises
        ------
        SupervisorError
            They cannot be made.
        """
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
        """Note a launch's process where an operator looks: ``pids/PID`` and ``worker.pid``.

        For people alone: a pid without its start time proves nothing.

        Raises
        ------
        SupervisorError
            It cannot be written.
        """
        with _explained():
            (self.worker(worker_id) / "pids" / str(pid)).touch()
            (self.artifacts(storm_id, port) / "worker.pid").write_text(f"{pid}\n")

    def remove_worker(self, worker_id: str) -> None:
        """Remove the files of one launch; what is in its artifacts stays."""
        self._put_aside(self.worker(worker_id))

    def remove_package(self, path: Path) -> None:
        """Remove what may be there of a package."""
        if path.exists():
            self._put_aside(path)

    def remove_unneeded(self, storm_ids: Container[str], worker_ids: Container[str]) -> list[str]:
        """Remove the code of all but some topologies and the files of all but some launches.

        What is being fetched of a topology stays with its code. It is looked first for what is
        there, then for what is needed.

        Returns
        -------
        list of str
            The ids of those that were removed.
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
        """Remove all packages but those of these names, and those that a launch has a link to."""
        there = _entries(self.packages)
        linked = {link.readlink().name for link in self._workers.glob(f"*/{PACKAGE}")}
        for path in there:
            if path.name not in used and path.name not in linked:
                self._put_aside(path)

    def environments_in_use(self) -> set[str]:
        """Return the names of the environments that launches have a link to."""
        pythons = (link.readlink() for link in self._workers.glob(f"*/{PYTHON}"))
        below = [each for each in pythons if each.is_relative_to(self.environments)]
        return {each.relative_to(self.environments).parts[0] for each in below}

    def _put_aside(self, path: Path) -> None:
        """Remove a folder: by one step, for who looks for it, then bit by bit."""
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
    """Return an id that others have chosen, if it can be the name of a folder.

    Raises
    ------
    SupervisorError
        It would name a folder elsewhere, or none.
    """
    if text in ("", ".", "..") or "/" in text or "\0" in text or len(os.fsencode(text)) > 255:
        raise SupervisorError(f"{text!r} cannot be the name of a folder, as an id must")
    return text


def _fetched(name: str) -> str:
    """Return whose code has that name, also while it is being fetched (`code.delivery`)."""
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
