"""A worker's job, unpacked package, command line and configuration.

The layers of the configuration, from the lowest to the highest: the cluster's files, the topology's
own conf, the values saved at its submission, the command line, and the topology's credentials.
"""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from stormkeeper.conf import Conf, load
from stormkeeper.conf.folders import checkpoint_root
from stormkeeper.errors import ConfigError, SerializationError, WorkerError
from stormkeeper.topology import description
from stormkeeper.topology.description import Description
from stormkeeper.topology.package import manifest
from stormkeeper.topology.package.manifest import PackageManifest
from stormkeeper.topology.plan import Claim
from stormkeeper.topology.topology import Topology

#: Archive of a package's code. Spark needs distinct names of sent files.
_ARCHIVE: Final = "stormkeeper-topology-code.zip"


@dataclass(frozen=True)
class UnpackedPackage:
    """A topology's package in a read-only folder."""

    folder: Path
    manifest: PackageManifest
    description: Description

    @property
    def code(self) -> Path:
        """The first folder in ``sys.path``."""
        return self.folder / manifest.CODE

    @property
    def is_script(self) -> bool:
        return self.description.kind == "script"

    @property
    def queries(self) -> tuple[str, ...]:
        """The ids of all queries; a plain script has a single id."""
        return self.description.query_ids

    @property
    def py_files(self) -> list[Path]:
        return [self.folder / name for name in self.manifest.py_files]

    def with_jars(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Add the package's jars and Maven packages to Spark settings."""
        jars = [str(self.folder / name) for name in self.manifest.jars]
        added = {"spark.jars": jars, "spark.jars.packages": [*self.manifest.jvm_packages]}
        with_them = dict(values)
        for key, ours in added.items():
            if ours:
                with_them[key] = ",".join(filter(None, [*ours, values.get(key)]))
        return with_them

    def write_code(self, folder: Path) -> Path:
        """Write an archive of the code for executors elsewhere; return the path.

        The archive has only the manifest's files. Raises `OSError`.
        """
        prefix, place = manifest.CODE, folder / _ARCHIVE
        names = [PurePosixPath(f.name) for f in self.manifest.files if f.name.startswith(prefix)]
        # Python finds a package without __init__.py only if its folder is an entry.
        parents = {parent for name in names for parent in [*name.parents][:-2]}
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted({*parents, *names}):
                archive.write(self.folder / name, name.relative_to(prefix))
        return place


def read_package(folder: Path) -> UnpackedPackage:
    """Read a package; raises `WorkerError` if missing or unreadable."""
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
    """A worker's job: the script, the slot (node and port), and the queries to run.

    With a `package`, from a supervisor, `script` is relative to the package, only queries with a
    claim run, and the worker follows the topology's status and reports to the cluster's state.
    Without a package, `queries` selects; empty: all. The `alive` file is touched on progress.
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
        """The script's path; raises `WorkerError` if outside the package's code."""
        if self.package is None:
            return self.script
        file = self.package.folder / self.script
        if not file.is_relative_to(self.package.code):
            raise WorkerError(f"the script {self.script} is not in {self.package.code}")
        return file

    @property
    def root(self) -> Path | None:
        """The first folder in ``sys.path``; None: the script's."""
        return None if self.package is None else self.package.code

    @property
    def all_arguments(self) -> Sequence[str]:
        return self.arguments or (() if self.package is None else self.package.manifest.arguments)

    @property
    def all_py_files(self) -> list[Path]:
        return [*(self.package.py_files if self.package is not None else ()), *self.py_files]

    @property
    def chosen(self) -> list[str]:
        """Ids of queries to run; empty: all."""
        return [*(self.queries or (self.claims if self.package is not None else ()))]

    @property
    def script_claim(self) -> Claim | None:
        """The claim of a plain script, a single query to the cluster."""
        if self.package is None or not self.package.is_script:
            return None
        return next(iter(self.claims.values()), None)

    @property
    def script_id(self) -> str | None:
        """The id of a plain script; None outside a cluster."""
        if self.package is None or not self.package.is_script:
            return None
        return next(iter(self.claims), self.package.queries[0])

    @property
    def has_session_first(self) -> bool:
        """Whether the Spark session has to start before the script."""
        return self.package is not None and self.package.description.session_first

    @property
    def reported(self) -> list[str]:
        """The components that get an error without a component: all sinks."""
        return self.chosen or [*(self.package.queries if self.package is not None else ())]


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The topology and the worker of a claim, as stored in a checkpoint."""

    topology: str
    query: str
    host: str
    port: int
    pid: int
    cluster: str
    since: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"the topology {self.topology} at {self.host}:{self.port} since {since}"


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


def merged_conf(
    topology: Topology | None,
    *,
    files: Sequence[Path] | None = None,
    overrides: Sequence[str] = (),
    strict: bool = False,
    saved: Mapping[str, Any] | None = None,
) -> Conf:
    """Merge all layers but the credentials; `saved` are the saved values.

    The rest is as for `stormkeeper.conf.load`. Raises `ConfigError`.
    """
    saved = saved or {}
    own = {*(topology.conf if topology is not None else ()), *saved}
    conf = load(files=files, overrides=overrides, strict=strict, also_known=own)
    commanded = {override.partition("=")[0].strip() for override in overrides}
    conf = with_topology(conf, topology, keep=commanded | saved.keys())
    return with_overrides(conf, saved, keep=commanded)


def with_topology(
    conf: Conf, topology: Topology | None, *, keep: set[str] | frozenset[str] = frozenset()
) -> Conf:
    """Add the topology's own values to `conf`, except for the keys to `keep`."""
    if topology is None:
        return conf
    values = {key: value for key, value in topology.conf.items() if key not in keep}
    try:
        return conf.with_values({"topology.name": topology.name} | values)
    except ConfigError as error:
        what = str(error).removeprefix("with_values: ")
        raise ConfigError(f"the conf of the topology {topology.name!r}: {what}") from error


def read_overrides(file: Path) -> dict[str, Any]:
    """Read saved values by key; errors leave out the content, which may be secret."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: expected a JSON object with a value for each key") from error


def with_overrides(conf: Conf, values: Mapping[str, Any], *, keep: Collection[str] = ()) -> Conf:
    try:
        return conf.with_values({key: value for key, value in values.items() if key not in keep})
    except ConfigError as error:
        raise ConfigError(f"the topology's saved configuration: {error}") from error


def with_credentials(conf: Conf, credentials: Mapping[str, str]) -> Conf:
    """Add credentials to `conf`; errors leave out the value."""
    try:
        return conf.with_values(credentials)
    except ConfigError:
        raise ConfigError(
            "a credential of the topology has the name of a key, and a value that the key does not"
            " allow: rename the credential by `storm upload-credentials`"
        ) from None


def checkpoint_location(conf: Mapping[str, Any], storm_id: str, query: str) -> str:
    """Return a checkpoint's location, the same at every start of the topology.

    A topology that continues another topology's checkpoints uses that topology's folder.
    """
    folder = conf["topology.checkpoint.from"] or storm_id
    return f"{checkpoint_root(conf).rstrip('/')}/{folder}/{query}"
