"""A topology's package as it lies unpacked in a folder, for the worker that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stormkeeper.errors import SerializationError, WorkerError
from stormkeeper.topology import description
from stormkeeper.topology.description import Description
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.manifest import Manifest


@dataclass(frozen=True)
class Unpacked:
    """A package in a folder, which nothing is written to.

    Parameters
    ----------
    folder
        Where it is, absolute.
    manifest, description
        What it says of itself.
    """

    folder: Path
    manifest: Manifest
    description: Description

    @property
    def code(self) -> Path:
        """The folder that is first in ``sys.path``."""
        return self.folder / manifest.CODE

    @property
    def is_script(self) -> bool:
        """Whether it is a plain script, which defines no topology."""
        return self.description.kind == "script"

    @property
    def queries(self) -> tuple[str, ...]:
        """The ids of all queries; a plain script is one."""
        return self.description.query_ids

    @property
    def py_files(self) -> list[Path]:
        """Modules and archives of modules that come with it."""
        return [self.folder / name for name in self.manifest.py_files]

    def with_jars(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings of Spark with the package's jars, and what it is to fetch, added."""
        jars = [str(self.folder / name) for name in self.manifest.jars]
        added = {"spark.jars": jars, "spark.jars.packages": [*self.manifest.jvm_packages]}
        with_them = dict(values)
        for key, ours in added.items():
            if ours:
                with_them[key] = ",".join(filter(None, [*ours, values.get(key)]))
        return with_them


def read(folder: Path) -> Unpacked:
    """Return the package that lies in a folder.

    Raises
    ------
    WorkerError
        There is none, or none that this release reads.
    """
    folder = folder.absolute()
    try:
        return Unpacked(
            folder,
            manifest.decode((folder / manifest.MANIFEST).read_bytes()),
            description.decode((folder / manifest.DESCRIPTION).read_bytes()),
        )
    except (OSError, SerializationError) as error:
        raise WorkerError(f"there is no topology's package in {folder}: {error}") from error
