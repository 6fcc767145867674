"""Which topologies this Nimbus has removed: as Storm's Nimbus, it knows that from its own disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

log = logging.getLogger(__name__)

#: How long one is remembered, in seconds: a week, as Storm remembers it by default.
KEPT_SECS: Final = 7 * 24 * 3600.0

#: How many are remembered at most: the oldest are forgotten first.
MOST: Final = 10_000


class _Removed(msgspec.Struct, frozen=True):
    id: str
    owner: str | None
    #: Seconds since 1970.
    at: float


class History:
    """The topologies that were removed by this Nimbus. Safe for many threads.

    It is for people to look at, and nothing rests on it. So a file that cannot be read, or written,
    is told of in the log, and costs no more.

    Parameters
    ----------
    file
        Where it is kept; made when there is something to keep.
    clock
        Seconds since 1970.
    """

    def __init__(self, file: Path, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._removed = _read(file)

    def note(self, storm_id: str, owner: str | None) -> None:
        """Note that a topology is gone."""
        with self._lock:
            others = [each for each in self._removed if each.id != storm_id]
            now = self._clock()
            kept = [each for each in others if now - each.at <= KEPT_SECS][1 - MOST :]
            self._removed = [*kept, _Removed(storm_id, owner, now)]
            new = self._file.with_suffix(".new")
            try:
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                new.write_bytes(msgspec.json.encode(self._removed))
                new.replace(self._file)
            except OSError as error:
                log.warning("the history of topologies is not written: %s", error)

    def ids(self, user: str | None) -> list[str]:
        """Return the ids of those of a user, or of all where that is None or empty."""
        now = self._clock()
        with self._lock:
            return [
                each.id
                for each in self._removed
                if now - each.at <= KEPT_SECS and (not user or each.owner == user)
            ]


def _read(file: Path) -> list[_Removed]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[_Removed])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("the history of topologies is not read, and begins anew: %s", error)
        return []
