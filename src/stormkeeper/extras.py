"""The extras of this package, and the error for a missing one."""

import importlib.util
import sys
from typing import Final

from stormkeeper.errors import MissingExtraError

#: Modules of each extra.
MODULES: Final = {"spark": ("pyspark", "pandas", "pyarrow")}


def require(extra: str, user: str, *modules: str) -> None:
    """Check that the modules of an extra are installed, without an import.

    Raises `MissingExtraError` if a module is not installed.

    Parameters
    ----------
    modules
        The needed modules; default: all of the extra.
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

    This package is installed, so pip cannot take another package of this name from an index.
    """
    return f"{sys.executable} -m pip install 'stormkeeper[{extra}]'"


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
