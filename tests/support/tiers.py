"""Which tests run: the first tier, and of the others what somebody asks for.

A test is asked for by its mark (``-m slow``) or by its name (``tests/a_file.py::test_it``).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

#: Marks of the tests that do not run unless somebody asks; of several, the last one counts.
LATER: Final = ("slow", "faults", "interop")


def has_second(config: pytest.Config) -> bool:
    """Return whether somebody asks for the second tier."""
    return "slow" in config.option.markexpr


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests out of `items` that nobody asked for."""
    kept, left_out = [], []
    for item in items:
        tiers = [mark for mark in LATER if item.get_closest_marker(mark) is not None]
        wanted = (
            not tiers
            or tiers[-1] in config.option.markexpr
            or is_named(item.path, item.nodeid, config.args, config.invocation_params.dir)
        )
        (kept if wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def is_named(path: Path, node_id: str, arguments: Iterable[str], folder: Path) -> bool:
    """Return whether arguments of pytest name a test, and not only its file or its folder.

    Parameters
    ----------
    path, node_id
        Where the test is, and what pytest calls it.
    arguments, folder
        Of the command line, and where that was typed.
    """
    name = node_id.partition("::")[2]
    for argument in arguments:
        file, _, wanted = argument.partition("::")
        if wanted and (folder / file).resolve() == path and _is_of(name, wanted):
            return True
    return False


def _is_of(name: str, wanted: str) -> bool:
    # A function stands for its parameters, a class for its functions.
    return name == wanted or name.startswith((f"{wanted}[", f"{wanted}::"))
