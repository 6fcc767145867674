"""What wins over a topology's own conf: the one that was saved of it, and its credentials."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError


def read(file: Path) -> dict[str, Any]:
    """Return what a file of overrides says, by key.

    Raises
    ------
    ConfigError
        It cannot be read, or is no JSON object. What is in it is not in the message: it may be
        secret.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: expected a JSON object with a value for each key") from error


def applied(conf: Conf, values: Mapping[str, Any], *, keep: Collection[str] = ()) -> Conf:
    """Return `conf` with the values of overrides, but for the keys to `keep`.

    Raises
    ------
    ConfigError
        When one of them is not what its key may be.
    """
    try:
        return conf.with_values({key: value for key, value in values.items() if key not in keep})
    except ConfigError as error:
        raise ConfigError(f"the topology's saved configuration: {error}") from error


def with_credentials(conf: Conf, credentials: Mapping[str, str]) -> Conf:
    """Return `conf` with a topology's credentials, which win.

    Raises
    ------
    ConfigError
        One has the name of a key and is not what that may be. It is not in the message.
    """
    try:
        return conf.with_values(credentials)
    except ConfigError:
        raise ConfigError(
            "a credential of the topology has the name of a key, and is not what that may be: "
            "give it another one by `storm upload-credentials`"
        ) from None
