"""The manifest: which files are the tables, and which commit they are of."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from stormkeeper.daemon.durable import sync_file, sync_folder
from stormkeeper.errors import TableError

NAME: Final = "manifest.json"

#: How a manifest that is not whole is called: there is never more than one.
_ASIDE: Final = f".{NAME}"

#: The number that every manifest begins with. One that is higher may mean what we do not know.
FORMAT: Final = 1


#: ``current``: each commit replaces all rows. ``log``: each commit adds rows.
Kind = Literal["current", "log"]


class Origin(msgspec.Struct, frozen=True):
    """Which micro-batch of which streaming query a commit comes from."""

    query: str
    batch: int


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Parquet file of a table.

    Attributes
    ----------
    path
        From the folder of the tables.
    rows, bytes
        Its size.
    earliest, latest
        Of the table's time column; None without rows or without such a column.
    level
        How often its rows were merged.
    """

    path: str
    rows: int
    bytes: int
    earliest: datetime | None = None
    latest: datetime | None = None
    level: int = 0


class Entry(msgspec.Struct, frozen=True):
    """One table.

    Attributes
    ----------
    kind, time
        As in `TableSpec`.
    version
        How often its columns have changed. Files of earlier versions lack columns, or have some
        that are no more.
    columns
        Their names and types.
    files
        Oldest first.
    """

    kind: Kind
    time: str | None
    version: int
    columns: dict[str, str]
    files: list[DataFile]


class Manifest(msgspec.Struct, frozen=True):
    """All tables of a folder as of one commit.

    Attributes
    ----------
    format
        `FORMAT`.
    version
        The number of the commit, from 1.
    origin
        What it comes from.
    written_at
        When it was written, on the writer's clock.
    interval_secs
        How often the writer commits.
    tables
        By name.
    """

    format: int
    version: int
    origin: Origin
    written_at: datetime
    interval_secs: float
    tables: dict[str, Entry]

    @property
    def paths(self) -> set[str]:
        """The paths of all files that it names."""
        return {file.path for entry in self.tables.values() for file in entry.files}


class _Format(msgspec.Struct):
    format: int


def load(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, None before the first commit.

    Raises
    ------
    TableError
        It is of a newer release, or was damaged.
    OSError
        It cannot be read.
    """
    path = folder / NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        if (found := msgspec.json.decode(text, type=_Format).format) != FORMAT:
            raise TableError(
                f"{path} is of format {found}, and this release knows {FORMAT}: use the release "
                "that wrote it, or a newer one"
            )
        return msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise TableError(
            f"{path} is damaged: {error}; restore the folder from a copy, or remove it and start "
            "the pipeline again"
        ) from error


def stage(folder: Path, manifest: Manifest) -> None:
    """Write the next manifest aside, safe from a power failure."""
    with (folder / _ASIDE).open("wb") as file:
        file.write(msgspec.json.encode(manifest))
        sync_file(file)


def publish(folder: Path) -> None:
    """Make what was staged the manifest, by one step."""
    (folder / _ASIDE).replace(folder / NAME)


def settle(folder: Path) -> None:
    """Have the manifest that is there survive a power failure."""
    sync_folder(folder)
