"""A supervisor's disk: folders in Storm's layout, and the state that outlives the supervisor.

- ``supervisor/stormdist/ID``: code and configuration of a topology;
- ``supervisor/packages`` (ours): unpacked packages, by checksum;
- ``supervisor/environments`` (ours): Python environments of topologies;
- ``supervisor/localstate``: the supervisor's id, and the slots' records;
- ``supervisor/tmp``: unfinished or half removed files, emptied at each start;
- ``home`` (ours): home of workers, if the supervisor's user has none;
- ``workers/WORKER``: files of one start of a worker (``pids``, ``heartbeats``, ``tmp``), with the
  links ``artifacts``, ``package`` and ``python``;
- ``workers-artifacts/ID/PORT`` (in the logs): ``worker.log`` and ``worker.pid``, which stay.

An unreadable file of the state is renamed with a warning, and counts as absent. Then no worker is
adopted, and `WorkerProcesses.end_strays` ends the running workers.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from stormkeeper.conf.folders import folder
from stormkeeper.daemon.durable import try_lock, write_file
from stormkeeper.daemon.lifecycle import Closing
from stormkeeper.errors import SupervisorError
from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.slot_model import SlotRecord

log = logging.getLogger(__name__)

#: Configurations may hold passwords.
_PRIVATE: Final = 0o700

PACKAGE: Final = "package"
PYTHON: Final = "python"

_OF_A_WORKER: Final = ("pids", "heartbeats", "tmp")


class Needed(NamedTuple):
    """The needed topologies, and the workers of which processes may be left."""

    storm_ids: frozenset[str]
    worker_ids: frozenset[str]


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
        local = folder("storm.local.dir", conf["storm.local.dir"])
        chosen = conf["storm.log.dir"]
        logs = local / "logs" if chosen is None else folder("storm.log.dir", chosen)
        # An absolute folder replaces `logs`, as in Storm.
        return cls(local, logs / conf["storm.workers.artifacts.dir"])

    def code(self, storm_id: str) -> Path:
        return self._code / _name(storm_id)

    def worker(self, worker_id: str) -> Path:
        """Return the folder of a start, the worker's current folder."""
        return self._workers / _name(worker_id)

    def artifacts(self, storm_id: str, port: int) -> Path:
        """Return the folder of files that outlive a topology's workers in a slot."""
        return self.all_artifacts / _name(storm_id) / str(port)

    def log(self, storm_id: str, port: int) -> Path:
        return self.artifacts(storm_id, port) / "worker.log"

    def make(self) -> None:
        with _explained():
            made = (self.supervisor, self._code, self.packages, self.local_state, self._workers)
            for path in made:
                path.mkdir(_PRIVATE, parents=True, exist_ok=True)
            self.temporary.mkdir(_PRIVATE, exist_ok=True)
        with contextlib.suppress(OSError):  # the health checks report it
            self.all_artifacts.mkdir(parents=True, exist_ok=True)
        for left in _entries(self.temporary):
            _remove(left)

    def make_worker(self, worker_id: str, storm_id: str, port: int) -> Path:
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
        """Write a worker's pid to ``pids/PID`` and ``worker.pid``, for operators alone."""
        with _explained():
            (self.worker(worker_id) / "pids" / str(pid)).touch()
            (self.artifacts(storm_id, port) / "worker.pid").write_text(f"{pid}\n")

    def remove_unneeded(self, needed: Callable[[], Needed]) -> list[str]:
        """Remove unneeded code, also unfinished, and folders of workers; return the ids.

        The folders are listed before the needs are checked, which may change meanwhile.
        """
        code, workers, removed = _entries(self._code), _entries(self._workers), []
        for path in chain(
            (each for each in code if _fetched(each.name) not in needed().storm_ids),
            (each for each in workers if each.name not in needed().worker_ids),
        ):
            self.remove(path)
            removed.append(path.name)
        return removed

    def remove_unused_packages(self, used: Container[str]) -> None:
        """Remove packages, except these and those with a link of a worker."""
        there = _entries(self.packages)
        linked = {link.readlink().name for link in self._workers.glob(f"*/{PACKAGE}")}
        for path in there:
            if path.name not in used and path.name not in linked:
                self.remove(path)

    def environments_in_use(self) -> set[str]:
        pythons = (link.readlink() for link in self._workers.glob(f"*/{PYTHON}"))
        below = [each for each in pythons if each.is_relative_to(self.environments)]
        return {each.relative_to(self.environments).parts[0] for each in below}

    def remove(self, path: Path) -> None:
        """Rename a folder, if there, so that readers see all or nothing, then remove it."""
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
    """Return a foreign id; raises `SupervisorError` if no folder can have that name."""
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


