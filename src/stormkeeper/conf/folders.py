"""The folders that a configuration names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def is_relative(value: str) -> bool:
    """Return whether a folder is neither a whole path, nor in a user's home, nor a URL."""
    return ":" not in value and not value.startswith(("/", "~"))


def checkpoint_root(conf: Mapping[str, Any]) -> str:
    """Return the folder, or the URL, that all topologies' checkpoints are below.

    Raises
    ------
    ConfigError
        It begins with the home of a user who has none.
    """
    chosen = conf["topology.checkpoint.dir"]
    if chosen is None:
        return str((folder("storm.local.dir", conf["storm.local.dir"]) / "checkpoints").absolute())
    if not is_local(chosen) or ":" in chosen:
        return str(chosen)
    return str(folder("topology.checkpoint.dir", chosen).absolute())


def is_local(location: str) -> bool:
    """Return whether a folder or a URL is on a disk of the machine."""
    scheme, colon, _ = location.partition(":/")
    return not colon or scheme == "file"


def on_disk(location: str) -> Path | None:
    """Return the whole path of a folder or a URL; None where it is none, or on no disk."""
    if not is_local(location):
        return None
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    path = folder("topology.checkpoint.dir", location)
    return path if path.is_absolute() else None
