"""Prepares a submission on the user's machine: package, conf and credentials.

All faults are found before anything is sent. First comes the code, then the script's description in
a separate process, then the choice of versions for requirements, as each step takes longer. The
conf is the topology's own, overridden by ``-c``, without the keys of the connection: another
machine may reach Nimbus by other addresses.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from stormkeeper.conf import Conf, access_control, mistyped
from stormkeeper.conf.folders import is_relative
from stormkeeper.conf.keys import OF_THE_CLUSTER, is_secret, storm_keys
from stormkeeper.errors import ConfigError
from stormkeeper.topology import faults
from stormkeeper.topology.description import Description, describing, has_to_run
from stormkeeper.topology.package import archive, environment
from stormkeeper.topology.package.code import PackagedCode, collect, read_text
from stormkeeper.topology.package.environment import Base, Requirement
from stormkeeper.topology.package.manifest import PackageManifest
from stormkeeper.topology.topology import unheard

CONNECTION_PREFIXES: Final = ("nimbus.", "storm.nimbus.", "storm.thrift.")

_CHECKPOINTS: Final = "topology.checkpoint.dir"


@dataclass(frozen=True, kw_only=True)
class SubmissionRequest:
    """A user's submission: `code` (a script, folder or wheel), and additions.

    `name` None: the topology's own name, or the code's. `requirements` replace the
    ``requirements.txt`` beside the code. `files` and `overrides` configure the Spark session for
    the script's description. `credentials` stay out of the package.
    """

    code: Path
    name: str | None = None
    arguments: tuple[str, ...] = ()
    py_files: tuple[Path, ...] = ()
    jars: tuple[Path, ...] = ()
    #: Maven coordinates, ``GROUP:NAME:VERSION``.
    jvm_packages: tuple[str, ...] = ()
    requirements: Path | None = None
    with_wheels: bool = False
    files: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SubmissionListener:
    """Receives a submission's progress; with `strict`, an unknown key is an error."""

    #: Called with each slow step.
    say: Callable[[str], None]
    #: Called with the bytes sent and the total.
    sent: Callable[[int, int], None]
    warn: Callable[[str], None]
    strict: bool = False

    def report_unknown_keys(self, keys: Collection[str], where: str) -> None:
        """Report each key of a conf without effect."""
        for text in (*mistyped(keys), *access_control.of_topology(keys)):
            if self.strict:
                raise ConfigError(f"{where}: {text}")
            self.warn(f"{where}: {text}")


@dataclass(frozen=True)
class BuiltPackage:
    """A package: an open zip file at the beginning, size in bytes, and contents."""

    file: BinaryIO
    size: int
    manifest: PackageManifest
    description: Description


@contextmanager
def collect_code(request: SubmissionRequest) -> Iterator[PackagedCode]:
    """Yield the checked code of a request in a temporary folder.

    Raises `TopologyError` with file and line for a fault, `MissingExtraError` if the script has to
    run, or has requirements, without PySpark.
    """
    if request.name is not None:
        unheard(request.name)  # raises for a wrong name
    with tempfile.TemporaryDirectory(prefix="stormkeeper-submit-") as folder:
        named = request.requirements
        required = None if named is None else (read_text(named), str(named))
        code = collect(request.code, Path(folder), request.py_files, required)
        # Both raise for a fault.
        _requirements(code)
        has_to_run(code.script, root=_root(code), py_files=request.py_files)
        yield code


def describing_code(
    request: SubmissionRequest, code: PackagedCode
) -> AbstractContextManager[Callable[[], Description]]:
    """Start to describe a script, and run the script if necessary; as `describing`."""
    return describing(
        code.script,
        root=_root(code),
        arguments=request.arguments,
        py_files=request.py_files,
        files=request.files,
        overrides=request.overrides,
    )


@contextmanager
def build_package(
    request: SubmissionRequest,
    code: PackagedCode,
    description: Description,
    say: Callable[[str], None],
) -> Iterator[BuiltPackage]:
    """Yield the package in a temporary folder; `say` gets the name of each slow step.

    Raises `TopologyError` if a requirement is not found, or the package is too large.
    """
    with tempfile.TemporaryDirectory(prefix="stormkeeper-package-") as folder:
        pins = _pins(code, say)
        wheels: tuple[Path, ...] = ()
        if request.with_wheels and code.required is not None:
            say("gathering wheels")
            wheels = environment.gather(pins, Path(folder), file=code.required[1])
        contents = archive.PackageContents(
            code,
            description,
            name=request.name,
            arguments=request.arguments,
            requirements=pins,
            py_files=request.py_files,
            jars=request.jars,
            wheels=wheels,
            jvm_packages=request.jvm_packages,
        )
        say("packing")
        with Path(folder, "package.zip").open("w+b") as file:
            manifest = archive.write(file, contents, archive.versions())
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            yield BuiltPackage(file, size, manifest, description)


