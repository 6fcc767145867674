"""The job of a worker, its unpacked package, and the command-line options of scripts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stormkeeper.errors import SerializationError, WorkerError
from stormkeeper.topology import description
from stormkeeper.topology.description import Description
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.manifest import PackageManifest
from stormkeeper.topology.plan import Claim


@dataclass(frozen=True)
class UnpackedPackage:
    """A topology's package in a folder, which is only read."""

    folder: Path
    manifest: PackageManifest
    description: Description

    @property
    def code(self) -> Path:
        """The first folder in ``sys.path``."""
        return self.folder / manifest.CODE

    @property
    def is_script(self) -> bool:
        """Whether the package is a plain script, without a topology."""
        return self.description.kind == "script"

    @property
    def queries(self) -> tuple[str, ...]:
        """The ids of all queries; a plain script has one id."""
        return self.description.query_ids

    @property
    def py_files(self) -> list[Path]:
        """Modules and archives of modules in the package."""
        return [self.folder / name for name in self.manifest.py_files]

    def with_jars(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return Spark settings with the package's jars and Maven packages added."""
        jars = [str(self.folder / name) for name in self.manifest.jars]
        added = {"spark.jars": jars, "spark.jars.packages": [*self.manifest.jvm_packages]}
        with_them = dict(values)
        for key, ours in added.items():
            if ours:
                with_them[key] = ",".join(filter(None, [*ours, values.get(key)]))
        return with_them


def read_package(folder: Path) -> UnpackedPackage:
    """Read the package in a folder; raises `WorkerError` if missing or unreadable."""
    folder = folder.absolute()
    try:
        return UnpackedPackage(
            folder,
            manifest.decode((folder / manifest.MANIFEST).read_bytes()),
            description.decode((folder / manifest.DESCRIPTION).read_bytes()),
        )
    except (OSError, SerializationError) as error:
        raise WorkerError(f"there is no topology's package in {folder}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Job:
    """A worker's job: the script, the slot that it names by node and port, and what to run of it.

    With a `package`, from a supervisor, only queries with a claim run, and the worker follows the
    topology's status and reports to the cluster's state. `script` is relative to the package.
    Without one, `queries` selects, and all run by default. The `alive` file is touched on progress.
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
        """The path of the script; raises `WorkerError` if outside the package's code."""
        if self.package is None:
            return self.script
        file = self.package.folder / self.script
        if not file.is_relative_to(self.package.code):
            raise WorkerError(f"the script {self.script} is not in {self.package.code}")
        return file

    @property
    def root(self) -> Path | None:
        """The first folder in ``sys.path``; None: the folder of the script."""
        return None if self.package is None else self.package.code

    @property
    def all_arguments(self) -> Sequence[str]:
        """The script's arguments in ``sys.argv``."""
        return self.arguments or (() if self.package is None else self.package.manifest.arguments)

    @property
    def all_py_files(self) -> list[Path]:
        """All modules and archives of modules beside the script."""
        return [*(self.package.py_files if self.package is not None else ()), *self.py_files]

    @property
    def chosen(self) -> list[str]:
        """Ids of the topology's queries to run; empty: all."""
        return [*(self.queries or (self.claims if self.package is not None else ()))]

    @property
    def script_claim(self) -> Claim | None:
        """The claim of a plain script, a single query to the cluster."""
        if self.package is None or not self.package.is_script:
            return None
        return next(iter(self.claims.values()), None)

    @property
    def script_id(self) -> str | None:
        """The id of a plain script in the cluster; None outside a cluster."""
        if self.package is None or not self.package.is_script:
            return None
        return next(iter(self.claims), self.package.queries[0])

    @property
    def has_session_first(self) -> bool:
        """Whether the Spark session has to start before the script."""
        return self.package is not None and self.package.description.session_first

    @property
    def reported(self) -> list[str]:
        """The components that an error without a component is reported of: all sinks."""
        return self.chosen or [*(self.package.queries if self.package is not None else ())]


class ScriptArgumentParser(argparse.ArgumentParser):
    """Parses ``SCRIPT [OPTIONS] [-- ARGUMENTS]``; the script gets ARGUMENTS in ``sys.argv``."""

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
        """Return the options, with `arguments` from behind ``--``."""
        end = args.index("--") if "--" in args else len(args)
        options = super().parse_args(args[:end])
        options.arguments = list(args[end + 1 :])
        return options
