"""Where the pipeline's tables and its checkpoints are, by the configuration."""

from __future__ import annotations

import re
from pathlib import Path

from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder
from stormkeeper.errors import ConfigError
from stormkeeper.pipeline import checkpoint


def of_tables(conf: Conf) -> Path:
    """Return where the tables are: ``pipeline.tables.dir``.

    Raises
    ------
    ConfigError
        When that is a URL.
    """
    given = _given(conf, "pipeline.tables.dir")
    return given or folder("storm.local.dir", conf["storm.local.dir"]) / "tables"


def of_checkpoints(conf: Conf) -> Path | None:
    """Return where the queries' checkpoints are, likewise, if ``pipeline.checkpoint.dir`` says."""
    return _given(conf, "pipeline.checkpoint.dir")


def of_query(conf: Conf, query: str) -> tuple[Path, Path]:
    """Return the folders of a query's tables and of its checkpoint, likewise."""
    tables, checkpoints = of_tables(conf) / query, of_checkpoints(conf)
    return tables, checkpoint.default(tables) if checkpoints is None else checkpoints / query


def _given(conf: Conf, key: str) -> Path | None:
    given = conf[key]
    if given and re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", given):
        raise ConfigError(
            f"{key} is a folder on a local or mounted file system, not a URL as {given!r}: the "
            "pipeline publishes its tables by renaming a file, which object stores cannot do in "
            f"one step; set {key} to a local folder, and copy its files from there"
        )
    return folder(key, given) if given else None
