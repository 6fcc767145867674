"""A topology's credentials, as a user gives them; pure.

No message has a value in it: it would be on the screen, and in whatever keeps what is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from stormkeeper.errors import ConfigError


def from_text(text: str, where: str) -> dict[str, str]:
    r"""Return the credentials that a file has: one JSON object, or a line ``KEY=VALUE`` for each.

    Empty lines and those that begin with ``#`` are left out. A value with several lines needs JSON.

    Parameters
    ----------
    text
        What is in it.
    where
        What it is called, for the error.

    Raises
    ------
    ConfigError
        It is neither.

    Examples
    --------
    >>> from_text("# of the bank\nuser = bob\npassword=a=b\n", "FILE")
    {'user': 'bob', 'password': 'a=b'}
    """
    if text.lstrip().startswith("{"):
        return _from_json(text, where)
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            _put(found, line, f"line {number} of {where}")
    return found


def from_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Return the credentials that a command line has: texts ``KEY=VALUE``.

    Raises
    ------
    ConfigError
        One is no such text.
    """
    found: dict[str, str] = {}
    for number, pair in enumerate(pairs, start=1):
        _put(found, pair, f"credential {number} of the command line")
    return found


def _put(found: dict[str, str], text: str, where: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{where} is no KEY=VALUE")
    if key.strip() in found:
        raise ConfigError(f"{where}: {key.strip()} is there twice")
    found[key.strip()] = value.strip()


def _from_json(text: str, where: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        # (Its message may be shown: it has a position, and nothing that was read.)
        raise ConfigError(f"{where} is no JSON: {error}") from None
    if not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(f"{where} has a value that is no text: put it in quotes")
    return dict(found)
