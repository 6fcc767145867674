"""The options of the ``pacemaker`` source."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.client import DEFAULT_PORT, client_settings
from stormkeeper.pacemaker.client.client_settings import ClientSettings, of_texts
from stormkeeper.paths import WORKERBEATS

DEFAULT_PATH: Final = WORKERBEATS

#: Long enough for a busy server's page of 10 MB, short enough for a trigger of a few seconds.
DEFAULT_TIMEOUT_SECS: Final = 2.0


#: All that there are, as they are written.
NAMES: Final = (
    *("servers", "path", "pageSize", "timeoutSecs", "values", "parts", "packed", "aside"),
    *client_settings.KEYS,
)

#: How a table of Spark's catalog marks the options that it was created with. It hands them over
#: with properties of its own, such as its owner, and a second time without the mark.
_OF_TABLE: Final = "option."


@dataclass(frozen=True, slots=True)
class Options:
    """What to read, and how.

    Parameters
    ----------
    servers
        The Pacemakers, each once.
    path
        What is read: this path and everything below it.
    page_size
        Changes asked for in one request; 0 leaves it to the server.
    timeout_secs
        How long one answer is waited for.
    values
        Whether pulses are read, or only their ages and revisions.
    parts
        Into how many parts what each server holds is divided, each a partition.
    packed
        Whether rows come decoded and packed, as `decode.IN_TURN`.
    aside
        The folder to which packed rows are written, with how far a stream has read; only the names
        of its files are in the rows then. None: they are in the rows themselves.
    access
        How to authenticate and speak TLS: configuration keys and their values. They name files,
        which executors read too, and hold no secret: Spark shows options in its plans.
    """

    servers: tuple[Address, ...]
    path: str = DEFAULT_PATH
    page_size: int = 0
    timeout_secs: float = DEFAULT_TIMEOUT_SECS
    values: bool = True
    parts: int = 1
    packed: bool = False
    aside: str | None = None
    access: tuple[tuple[str, str], ...] = ()

    def settings(self) -> ClientSettings:
        """Read the files that `access` names, on the machine that this runs on.

        Raises
        ------
        ConfigError
            When one is missing or wrong.
        """
        return of_texts(dict(self.access)) if self.access else ClientSettings()

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Read the options that a user gave, whatever the case of their names.

        Raises
        ------
        ConfigError
            When an option is missing, unknown or wrong; the message names it.
        """
        options = {name.lower(): value.strip() for name, value in given.items()}
        of_table = {name for name in options if name.startswith(_OF_TABLE)}
        if of_table:
            options = {name.removeprefix(_OF_TABLE): options[name] for name in of_table}
        _check_names(options)
        return cls(
            _servers(options.get("servers", "")),
            _path(options.get("path", DEFAULT_PATH)),
            int(_number(options, "pageSize", 0, minimum=0, whole=True)),
            _number(options, "timeoutSecs", DEFAULT_TIMEOUT_SECS, minimum=0.01),
            _switch(options, "values", default=True),
            int(_number(options, "parts", 1, minimum=1, whole=True)),
            _switch(options, "packed", default=False),
            options.get("aside"),
            tuple((key, options[key]) for key in client_settings.KEYS if key in options),
        )


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in NAMES}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"is {known[near[0]]!r} meant?" if near else f"it has {', '.join(NAMES)}"
            raise ConfigError(f'format("pacemaker") has no option {name!r}: {remedy}')


def _servers(text: str) -> tuple[Address, ...]:
    entries = [entry for entry in (part.strip() for part in text.split(",")) if entry]
    if not entries:
        raise ConfigError(
            "the option 'servers' of format(\"pacemaker\") is missing: name the Pacemakers, as in "
            '.option("servers", "host-a:6699,host-b:6699")'
        )
    try:
        return tuple(dict.fromkeys(Address.parse(entry, DEFAULT_PORT) for entry in entries))
    except ConfigError as error:
        raise ConfigError(f"the option 'servers' of format(\"pacemaker\"): {error}") from error


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ConfigError(
            f"the option 'path' of format(\"pacemaker\") must begin with '/', got {text!r}"
        )
    return text.rstrip("/") or "/"


def _number(
    options: Mapping[str, str], name: str, default: float, *, minimum: float, whole: bool = False
) -> float:
    text = options.get(name.lower())
    if text is None:
        return default
    kind = "a whole number" if whole else "a number"
    try:
        value: float = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not minimum <= value < math.inf:
        raise ConfigError(
            f'the option {name!r} of format("pacemaker") must be {kind} of at least '
            f"{minimum:g}, got {text!r}"
        )
    return value


def _switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(
            f'the option {name!r} of format("pacemaker") must be true or false, got {text!r}'
        )
    return text == "true"
