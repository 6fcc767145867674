"""A wheel as a folder of code.

A wheel that a user submits is a zip of modules that can lie in any folder of ``sys.path``. That
holds only for a pure one, without a compiled part. Any other is better named as a requirement. The
script that runs is ``__main__.py`` of its one package that has one, as ``python -m`` runs it.
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from stormkeeper import names
from stormkeeper.errors import TopologyError
from stormkeeper.topology.package import limits

_MAIN = "/__main__.py"


@dataclass(frozen=True)
class LaidOut:
    """A wheel in a folder.

    Parameters
    ----------
    name
        Of its distribution.
    script
        Which of its files runs.
    requires
        What must be installed for it, a requirement in each item; without its extras.
    """

    name: str
    script: Path
    requires: tuple[str, ...]


def lay_out(wheel: Path, folder: Path) -> LaidOut:
    """Unpack a wheel into an empty folder.

    Raises
    ------
    TopologyError
        It cannot be read, is not pure, or has no script to run.
    """
    try:
        name, _, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        raise TopologyError(f"{wheel} does not have the name of a wheel: {error}") from error
    if not any(tag.abi == "none" and tag.platform == "any" for tag in tags):
        raise TopologyError(
            f"{wheel} is for one platform: submit the script that uses it, and name it in a "
            "requirements.txt"
        )
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = [info for info in archive.infolist() if not info.is_dir()]
            _check(wheel, files)
            for info in files:
                target = folder / info.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise TopologyError(f"the wheel {wheel} cannot be read: {error}") from error
    scripts = [
        info.filename
        for info in files
        if info.filename.endswith(_MAIN) and info.filename.count("/") == 1
    ]
    if len(scripts) != 1:
        there = ", ".join(scripts) or "none"
        raise TopologyError(
            f"{wheel} must have one package with a __main__.py, which is what runs, and has {there}"
        )
    return LaidOut(str(name), folder / scripts[0], _requires(folder))


def _check(wheel: Path, files: list[zipfile.ZipInfo]) -> None:
    in_it = [info.filename for info in files]
    problem = limits.fault(len(files), sum(info.file_size for info in files))
    problem = problem or names.files_fault(in_it)
    if problem is None and any(name.partition("/")[0].endswith(".data") for name in in_it):
        problem = "it has a folder .data, which only an installation puts into its place"
    if problem is not None:
        raise TopologyError(f"the wheel {wheel} cannot be sent: {problem}")


def _requires(folder: Path) -> tuple[str, ...]:
    found = []
    for metadata in sorted(folder.glob("*.dist-info/METADATA")):
        message = BytesParser().parsebytes(metadata.read_bytes(), headersonly=True)
        for line in message.get_all("Requires-Dist", []):
            try:
                # A marker that only an extra makes true is an extra's.
                marker = Requirement(str(line)).marker
                if marker is None or "extra" not in str(marker):
                    found.append(str(line))
            except InvalidRequirement:
                found.append(str(line))  # whoever reads the requirements says what is wrong
    return tuple(found)
