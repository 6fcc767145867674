"""Folders and URLs in configuration values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stormkeeper.errors import ConfigError


def folder(key: str, value: str) -> Path:
    """Return the folder in a key's value; a leading ``~`` is a user's home.

    A shell does not expand ``-c key=~/folder``. Raises `ConfigError` without such a home.
    """
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{key}: {value!r} begins with the home of a user who has none here: write a whole path"
        ) from error


def is_relative(value: str) -> bool:
    """Return whether a folder is not absolute, not in a home, and no URL."""
    return ":" not in value and not value.startswith(("/", "~"))


def checkpoint_root(conf: Mapping[str, Any]) -> str:
    """Return the folder or URL above all topologies' checkpoints; raises as `folder`."""
    chosen = conf["topology.checkpoint.dir"]
    if chosen is None:
        return str((folder("storm.local.dir", conf["storm.local.dir"]) / "checkpoints").absolute())
    if not is_local(chosen) or ":" in chosen:
        return str(chosen)
    return str(folder("topology.checkpoint.dir", chosen).absolute())


def is_local(location: str) -> bool:
    scheme, colon, _ = location.partition(":/")
    return not colon or scheme == "file"


def on_disk(location: str) -> Path | None:
    """Return the absolute path of a folder or URL; None for relative and remote ones."""
    if not is_local(location):
        return None
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    path = folder("topology.checkpoint.dir", location)
    return path if path.is_absolute() else None