def _root(code: PackagedCode) -> Path | None:
    return None if code.script.parent == code.root else code.root


def _pins(code: PackagedCode, say: Callable[[str], None]) -> tuple[str, ...]:
    required = _requirements(code)
    if not required or code.required is None:
        return ()
    _, file = code.required
    say(f"choosing versions for {file}")
    return environment.pin(required, Base.here(), file=file)


def _requirements(code: PackagedCode) -> tuple[Requirement, ...]:
    if code.required is None:
        return ()
    return code.requirements(Base.here().versions)


def conf_to_send(own: Mapping[str, Any], conf: Conf, name: str) -> dict[str, Any]:
    """Return the topology's `own` conf with the overrides of the command's `conf`.

    Raises `ConfigError` for a wrong value, a possible secret, a relative folder for checkpoints, or
    a key of the cluster.
    """
    given = {key: conf[key] for key in conf if conf.is_override(key) and not _stays_here(key)}
    if foreign := sorted(OF_THE_CLUSTER.intersection(own)):
        raise ConfigError(
            f"the conf of the topology {name!r} has {', '.join(foreign)}, which only the cluster's"
            " storm.yaml sets: leave it out"
        )
    try:
        conf.with_values(own)
    except ConfigError as error:
        what = str(error).removeprefix("with_values: ")
        raise ConfigError(f"the conf of the topology {name!r}: {what}") from error
    values = {**own, **given}
    if values.get("spark.remote") or values.get("spark.api.mode") == "connect":
        raise ConfigError(f"the conf of the topology {name!r}: {faults.CONNECT}")
    checkpoints = values.get(_CHECKPOINTS)
    if isinstance(checkpoints, str) and is_relative(checkpoints):
        raise ConfigError(
            f"the conf of the topology {name!r}: {_CHECKPOINTS} is {checkpoints!r}, which every"
            " worker would look for in another folder: give a whole path, one below ~, or a URL"
            " such as s3a://bucket/checkpoints"
        )
    secret = sorted(key for key, value in values.items() if _is_a_secret(key, value))
    if secret:
        raise ConfigError(
            f"the conf of the topology {name!r} has what may be a secret, by the name of the key:"
            f" {', '.join(secret)}. Anyone who can reach Nimbus can read the conf: send the secret"
            " in the file of --credentials, or rename the key if it is not a secret"
        )
    return values


def _stays_here(key: str) -> bool:
    return key.startswith(CONNECTION_PREFIXES) or key in OF_THE_CLUSTER


def _is_a_secret(key: str, value: Any) -> bool:
    """Return whether Nimbus would take a value for a secret; Storm's own keys are none."""
    return bool(value) and isinstance(value, str) and is_secret(key) and key not in storm_keys()


def read_credentials(file: TextIO) -> dict[str, str]:
    where = "standard input" if file.name == "<stdin>" else file.name
    try:
        return credentials_of_text(file.read(), where)
    except UnicodeDecodeError:
        raise ConfigError(f"{where} is not UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from error


def credentials_of_text(text: str, where: str) -> dict[str, str]:
    r"""Return the credentials in a text: a JSON object, or lines ``KEY=VALUE`` and ``# comments``.

    A value of several lines needs JSON. Raises `ConfigError` with the name `where` of the text.

    Examples
    --------
    >>> credentials_of_text("# of the bank\nuser = bob\npassword=a=b\n", "FILE")
    {'user': 'bob', 'password': 'a=b'}
    """
    if text.lstrip().startswith("{"):
        return _from_json(text, where)
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            _put(found, line, f"line {number} of {where}")
    return found


def credentials_of_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Return the credentials of texts ``KEY=VALUE``; raises `ConfigError`."""
    found: dict[str, str] = {}
    for number, pair in enumerate(pairs, start=1):
        _put(found, pair, f"credential {number} of the command line")
    return found


def _put(found: dict[str, str], text: str, where: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{where} is no KEY=VALUE")
    if key.strip() in found:
        raise ConfigError(f"{where}: {key.strip()} is there twice")
    found[key.strip()] = value.strip()


def _from_json(text: str, where: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        # A JSON error's message has a position, and none of the text.
        raise ConfigError(f"{where} is no JSON: {error}") from None
    if not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(f"{where} has a value that is no text: put it in quotes")
    return dict(found)
