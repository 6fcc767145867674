"""The state that outlives a supervisor: the id, and the slots' records, to adopt workers.

An unreadable file is renamed with a warning, and counts as absent. Then no worker is adopted, and
`WorkerProcesses.end_strays` ends the running ones.
"""

import contextlib
import logging
import re
import time
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from stormkeeper.daemon.durable import try_lock, write_file
from stormkeeper.errors import SupervisorError
from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.slot_model import SlotRecord

log = logging.getLogger(__name__)

#: Version of the file's format, so that an older supervisor does not misread it.
_VERSION: Final = 1

_SLOTS, _ID, _STARTS, _LOCK = "slots.json", "supervisor-id", "starts", "lock"

_ID_FORM: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-[^\s/]{1,100}")


class _Slots(msgspec.Struct):
    """The file of the slots, by port; `boot` identifies the start of the machine."""

    version: int
    boot: str
    slots: dict[int, SlotRecord]


def peek(folder: Path) -> dict[int, SlotRecord]:
    """Return the saved records without the lock, by port; none if unreadable."""
    try:
        saved = msgspec.json.decode((folder / _SLOTS).read_bytes(), type=_Slots)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    is_of_now = saved.version == _VERSION and saved.boot == process_table.boot_id()
    return saved.slots if is_of_now else {}


def is_held(folder: Path) -> bool:
    """Return whether a running supervisor has the folder."""
    try:
        with (folder / _LOCK).open("ab") as lock:
            return not try_lock(lock, if_unsupported=False)
    except FileNotFoundError:
        return False
    except OSError:
        return True


class LocalState:
    """The folder of the state, locked by a single supervisor; created if absent.

    Raises `SupervisorError` if another supervisor has the folder, or it cannot be used.
    """

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder."""
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
        """Return the number of a worker's start, greater than all before.

        If the last number is lost, the next is the time in seconds since 1970. Raises
        `SupervisorError` if the number cannot be written.
        """
        path = self._folder / _STARTS
        text = (self._read(path) or b"").strip()
        digits, _, checksum = text.partition(b" ")
        # Older supervisors wrote no checksum.
        is_whole = digits.isdigit() and checksum in (b"", _checksum(digits))
        last = max(int(digits) if is_whole else int(time.time()), self._last_start)
        self._last_start = number = last + 1
        self._write(path, b"%d %s\n" % (number, _checksum(b"%d" % number)))
        return number

    def load(self) -> dict[int, SlotRecord]:
        """Return the saved records, by port; none if unreadable.

        After a restart of the machine the records have no workers.
        """
        path = self._folder / _SLOTS
        text = self._read(path)
        if text is None:
            return {}
        try:
            version = msgspec.json.decode(text, type=dict[str, Any]).get("version")
            if version != _VERSION:
                self._set_aside(path, f"its version is {version!r}, not {_VERSION}")
                return {}
            saved = msgspec.json.decode(text, type=_Slots)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._set_aside(path, str(error))
            return {}
        if saved.boot == process_table.boot_id():
            return saved.slots
        return {port: replace(slot, worker=None) for port, slot in saved.slots.items()}

    def save(self, slots: Mapping[int, SlotRecord]) -> None:
        """Save the slots' records, by port, durably."""
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
            path,
            aside.name,
            reason,
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


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)
