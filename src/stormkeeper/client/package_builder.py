"""Builds a topology's package on the user's machine, and finds faults before anything is sent.

It collects the code, describes the script in a process of its own, and pins the requirements: in
this order, as each step takes longer than the one before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from stormkeeper.errors import TopologyError
from stormkeeper.topology.description import Description, describe, has_to_run
from stormkeeper.topology.package import archive, environment
from stormkeeper.topology.package.code import PackagedCode, collect
from stormkeeper.topology.package.environment import Base, Requirement
from stormkeeper.topology.package.manifest import PackageManifest
from stormkeeper.topology.topology import unheard


@dataclass(frozen=True, kw_only=True)
class SubmissionRequest:
    """A user's submission: `code` (a script, folder or wheel), and additions.

    `name` None means the topology's own name, or that of the code. `requirements` replace the
    ``requirements.txt`` beside the code. `files` and `overrides` are the configuration of a Spark
    session that the script may need to be described. `credentials` stay out of the package.
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

    Raises `TopologyError` for code that cannot be sent (a fault is reported with file and line),
    and `MissingExtraError` if the script has to be run, or requires something, without PySpark.
    """
    if request.name is not None:
        unheard(request.name)  # raises for a wrong name
    with tempfile.TemporaryDirectory(prefix="stormkeeper-submit-") as folder:
        named = request.requirements
        required = None if named is None else (_read(named), str(named))
        code = collect(request.code, Path(folder), request.py_files, required)
        # Both raise for a fault.
        _requirements(code)
        has_to_run(code.script, root=_root(code), py_files=request.py_files)
        yield code


def describe_code(request: SubmissionRequest, code: PackagedCode) -> Description:
    """Return the description of a script's topology; runs the script if necessary.

    Raises `TopologyError` for a fault in the script, `MissingExtraError` without PySpark, and
    `ChildError` if the process that runs the script does not start.
    """
    return describe(
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

    Raises `TopologyError` if a requirement cannot be pinned or gathered, or the package is too
    large.
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
    """Return the folder of the script's modules, if not the script's own."""
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


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{file} cannot be read: {error}") from error
