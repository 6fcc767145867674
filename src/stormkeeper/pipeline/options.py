"""The options of the ``pacemaker`` source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.client import DEFAULT_PORT, settings
from stormkeeper.pacemaker.client.settings import ClientSettings, of_texts
from stormkeeper.state.paths import WORKERBEATS

DEFAULT_PATH: Final = WORKERBEATS

#: Long enough for a busy server's page of 10 MB, short enough for a trigger of a few seconds.
DEFAULT_TIMEOUT_SECS: Final = 2.0


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
    access
        How to authenticate and speak TLS: configuration keys and their values. They name files,
        which executors read too, and hold no secret: Spark shows options in its plans.
    """

    servers: tuple[Address, ...]
    path: str = DEFAULT_PATH
    page_size: int = 0
    timeout_secs: float = DEFAULT_TIMEOUT_SECS
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
            When an option is missing or wrong; the message names it.
        """
        options = {name.lower(): value.strip() for name, value in given.items()}
        return cls(
            _servers(options.get("servers", "")),
            _path(options.get("path", DEFAULT_PATH)),
            int(_number(options, "pageSize", 0, minimum=0, whole=True)),
            _number(options, "timeoutSecs", DEFAULT_TIMEOUT_SECS, minimum=0.01),
            _access(options),
        )


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


def _access(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    wrong = [
        name
        for name in options
        if name.startswith(("pacemaker.", "java.")) and name not in settings.KEYS
    ]
    if wrong:
        raise ConfigError(
            f'the option {wrong[0]!r} of format("pacemaker") is none of {", ".join(settings.KEYS)}'
        )
    return tuple((key, options[key]) for key in settings.KEYS if key in options)


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
