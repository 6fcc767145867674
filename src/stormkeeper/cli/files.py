"""Options that name files which come along with a topology."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click


def files_of(
    *suffixes: str,
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[Path, ...]]:
    """Return the callback of an option that names files, several with commas between them.

    Parameters
    ----------
    *suffixes
        Which kinds of files there may be, such as ``.py``.
    """
    kinds = " or ".join(filter(None, [", ".join(suffixes[:-1]), suffixes[-1]]))

    def check(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[Path, ...]:
        files = [Path(name) for names in given for name in names.split(",") if name]
        for file in files:
            if file.suffix not in suffixes:
                raise click.BadParameter(f"{file} is no {kinds} file")
            if not file.is_file():
                raise click.BadParameter(f"there is no file {file}")
        return tuple(file.absolute() for file in files)

    return check


#: Of modules and archives of modules.
py_files = files_of(".py", ".zip", ".egg")
