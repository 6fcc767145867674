"""Removes the files of tables that no manifest names, once nobody can be reading them.

A file that leaves the manifest is given that time as its own (`mark`), just before it leaves. One
that was never in it, as its writer was killed, has the time at which it was written.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

#: What we call our files. Others are somebody else's.
_OURS: Final = re.compile(r"[0-9]{12,}-[0-9a-f]{8}\.parquet")


def mark(folder: Path, paths: Iterable[str], now: float) -> None:
    """Note on files that they leave the manifest now, in seconds since the epoch."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder / path, (now, now))


def sweep(
    folder: Path, tables: Iterable[str], named: Collection[str], now: float, keep_secs: float
) -> None:
    """Remove the files of these tables that are not named and left more than `keep_secs` ago."""
    for table in tables:
        # What cannot be removed is not worth a commit; it is tried again at the next one.
        with contextlib.suppress(OSError), os.scandir(folder / table) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name) and f"{table}/{entry.name}" not in named:
                    _remove_old(entry, now, keep_secs)


def _remove_old(entry: os.DirEntry[str], now: float, keep_secs: float) -> None:
    with contextlib.suppress(OSError):
        age = now - entry.stat().st_mtime
        if age < 0:  # the clock was set back: it counts from now on
            os.utime(entry.path, (now, now))
        elif age > keep_secs:
            Path(entry.path).unlink()
