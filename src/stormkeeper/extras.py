"""The extras of this package, and the error for a missing extra."""

import importlib.util
import sys
from importlib import metadata
from typing import Final

from stormkeeper.errors import MissingExtraError

MODULES: Final = {"spark": ("pyspark", "pandas", "pyarrow")}


def require(extra: str, user: str, *modules: str) -> None:
    """Raise `MissingExtraError` unless the modules of an extra (by default all) are installed.

    No module is imported.
    """
    missing = [name for name in modules or MODULES[extra] if not _is_installed(name)]
    if missing:
        raise MissingExtraError(
            f"{user} needs the extra {extra}, which is not installed"
            f" ({', '.join(f'no {name}' for name in missing)}): {install_command(extra)}",
            name=missing[0],
        )


def install_command(extra: str) -> str:
    """Return the command that installs an extra for this Python.

    As this package is installed, pip takes no other of this name from an index.
    """
    return f"{sys.executable} -m pip install 'stormkeeper[{extra}]'"


def installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
