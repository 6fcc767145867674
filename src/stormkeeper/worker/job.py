"""What a worker is to run, and as whom."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stormkeeper.errors import SerializationError, WorkerError
from stormkeeper.topology import description
from stormkeeper.topology.claims import Claim
from stormkeeper.topology.description import Description
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Job:
    """A worker's job.

    Parameters
    ----------
    script
        Defines a topology, or is any PySpark streaming script. Relative to the package, if there
        is one.
    storm_id, node, port
        Whose heartbeats these are: the topology's id, the supervisor's, and the slot's port.
    arguments
        What the script finds in ``sys.argv``; those of the package where there are none.
    py_files
        Modules and archives of modules that it can import, beside those of the package.
    queries
        Ids of the topology's queries to run; all where none is named.
    claims
        By the query's id, the claim with which it is run.
    package
        What a supervisor has it run. Then it runs those queries alone that have a claim, follows
        whether its topology is active, and reports to the cluster's state.
    alive
        A file that is touched as long as the worker gets on.
    """

    script: Path
    storm_id: str
    node: str
    port: int
    arguments: Sequence[str] = ()
    py_files: Sequence[Path] = ()
    queries: Sequence[str] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)
    package: UnpackedPackage | None = None
    alive: Path | None = None

    @property
    def script_file(self) -> Path:
        """Where the script is.

        Raises
        ------
        WorkerError
            It is not in the code of the package.
        """
        if self.package is None:
            return self.script
        file = self.package.folder / self.script
        if not file.is_relative_to(self.package.code):
            raise WorkerError(f"the script {self.script} is not in {self.package.code}")
        return file

    @property
    def root(self) -> Path | None:
        """What is first in ``sys.path``; None: the folder of the script."""
        return None if self.package is None else self.package.code

    @property
    def all_arguments(self) -> Sequence[str]:
        """What the script finds in ``sys.argv``."""
        return self.arguments or (() if self.package is None else self.package.manifest.arguments)

    @property
    def all_py_files(self) -> list[Path]:
        """All modules and archives of modules that come along."""
        return [*(self.package.py_files if self.package is not None else ()), *self.py_files]

    @property
    def chosen(self) -> list[str]:
        """Ids of the topology's queries that are run; all where there is none."""
        return [*(self.queries or (self.claims if self.package is not None else ()))]

    @property
    def script_claim(self) -> Claim | None:
        """The claim of a plain script, which is one query to the cluster."""
        if self.package is None or not self.package.is_script:
            return None
        return next(iter(self.claims.values()), None)

    @property
    def script_id(self) -> str | None:
        """The id that a plain script has in the cluster; None where it is no cluster's."""
        if self.package is None or not self.package.is_script:
            return None
        return next(iter(self.claims), self.package.queries[0])

    @property
    def has_session_first(self) -> bool:
        """Whether its Spark session has to be there before the script begins."""
        return self.package is not None and self.package.description.session_first

    @property
    def reported(self) -> list[str]:
        """The components that are told of an error that is of no single one: all sinks."""
        return self.chosen or [*(self.package.queries if self.package is not None else ())]


@dataclass(frozen=True)
class UnpackedPackage:
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


def read_package(folder: Path) -> UnpackedPackage:
    """Return the package that lies in a folder.

    Raises
    ------
    WorkerError
        There is none, or none that this release reads.
    """
    folder = folder.absolute()
    try:
        return UnpackedPackage(
            folder,
            manifest.decode((folder / manifest.MANIFEST).read_bytes()),
            description.decode((folder / manifest.DESCRIPTION).read_bytes()),
        )
    except (OSError, SerializationError) as error:
        raise WorkerError(f"there is no topology's package in {folder}: {error}") from error


class CommandLine(argparse.ArgumentParser):
    """Reads ``SCRIPT [OPTIONS] [-- ARGUMENTS]``; the script finds ARGUMENTS in ``sys.argv``.

    Parameters
    ----------
    prog, description
        As of `argparse.ArgumentParser`.
    """

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            usage="%(prog)s SCRIPT [OPTIONS] [-- ARGUMENTS]",
            description=description,
            epilog="The script finds ARGUMENTS in sys.argv.",
            allow_abbrev=False,
        )
        self.add_argument(
            "script", type=Path, help="defines a Topology, or starts streaming queries"
        )
        self.add_argument(
            "--py-files",
            action="append",
            default=[],
            type=Path,
            metavar="FILE",
            help="a .py, .zip or .egg file that the script can import, in Spark's executors too",
        )
        self.add_argument(
            "--config", action="append", type=Path, metavar="FILE", help="instead of storm.yaml"
        )
        self.add_argument(
            "-c",
            "--conf",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="wins over all else",
        )
        self.add_argument("--strict", action="store_true", help="an unknown key is an error")

    def parse_args(self, args: Sequence[str]) -> Any:  # type: ignore[override]
        """Return what is given; `arguments` is what stands behind ``--``."""
        end = args.index("--") if "--" in args else len(args)
        given = super().parse_args(args[:end])
        given.arguments = list(args[end + 1 :])
        return given
