"""Hands Spark's settings to a JVM that starts, in a file that this user alone can read.

PySpark puts them on the JVM's command line. Every user of the machine can read that, and some of
them are passwords.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import string
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf
from pyspark.core import context

#: What says how PySpark starts the JVM, and what it is when it is not set.
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_DEFAULT = "pyspark-shell"

#: What has the same meaning everywhere in a file of Java's properties.
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-/")


@contextlib.contextmanager
def off_the_command_line(
    launched: Callable[[Any], None] = lambda _: None,
) -> Iterator[None]:
    """Have a JVM that PySpark starts meanwhile read its settings from a file.

    PySpark waits until the JVM can be called. The JVM has read the file by then, which is removed.

    Parameters
    ----------
    launched
        Called with the gateway to the JVM before PySpark uses it.
    """
    names = vars(context)
    launch = names["launch_gateway"]

    def launching(conf: SparkConf | None = None, popen_kwargs: Any = None) -> Any:
        with _handed_over(dict(conf.getAll()) if conf is not None else {}):
            gateway = launch(None, popen_kwargs)
        launched(gateway)
        return gateway

    names["launch_gateway"] = launching
    try:
        yield
    finally:
        names["launch_gateway"] = launch


def text(settings: Mapping[str, str]) -> str:
    """Return settings as a file of Java's properties has them (java.util.Properties, `load`)."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


@contextlib.contextmanager
def _handed_over(settings: Mapping[str, str]) -> Iterator[None]:
    descriptor, name = tempfile.mkstemp(prefix="spark-", suffix=".properties")  # of mode 0600
    before = os.environ.get(_ARGUMENTS)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text(settings))
        # A file that is named keeps Spark from reading spark-defaults.conf, unless it is told to.
        ours = f"--properties-file {shlex.quote(name)} --load-spark-defaults"
        os.environ[_ARGUMENTS] = f"{ours} {before or _DEFAULT}"
        yield
    finally:
        Path(name).unlink()
        if before is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = before


def _escaped(value: str) -> str:
    units = struct.iter_unpack(">H", value.encode("utf-16-be", "surrogatepass"))
    return "".join(chr(unit) if chr(unit) in _PLAIN else f"\\u{unit:04x}" for (unit,) in units)