# --- the local state -----------------------------------------------------------------------------

#: So that an older supervisor does not misread a newer file.
_VERSION: Final = 1

_SLOTS, _ID, _STARTS, _LOCK = "slots.json", "supervisor-id", "starts", "lock"

_ID_FORM: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-[^\s/]{1,100}")


class _Slots(msgspec.Struct):
    """The file of the slots, by port; `boot` identifies the start of the machine."""

    version: int
    boot: str
    slots: dict[int, SlotRecord]


def saved_slots(folder: Path) -> dict[int, SlotRecord]:
    """Return the saved records, by port, without locking; empty if unreadable."""
    try:
        saved = msgspec.json.decode((folder / _SLOTS).read_bytes(), type=_Slots)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    is_of_now = saved.version == _VERSION and saved.boot == process_table.boot_id()
    return saved.slots if is_of_now else {}


def is_locked(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("ab") as lock:
            return not try_lock(lock, if_unsupported=False)
    except FileNotFoundError:
        return False
    except OSError:
        return True


class LocalState(Closing):
    """The folder of the state; raises `SupervisorError` if another supervisor holds the lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last_start = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / _LOCK).open("ab")
        except OSError as error:
            raise SupervisorError(
                f"{folder} cannot be used ({error}): set storm.local.dir to a folder that can be"
                " written"
            ) from error
        if not try_lock(self._lock, if_unsupported=False):
            self._lock.close()
            raise SupervisorError(
                f"another supervisor has {folder}, or its file system has no locks: end it, or give"
                " each its own storm.local.dir"
            )

    def close(self) -> None:
        self._lock.close()

    def supervisor_id(self, address: str) -> str:
        """Return this supervisor's id, the same at each start; a new id ends with `address`."""
        path = self._folder / _ID
        text = self._read(path)
        known = text.decode(errors="replace").strip() if text is not None else None
        if known is not None and _ID_FORM.fullmatch(known):
            return known
        if known is not None:
            self._set_aside(path, f"{known[:100]!r} is no supervisor's id, so it gets a new one")
        new = f"{uuid.uuid4()}-{address}"
        self._write(path, f"{new}\n".encode())
        return new

    def next_start(self) -> int:
        """Return the number of a worker's start, greater than all before; raises `SupervisorError`.

        Without a last number, the next is the time in seconds since 1970.
        """
        path = self._folder / _STARTS
        text = (self._read(path) or b"").strip()
        digits = text.partition(b" ")[0]  # a checksum of older supervisors follows
        last = max(int(digits) if digits.isdigit() else int(time.time()), self._last_start)
        self._last_start = number = last + 1
        self._write(path, b"%d\n" % number)
        return number

    def load(self) -> dict[int, SlotRecord]:
        """Return the saved records, by port; without workers after a restart of the machine."""
        path = self._folder / _SLOTS
        text = self._read(path)
        if text is None:
            return {}
        try:
            saved = msgspec.json.decode(text, type=_Slots)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._set_aside(path, str(error))
            return {}
        if saved.version != _VERSION:
            self._set_aside(path, f"its version is {saved.version}, not {_VERSION}")
            return {}
        if saved.boot == process_table.boot_id():
            return saved.slots
        return {port: replace(slot, worker=None) for port, slot in saved.slots.items()}

    def save(self, slots: Mapping[int, SlotRecord]) -> None:
        """Save the slots' records durably; raises `SupervisorError`."""
        saved = _Slots(_VERSION, process_table.boot_id(), dict(slots))
        self._write(self._folder / _SLOTS, msgspec.json.encode(saved))

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._set_aside(path, str(error))
            return None

    def _set_aside(self, path: Path, reason: str) -> None:
        aside = path.with_name(f"{path.name}.unreadable")
        log.warning(
            "%s cannot be read, and is kept as %s (%s): this supervisor begins as a new one",
            *(path, aside.name, reason),
        )
        with contextlib.suppress(OSError):
            path.replace(aside)

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write_file(path, content, mode=0o600)
        except OSError as error:
            raise SupervisorError(
                f"{path} cannot be written ({error}): make space, or the folder writable"
            ) from error
