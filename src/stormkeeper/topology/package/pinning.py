"""Pins what a topology requires: pip chooses the versions once, when the topology is submitted.

pip chooses as it would on a machine of the cluster: over what every such machine has, which is
PySpark and Stormkeeper with all that they require themselves, and nothing else that happens to be
installed here. Nothing is installed for it. The Python and the system are those of this machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
from packaging.requirements import Requirement as Parsed
from packaging.utils import canonicalize_name

from stormkeeper.daemon import children
from stormkeeper.errors import ChildError, TopologyError
from stormkeeper.topology.package.environment import Base
from stormkeeper.topology.package.requirements import Requirement

#: How long pip may take, in seconds. It may have to fetch large files to see what they require.
PIN_SECS: Final = 900.0

#: What every machine of a cluster that runs topologies has.
_CLUSTERS = "stormkeeper[spark]"


def pin(
    required: Sequence[Requirement], base: Base, *, file: str, secs: float = PIN_SECS
) -> tuple[str, ...]:
    """Return the pinned requirements of all that must be installed, sorted.

    Parameters
    ----------
    required
        As of `requirements.parse`.
    base
        What the machines of the cluster have.
    file
        Where the requirements are from, for errors.
    secs
        How long pip may take.

    Raises
    ------
    TopologyError
        pip finds no versions that go together, or ends otherwise; the message ends with what it
        said last.
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
        pip += [
            "--no-input",
            "--disable-pip-version-check",
            "--progress-bar=off",
            "--report",
            str(report),
        ]
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
    """What of pip's report is read (pip's documentation, "Installation Report")."""

    install: list[_Install]


def _in_their_lines(required: Sequence[Requirement]) -> str:
    """Return the requirements in the lines that they have in their file, as pip names these."""
    texts = {requirement.line: requirement.text for requirement in required}
    return "\n".join(texts.get(number, "") for number in range(1, max(texts) + 1))


def _pins(
    required: Sequence[Requirement], report: _Report, there: dict[str, str]
) -> tuple[str, ...]:
    """Return what is to be installed, and what is required by name and there already."""
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
    """Make an environment in which pip finds what the cluster's machines have.

    Returns
    -------
    dict
        The version of each package, by name.
    """
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
    """Return what a distribution requires, with an extra."""
    environment: Any = {"extra": extra}
    parsed = map(Parsed, distribution.requires or ())
    return [one for one in parsed if one.marker is None or one.marker.evaluate(environment)]
