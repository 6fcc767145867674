"""The extras of this package: what needs one says which, where it is not installed."""

import importlib.util
import sys
from typing import Final

from stormkeeper.errors import MissingExtraError

#: The modules by which an extra is known to be installed.
MODULES: Final = {"spark": ("pyspark", "pandas", "pyarrow")}


def require(extra: str, user: str, *modules: str) -> None:
    """See to it that an extra is installed; its modules are looked for and not imported.

    Parameters
    ----------
    extra
        Its name, such as ``spark``.
    user
        What needs it, as an error says it.
    modules
        Those of its modules that are needed; all of them if none is named.

    Raises
    ------
    MissingExtraError
        One of the modules is not installed.
    """
    missing = [name for name in modules or MODULES[extra] if not _is_installed(name)]
    if missing:
        raise MissingExtraError(
            f"{user} needs the extra {extra}, which is not installed"
            f" ({', '.join(f'no {name}' for name in missing)}): {install_command(extra)}",
            name=missing[0],
        )


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the Python that runs this.

    This package is installed there, so that pip gets its extra's packages and not, from whoever
    may have taken it, another package of this name.
    """
    return f"{sys.executable} -m pip install 'stormkeeper[{extra}]'"


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
