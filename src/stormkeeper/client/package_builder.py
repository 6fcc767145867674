"""Makes the package of a topology on this machine, and finds its faults before anything is sent.

Its code is collected, its script is described in a process of its own, and what it requires is
pinned: in this order, as each step takes longer than the one before.
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
from stormkeeper.topology import describer
from stormkeeper.topology.description import Description
from stormkeeper.topology.package import archive, environment
from stormkeeper.topology.package.code import SubmittedCode, collect
from stormkeeper.topology.package.environment import Base
from stormkeeper.topology.package.manifest import PackageManifest
from stormkeeper.topology.package.requirements import Requirement
from stormkeeper.topology.topology import unheard


@dataclass(frozen=True, kw_only=True)
class SubmissionRequest:
    """What a user submits.

    Parameters
    ----------
    code
        A script, a folder or a wheel.
    name
        What the topology is to be called; None: as it calls itself, or after the code.
    arguments
        What the script finds in ``sys.argv``.
    py_files, jars
        Files that come along: modules and archives of modules, and what the JVM needs.
    jvm_packages
        What Spark is to fetch: ``GROUP:NAME:VERSION``.
    requirements
        Instead of the ``requirements.txt`` beside the code; None: that one.
    with_wheels
        Whether the wheels of what is required come along.
    files, overrides
        Of the configuration of a Spark session that the script may need to be described.
    credentials
        Texts by their names, which are not part of the package.
    """

    code: Path
    name: str | None = None
    arguments: tuple[str, ...] = ()
    py_files: tuple[Path, ...] = ()
    jars: tuple[Path, ...] = ()
    jvm_packages: tuple[str, ...] = ()
    requirements: Path | None = None
    with_wheels: bool = False
    files: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class BuiltPackage:
    """A package.

    Parameters
    ----------
    file
        The zip, at its beginning.
    size
        Its bytes.
    manifest, description
        What is in it.
    """

    file: BinaryIO
    size: int
    manifest: PackageManifest
    description: Description


@contextmanager
def collected(given: SubmissionRequest) -> Iterator[SubmittedCode]:
    """Give the code of what is submitted, whose source was checked, as long as it is needed.

    Raises
    ------
    TopologyError
        It cannot be sent; of a fault in it the message begins with the file and the line.
    MissingExtraError
        PySpark is not installed, and the script has to be run to be described, or something is
        required, which must go with the version of PySpark.
    """
    if given.name is not None:
        unheard(given.name)  # which says what is wrong with the name
    with tempfile.TemporaryDirectory(prefix="stormkeeper-submit-") as folder:
        named = given.requirements
        required = None if named is None else (_read(named), str(named))
        code = collect(given.code, Path(folder), given.py_files, required)
        # Both say what is wrong.
        _required(code)
        describer.has_to_run(code.script, root=_root(code), py_files=given.py_files)
        yield code


def describe(given: SubmissionRequest, code: SubmittedCode) -> Description:
    """Return the description of what a script defines; it is run for that, if it has to be.

    Raises
    ------
    TopologyError
        The script has a fault; the message says what to do.
    MissingExtraError
        It has to be run, and PySpark is not installed.
    ChildError
        The process in which it is run cannot be started.
    """
    return describer.describe(
        code.script,
        root=_root(code),
        arguments=given.arguments,
        py_files=given.py_files,
        files=given.files,
        overrides=given.overrides,
    )


@contextmanager
def packed(
    given: SubmissionRequest,
    code: SubmittedCode,
    description: Description,
    say: Callable[[str], None],
) -> Iterator[BuiltPackage]:
    """Give the package, as long as it is needed.

    Parameters
    ----------
    given, code, description
        What goes into it.
    say
        Called with what takes its time.

    Raises
    ------
    TopologyError
        What is required cannot be pinned or gathered, or the package would be larger than any
        may be.
    """
    with tempfile.TemporaryDirectory(prefix="stormkeeper-package-") as folder:
        pins = _pinned(code, say)
        wheels: tuple[Path, ...] = ()
        if given.with_wheels and code.required is not None:
            say("gathering wheels")
            wheels = environment.gather(pins, Path(folder), file=code.required[1])
        contents = archive.PackageContents(
            code,
            description,
            name=given.name,
            arguments=given.arguments,
            requirements=pins,
            py_files=given.py_files,
            jars=given.jars,
            wheels=wheels,
            jvm_packages=given.jvm_packages,
        )
        say("packing")
        with Path(folder, "package.zip").open("w+b") as file:
            made = archive.write(file, contents, archive.versions())
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            yield BuiltPackage(file, size, made, description)


def _root(code: SubmittedCode) -> Path | None:
    """Return where else than beside the script its modules are."""
    return None if code.script.parent == code.root else code.root


def _pinned(code: SubmittedCode, say: Callable[[str], None]) -> tuple[str, ...]:
    required = _required(code)
    if not required or code.required is None:
        return ()
    _, file = code.required
    say(f"choosing versions for {file}")
    return environment.pin(required, Base.here(), file=file)


def _required(code: SubmittedCode) -> tuple[Requirement, ...]:
    if code.required is None:
        return ()
    return code.requirements(Base.here().versions)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{file} cannot be read: {error}") from error
