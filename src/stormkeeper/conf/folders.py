"""The folders that a configuration names."""

from pathlib import Path

from stormkeeper.errors import ConfigError


def folder(key: str, value: str) -> Path:
    """Return the folder that the value of a key names; ``~`` at its beginning is a user's home.

    A shell leaves the ``~`` of ``-c key=~/folder`` as it is.

    Raises
    ------
    ConfigError
        There is no such user, or the user has no home.
    """
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{key}: {value!r} begins with the home of a user who has none here: write a whole path"
        ) from error
