"""The Python environment of a topology: its identity, its pinned requirements, and their wheels.

At the submission, pip chooses the versions as on a machine of the cluster: over PySpark,
Stormkeeper and their requirements, and nothing else that is installed here. Topologies with equal
requirements share an environment; a supervisor names the folder by the identity, so any change of
what would be installed, or of the Python below, gives another folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
from packaging.requirements import Requirement as Parsed
from packaging.utils import canonicalize_name

import stormkeeper
from stormkeeper.daemon import children
from stormkeeper.errors import ChildError, TopologyError
from stormkeeper.extras import require
from stormkeeper.topology.package.requirements import Requirement

#: Rises when environments are built differently.
_FORMAT: Final = 1

#: 128 bits of a SHA-256: short enough for a script's first line, of which Linux reads 255 bytes.
DIGITS: Final = 32


class Base(msgspec.Struct, frozen=True):
    """The Python and packages that an environment is built on, which no requirement can replace."""

    python: str
    abi: str
    platform: str
    stormkeeper: str
    pyspark: str

    @classmethod
    def here(cls) -> Base:
        """Return the base of this process; raise `MissingExtraError` without PySpark."""
        require("spark", "an environment for topologies", "pyspark")
        return cls(
            python=platform.python_version(),
            abi=str(sysconfig.get_config_var("SOABI")),
            platform=sysconfig.get_platform(),
            stormkeeper=stormkeeper.__version__,
            pyspark=metadata.version("pyspark"),
        )

    @property
    def versions(self) -> dict[str, str]:
        """The versions for `requirements.parse`."""
        return {"pyspark": self.pyspark, "stormkeeper": self.stormkeeper}


def identity(pins: Iterable[str], base: Base, wheels: Iterable[str] = ()) -> str:
    """Return the identity of an environment, `DIGITS` hexadecimal digits.

    `wheels` has the SHA-256 of each wheel that is installed from the package itself. The order of
    pins and wheels does not matter. Raises `TopologyError` without pins: then the base is the
    environment.
    """
    required = sorted(set(pins))
    if not required:
        raise TopologyError("an environment without requirements is not built")
    facts = [_FORMAT, required, msgspec.structs.astuple(base), sorted(set(wheels))]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:DIGITS]


#: Seconds that pip may take to pin: it may fetch large files to see what they require.
PIN_SECS: Final = 900.0

_QUIETLY: Final = ("--no-input", "--disable-pip-version-check", "--progress-bar=off")

#: Installed on every machine that runs topologies.
_CLUSTERS = "stormkeeper[spark]"


def pin(
    required: Sequence[Requirement], base: Base, *, file: str, secs: float = PIN_SECS
) -> tuple[str, ...]:
    """Return the pinned requirements of everything that must be installed, sorted.

    Raises `TopologyError` with pip's last words, and `file`, where the requirements are from.
    """
    if not required:
        return ()
    with tempfile.TemporaryDirectory(prefix="stormkeeper-pins-") as temporary:
        folder = Path(temporary)
        there = _stand_in(folder / "cluster")
        report = folder / "report.json"
        lines, constraints = folder / "requirements.txt", folder / "constraints.txt"
        lines.write_text(_in_their_lines(required))
        constraints.write_text("".join(f"{n}=={v}\n" for n, v in base.versions.items()))
        python = str(folder / "cluster" / "bin" / "python")
        pip = [sys.executable, "-P", "-m", "pip", "--python", python, "install", "--dry-run"]
        pip += [*_QUIETLY, "--report", str(report)]
        pip += ["--requirement", str(lines), "--constraint", str(constraints)]
        try:
            children.run(
                "pip", pip, log=folder / "log", env={**os.environ, "PIP_USER": "0"}, secs=secs
            )
        except ChildError as error:
            said = str(error).replace(str(lines), file)
            raise TopologyError(f"the requirements of {file} cannot be pinned: {said}") from error
        return _pins(required, msgspec.json.decode(report.read_bytes(), type=_Report), there)


class _Metadata(msgspec.Struct):
    name: str
    version: str


class _Install(msgspec.Struct):
    metadata: _Metadata


class _Report(msgspec.Struct):
    """The part of pip's report that is read (pip's documentation, "Installation Report")."""

    install: list[_Install]


def _in_their_lines(required: Sequence[Requirement]) -> str:
    """Return the requirements on their lines of the file, as pip names lines in errors."""
    texts = {requirement.line: requirement.text for requirement in required}
    return "\n".join(texts.get(number, "") for number in range(1, max(texts) + 1))


def _pins(
    required: Sequence[Requirement], report: _Report, there: dict[str, str]
) -> tuple[str, ...]:
    """Return pins of what will be installed, and of what is required by name and already there."""
    chosen: dict[str, str] = {
        canonicalize_name(install.metadata.name): install.metadata.version
        for install in report.install
    }
    pins = {name: f"{name}=={version}" for name, version in chosen.items()}
    for requirement in required:
        parsed = Parsed(requirement.text.partition(" --hash=")[0])
        if parsed.marker is not None and not parsed.marker.evaluate():
            continue
        name = requirement.name
        if parsed.url is not None:
            pins[name] = requirement.text
        elif name in chosen or name in there:
            # What is there may have another version on another machine.
            hashes = requirement.text.partition(" --hash=")[1:]
            pins[name] = f"{name}=={chosen.get(name) or there[name]}{''.join(hashes)}"
    return tuple(sorted(pins.values()))


def _stand_in(place: Path) -> dict[str, str]:
    """Make an environment in which pip finds the packages of a worker machine; return versions."""
    venv.EnvBuilder(symlinks=True).create(place)
    packages = next((place / "lib").glob("python*/site-packages"))
    there: dict[str, str] = {}
    left, seen = [Parsed(_CLUSTERS)], set[tuple[str, str]]()
    while left:
        parsed = left.pop()
        found, name = _distribution(parsed.name), canonicalize_name(parsed.name)
        if found is None:
            continue
        if name not in there:
            there[name] = found.version
            info = packages / f"{name.replace('-', '_')}-{found.version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(found.read_text("METADATA") or "", "utf-8")
        for extra in {"", *parsed.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                left += _needs(found, extra)
    return there


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _needs(distribution: metadata.Distribution, extra: str) -> list[Parsed]:
    """Return the requirements of a distribution with an extra."""
    environment: Any = {"extra": extra}
    parsed = map(Parsed, distribution.requires or ())
    return [one for one in parsed if one.marker is None or one.marker.evaluate(environment)]


#: Seconds that pip may take for wheels: it may fetch a gigabyte, or compile sources.
GATHER_SECS: Final = 1800.0


def gather(
    pins: Sequence[str], folder: Path, *, file: str, secs: float = GATHER_SECS
) -> tuple[Path, ...]:
    """Fetch or build the wheels of pinned requirements in an empty folder; return them, sorted.

    The wheels fit this machine. Raises `TopologyError` if pip fails, or for a requirement with an
    address, from which every machine would fetch it anyway.
    """
    addressed = next((pin for pin in pins if "://" in pin), None)
    if addressed is not None:
        raise TopologyError(
            f"{file}: the wheel of {addressed.partition(' ')[0]} cannot be brought, as it is"
            " required by its address: name it by its version, or leave out --with-wheels"
        )
    if not pins:
        return ()
    lines = folder / "requirements.txt"
    lines.write_text("".join(f"{pin}\n" for pin in pins))
    pip = [sys.executable, "-P", "-m", "pip", "wheel", "--no-deps", *_QUIETLY]
    pip += ["--wheel-dir", str(folder / "wheels"), "--requirement", str(lines)]
    try:
        children.run("pip", pip, log=folder / "log", env={**os.environ}, secs=secs)
    except ChildError as error:
        raise TopologyError(f"the wheels for {file} cannot be gathered: {error}") from error
    return tuple(sorted((folder / "wheels").glob("*.whl")))
