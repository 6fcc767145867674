"""Gathers the wheels of what a topology requires, for machines that cannot fetch them.

They are those that this machine would install: for its Python, and for its system where a wheel is
for one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stormkeeper.daemon import children
from stormkeeper.errors import ChildError, TopologyError

#: How long pip may take, in seconds. It may have a gigabyte to fetch, or sources to compile.
GATHER_SECS: Final = 1800.0


def gather(
    pins: Sequence[str], folder: Path, *, file: str, secs: float = GATHER_SECS
) -> tuple[Path, ...]:
    """Fetch or build the wheels of pinned requirements.

    Parameters
    ----------
    pins
        As of `pinning.pin`.
    folder
        An empty folder, for the wheels.
    file
        Where the requirements are from, for errors.
    secs
        How long pip may take.

    Returns
    -------
    tuple of Path
        The wheels, sorted.

    Raises
    ------
    TopologyError
        A requirement has an address, from which every machine would fetch it all the same; or pip
        cannot get a wheel.
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
    pip = [sys.executable, "-P", "-m", "pip", "wheel", "--no-deps", "--no-input"]
    pip += ["--disable-pip-version-check", "--progress-bar=off"]
    pip += ["--wheel-dir", str(folder / "wheels"), "--requirement", str(lines)]
    try:
        children.run("pip", pip, log=folder / "log", env={**os.environ}, secs=secs)
    except ChildError as error:
        raise TopologyError(f"the wheels for {file} cannot be gathered: {error}") from error
    return tuple(sorted((folder / "wheels").glob("*.whl")))
